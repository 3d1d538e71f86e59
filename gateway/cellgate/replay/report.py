"""The report of a replay: what was compared, where, and with what result.

Pure; the structs are in ``wire.answers``, and the HTML page in ``page`` is made from them alone. As a program
(``python -m cellgate.replay.report json|html``) it is the job that compares: it reads a notebook and its new
runs as JSON from stdin and writes the report to stdout, in its own process, because its input comes from user
code.
"""

from __future__ import annotations

import base64
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType, structs

from cellgate.jobs.job_output import give
from cellgate.replay.cells import RecordedCell, recorded_cells
from cellgate.replay.compare import CellComparison, CellRun, Difference, Verdict, compare_runs
from cellgate.replay.displays import NewDisplay, settled
from cellgate.replay.images import PixelBudget
from cellgate.replay.moments import moment, window
from cellgate.replay.page import page
from cellgate.wire.answers import (
    CellReport,
    DifferingPart,
    NotebookFacts,
    NotebookReport,
    Pair,
    ReplayFacts,
    ReplayReport,
)
from cellgate_kernels.base.errors import in_words

LONGEST_REASON = 200
"""Characters of an error's own words in the reason why a cell was not compared."""

R = TypeVar("R", ReplayReport, NotebookReport)


class NewRun(msgspec.Struct, frozen=True):
    """What a cell did in the replay. `at` and `ended`: when it started and ended, as in RFC 3339.

    `asked`: it asked for input and got none. `places`: the names of the outputs' places, if they have some,
    and `changes`: what it last showed in places of cells before it, by their names.
    """

    status: str
    outputs: list[dict[str, Any]]
    at: str
    ended: str | None = None
    asked: bool = False
    places: list[str | None] = []
    changes: dict[str, NewDisplay] = {}


class Comparison(msgspec.Struct, frozen=True):
    """A job's input. `runs`: one per code cell, None if not run. `rtol`: how far floats may be apart."""

    notebook: dict[str, Any]
    runs: list[NewRun | None]
    facts: ReplayFacts
    rtol: float = 0.0


def build_report(
    kind: type[R],
    facts: ReplayFacts | NotebookFacts,
    notebook: dict[str, Any],
    runs: Sequence[NewRun | None],
    rtol: float = 0.0,
) -> R:
    """Return the report of this kind: its facts, and a notebook compared with new runs of its code cells.

    Raises InvalidInput if the notebook is invalid.
    """
    cells = recorded_cells(notebook)
    pixels = PixelBudget()
    starts = [moment(run.at) for run in runs if run is not None]
    begin = min((start for start in starts if start is not None), default=None)
    finals = _finals(runs)
    shown = [_cell(cell, run, begin, rtol, pixels) for cell, run in zip(cells, finals, strict=True)]
    counts = Counter(cell.verdict for cell in shown if cell.inherited is UNSET)
    worst = [Verdict.DIFFERENT, Verdict.UNJUDGED, Verdict.NORMALISED, Verdict.EQUAL]
    # Nothing was compared: that proves nothing.
    return kind(
        **structs.asdict(facts),
        rtol=rtol,
        verdict=next((verdict for verdict in worst if counts[verdict]), Verdict.UNJUDGED),
        same=counts[Verdict.EQUAL] + counts[Verdict.NORMALISED],
        normalised=counts[Verdict.NORMALISED],
        unjudged=counts[Verdict.UNJUDGED],
        different=counts[Verdict.DIFFERENT],
        skipped=counts[Verdict.SKIPPED],
        cells=shown,
    )


def _finals(runs: Sequence[NewRun | None]) -> list[NewRun | None]:
    """Return the runs as a notebook shows them in the end: each with what later ones showed in its places."""
    later: dict[str, NewDisplay] = {}
    finals: list[NewRun | None] = []
    for run in reversed(runs):
        if run is None:
            finals.append(None)
            continue
        finals.append(structs.replace(run, outputs=settled(run.outputs, run.places, later)))
        later = {**run.changes, **later}
    return finals[::-1]


def _cell(
    cell: RecordedCell, run: NewRun | None, begin: datetime | None, rtol: float, pixels: PixelBudget
) -> CellReport:
    if run is None or not cell.compared:
        reason = cell.skip or "It had no outputs and no count: it had not run when the notebook was saved."
        return CellReport(
            cell=cell.number,
            execution=cell.execution,
            source=cell.source,
            verdict=Verdict.SKIPPED,
            same=None,
            reason=reason,
            inherited=cell.inherited or UNSET,
        )
    when = window(begin, moment(run.ended) or moment(run.at))
    compared, failure = _compared(cell, CellRun(run.status, run.outputs, when), rtol, pixels)
    why = "It asks for input, and a replay has nobody to answer." if run.asked else cell.needs
    verdict = compared.verdict
    if verdict is Verdict.DIFFERENT and why is not None:
        verdict = Verdict.UNJUDGED
    differences = compared.differences
    told = failure or (why if differences else None)
    return CellReport(
        cell=cell.number,
        execution=cell.execution,
        source=cell.source,
        verdict=verdict,
        same={Verdict.DIFFERENT: False, Verdict.UNJUDGED: None}.get(verdict, True),
        status=Pair(recorded=cell.run.status, now=run.status),
        normalised=list(compared.rules),
        reason=UNSET if told is None else told,
        difference="; ".join(f"{each.part}: {each.note}" for each in differences) if differences else UNSET,
        differences=[_difference(each) for each in differences] if differences else UNSET,
        inherited=cell.inherited or UNSET,
    )


def _compared(
    cell: RecordedCell, run: CellRun, rtol: float, pixels: PixelBudget
) -> tuple[CellComparison, str | None]:
    """Return the comparison, and why there could be none, if so."""
    if cell.unreadable is not None:
        return CellComparison(Verdict.UNJUDGED), cell.unreadable
    try:
        return compare_runs(cell.run, run, rtol=rtol, pixels=pixels), None
    except Exception as error:  # noqa: BLE001 - whatever the error, the other cells must be compared
        reason = f"Its outputs can't be compared: {type(error).__name__}: {in_words(error)[:LONGEST_REASON]}"
        return CellComparison(Verdict.UNJUDGED), reason


def _difference(found: Difference) -> DifferingPart:
    picture: str | UnsetType = UNSET
    if found.picture is not None:
        picture = "data:image/png;base64," + base64.b64encode(found.picture).decode()
    return DifferingPart(
        part=found.part, note=found.note, judged=found.judged, diff=found.diff or UNSET, picture=picture
    )


def write(report: ReplayReport | NotebookReport, form: str) -> bytes:
    """Return the report as ``json`` or ``html``."""
    return page(report).encode() if form == "html" else msgspec.json.encode(report) + b"\n"


def main(arguments: Sequence[str]) -> int:
    """Return the job: stdin to stdout."""
    comparison = msgspec.json.decode(sys.stdin.buffer.read(), type=Comparison)
    report = build_report(
        ReplayReport, comparison.facts, comparison.notebook, comparison.runs, comparison.rtol
    )
    return give(write(report, arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
