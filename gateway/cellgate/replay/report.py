"""The report of a replay as JSON: what was compared, where, and with what result.

Pure; the HTML page in ``page`` is made from this alone. As a program (``python -m
cellgate.replay.report json|html``) it is the job that compares: it reads a notebook and its new runs as JSON
from stdin and writes the report to stdout, in its own process, because its input comes from user code.
"""

from __future__ import annotations

import base64
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import msgspec

from cellgate.jobs.job_output import give
from cellgate.replay.cells import RecordedCell, recorded_cells
from cellgate.replay.compare import CellComparison, CellRun, Difference, Verdict, compare_runs
from cellgate.replay.environment import EnvironmentCheck
from cellgate.replay.images import PixelBudget
from cellgate.replay.moments import moment, window
from cellgate.replay.page import page


class NewRun(msgspec.Struct, frozen=True):
    """What a cell did in the replay. `at` and `ended`: when it started and ended, as in RFC 3339.

    `asked`: it asked for input and got none.
    """

    status: str
    outputs: list[dict[str, Any]]
    at: str
    ended: str | None = None
    asked: bool = False


class Comparison(msgspec.Struct, frozen=True):
    """Everything a report is made from. `runs` has one entry per code cell, None if it was not run.

    `rtol`: how far floating-point numbers may be apart.
    """

    notebook: dict[str, Any]
    runs: list[NewRun | None]
    facts: dict[str, Any]
    rtol: float = 0.0


def environment_report(check: EnvironmentCheck) -> dict[str, Any]:
    """The comparison of environments in the form of the report."""
    return {"agreement": check.agreement, "changes": [asdict(change) for change in check.changes]}


def build_report(comparison: Comparison) -> dict[str, Any]:
    """The report as JSON values. Raises InvalidInput if the notebook is invalid."""
    cells = recorded_cells(comparison.notebook)
    pixels = PixelBudget()
    starts = [moment(run.at) for run in comparison.runs if run is not None]
    begin = min((start for start in starts if start is not None), default=None)
    shown = [
        _cell(cell, run, begin, comparison.rtol, pixels)
        for cell, run in zip(cells, comparison.runs, strict=True)
    ]
    counts = Counter(cell["verdict"] for cell in shown)
    worst = [Verdict.DIFFERENT, Verdict.UNJUDGED, Verdict.NORMALISED, Verdict.EQUAL]
    return {
        **comparison.facts,
        "rtol": comparison.rtol,
        "verdict": next((verdict for verdict in worst if counts[verdict]), Verdict.EQUAL),
        "same": counts[Verdict.EQUAL] + counts[Verdict.NORMALISED],
        "normalised": counts[Verdict.NORMALISED],
        "unjudged": counts[Verdict.UNJUDGED],
        "different": counts[Verdict.DIFFERENT],
        "skipped": counts[Verdict.SKIPPED],
        "cells": shown,
    }


def _cell(
    cell: RecordedCell, run: NewRun | None, begin: datetime | None, rtol: float, pixels: PixelBudget
) -> dict[str, Any]:
    known = {"cell": cell.number, "execution": cell.execution, "source": cell.source}
    if run is None or not cell.compared:
        reason = cell.skip or "It had no outputs and no count: it had not run when the notebook was saved."
        return {**known, "verdict": Verdict.SKIPPED, "same": None, "reason": reason}
    when = window(begin, moment(run.ended) or moment(run.at))
    compared = compare_runs(cell.run, CellRun(run.status, run.outputs, when), rtol=rtol, pixels=pixels)
    why = "It asks for input, and a replay has nobody to answer." if run.asked else cell.needs
    verdict = compared.verdict
    if verdict is Verdict.DIFFERENT and why is not None:
        verdict = Verdict.UNJUDGED
    return {
        **known,
        "verdict": verdict,
        "same": {Verdict.DIFFERENT: False, Verdict.UNJUDGED: None}.get(verdict, True),
        "status": {"recorded": cell.run.status, "now": run.status},
        "normalised": list(compared.rules),
        **({"reason": why} if why is not None and compared.differences else {}),
        **_differences(compared),
    }


def _differences(compared: CellComparison) -> dict[str, Any]:
    if not compared.differences:
        return {}
    said = "; ".join(f"{difference.part}: {difference.note}" for difference in compared.differences)
    return {"difference": said, "differences": [_difference(found) for found in compared.differences]}


def _difference(found: Difference) -> dict[str, Any]:
    known: dict[str, Any] = {"part": found.part, "note": found.note, "judged": found.judged}
    if found.diff:
        known["diff"] = found.diff
    if found.picture is not None:
        known["picture"] = "data:image/png;base64," + base64.b64encode(found.picture).decode()
    return known


def write(report: Mapping[str, Any], form: str) -> bytes:
    """The report as ``json`` or ``html``."""
    return page(report).encode() if form == "html" else msgspec.json.encode(report) + b"\n"


def main(arguments: Sequence[str]) -> int:
    """The job: stdin to stdout."""
    comparison = msgspec.json.decode(sys.stdin.buffer.read(), type=Comparison)
    return give(write(build_report(comparison), arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
