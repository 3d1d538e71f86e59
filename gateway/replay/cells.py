"""The cells of a notebook as a replay sees them: what to run, how long, and what was seen then.

Pure. It reads notebooks that Cellgate exported, with times and statuses, and any other notebook as far as
that tells. ``compare`` compares, ``run`` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.replay.compare import STOPPED, CellRun
from kernels.errors import InvalidInput

NEVER_RAN = frozenset({"cancelled", "queued"})
DEFAULT_TIMEOUT = 60.0
SLACK = 10.0
"""Seconds that a cell gets besides twice its recorded duration."""


@dataclass(frozen=True, slots=True)
class RecordedCell:
    """A code cell. `number` counts all cells of the notebook from 1; `timeout` in seconds.

    `skip`: why it is not to be run. `compared`: whether it had run, so that there is something to compare.
    """

    number: int
    source: str
    run: CellRun
    execution: str | None = None
    silent: bool = False
    timeout: float = DEFAULT_TIMEOUT
    skip: str | None = None
    compared: bool = True


def recorded_cells(notebook: Mapping[str, Any]) -> list[RecordedCell]:
    """The code cells of an nbformat 4 notebook. Raises InvalidInput when it is none."""
    if notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise InvalidInput("This is no notebook of nbformat 4")
    limit = _dict(_dict(notebook, "metadata", "cellgate"), "limits").get("cell_timeout")
    timeout = float(limit) if isinstance(limit, (int, float)) and limit > 0 else DEFAULT_TIMEOUT
    return list(_code_cells(notebook["cells"], timeout))


def _code_cells(cells: list[Any], timeout: float) -> Iterator[RecordedCell]:
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        try:
            yield _code_cell(number, cell, timeout)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"Cell {number} of the notebook is not as nbformat has it") from error


def _code_cell(number: int, cell: Mapping[str, Any], timeout: float) -> RecordedCell:
    known = _dict(cell, "metadata", "cellgate")
    outputs = list(cell["outputs"])
    status = known.get("status")
    if not isinstance(status, str):
        status = "error" if any(output["output_type"] == "error" for output in outputs) else "ok"
    source = cell["source"]
    return RecordedCell(
        number=number,
        source="".join(source) if isinstance(source, list) else str(source),
        run=CellRun(status, outputs, _ran_at(cell)),
        execution=known.get("execution"),
        silent=known.get("silent") is True,
        timeout=_timeout(status, known.get("duration_ms"), timeout),
        skip=_skip(status, known),
        compared=bool(known) or bool(outputs) or cell.get("execution_count") is not None,
    )


def _skip(status: str, known: Mapping[str, Any]) -> str | None:
    if status in NEVER_RAN or known.get("note") == "This cell did not run.":
        return "It did not run then."
    return "It had not ended." if status == "running" else None


def _timeout(status: str, duration_ms: Any, timeout: float) -> float:
    """What was stopped is run for as long as it ran then; all else may be slower than it was."""
    if not isinstance(duration_ms, (int, float)):
        return timeout
    seconds = duration_ms / 1000
    return max(1.0, min(seconds, timeout)) if status in STOPPED else max(timeout, 2 * seconds + SLACK)


def _ran_at(cell: Mapping[str, Any]) -> datetime | None:
    times = _dict(cell, "metadata", "execution")
    for name in ("iopub.execute_input", "iopub.status.busy", "shell.execute_reply.started"):
        if isinstance(told := times.get(name), str):
            return moment(told)
    return None


def moment(told: str) -> datetime | None:
    """A time of RFC 3339; None when it is none."""
    try:
        found = datetime.fromisoformat(told)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _dict(value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        value = value.get(name, {})
        if not isinstance(value, dict):
            return {}
    return value
