"""The cells of a notebook as input of a replay: their code, their time limits, and their recorded outputs.

Pure. It reads notebooks exported by Cellgate, with times and statuses, and whatever information other
notebooks have. ``compare`` compares, ``run`` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from cellgate.replay.compare import STOPPED, CellRun
from cellgate.replay.moments import Window, moment, window
from cellgate.replay.reading import Output, Unreadable, read_outputs, read_text
from cellgate_kernels.base.errors import InvalidInput

NEVER_RAN = frozenset({"cancelled", "queued", "not_run"})
DEFAULT_TIMEOUT = 60.0
_SEED = """__import__("random").seed({0})
if "numpy" in __import__("sys").modules: __import__("numpy").random.seed({0})
"""
_WITHOUT_BEGINNING = "Its session is a branch, and the cells before that are not all in the notebook."
LONGEST = 30 * 24 * 3600.0
"""The longest limit or duration, in seconds, that is taken at face value."""
SLACK = 10.0
"""Seconds that a cell gets in addition to twice its recorded duration."""


@dataclass(frozen=True, slots=True)
class RecordedCell:
    """A code cell. `number` counts all cells of the notebook from 1; `timeout` in seconds.

    `skip`: why it is not run again. `compared`: whether it had run, so that there are outputs to compare.
    `unreadable`: why its outputs can't be compared, if so. `needs`: the inputs that are not in the record, so
    that a difference proves nothing. `inherited`: the session that it ran in, if that was branched later.
    `seeds`: the seeds of random numbers set by branches right before it. A cell that a rollback undid is not
    run again: the later cells ran without it.
    """

    number: int
    source: str
    run: CellRun
    execution: str | None = None
    silent: bool = False
    timeout: float = DEFAULT_TIMEOUT
    skip: str | None = None
    compared: bool = True
    unreadable: str | None = None
    needs: str | None = None
    inherited: str | None = None
    seeds: tuple[int, ...] = ()


def seeding(seeds: Sequence[int]) -> str:
    """Return code that seeds random numbers as each branch does, in order, and leaves no name behind."""
    return "".join(_SEED.format(seed) for seed in seeds)


def recorded_cells(notebook: Mapping[str, Any]) -> list[RecordedCell]:
    """Return the code cells of an nbformat 4 notebook. Raises InvalidInput for anything else.

    A fault in a cell concerns that cell alone: it has a reason why it is not run or can't be compared.
    """
    if notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise InvalidInput("This is not a notebook of nbformat 4")
    known = _dict(notebook, "metadata", "cellgate")
    limit = _dict(known, "limits").get("cell_timeout")
    timeout = float(limit) if isinstance(limit, (int, float)) and 0 < limit <= LONGEST else DEFAULT_TIMEOUT
    return list(_code_cells(notebook["cells"], timeout, known))


def _code_cells(cells: list[Any], timeout: float, session: Mapping[str, Any]) -> Iterator[RecordedCell]:
    code = [
        (number, cell)
        for number, cell in enumerate(cells, 1)
        if isinstance(cell, dict) and (cell.get("cell_type") == "code" or _is_undone(cell))
    ]
    times = [_started(cell) for _, cell in code]
    times.append(moment(session.get("created_at")))
    of_session = [*_names(session.get("env")), *_names(session.get("secrets"))]
    begin = min((each for each in times if each is not None), default=None)
    descent = _Descent(session)
    for number, cell in code:
        made = _code_cell(number, cell, timeout, begin, of_session)
        yield descent.placed(made, _dict(cell, "metadata", "cellgate", "inherited").get("session"))


def _is_undone(cell: Mapping[str, Any]) -> bool:
    """Return whether this raw cell stands for a cell that a rollback undid, which is reported but not run."""
    return cell.get("cell_type") == "raw" and bool(_dict(cell, "metadata", "cellgate").get("undone"))


class _Descent:
    """The sessions that a branch's notebook continues, one after another."""

    def __init__(self, session: Mapping[str, Any]) -> None:
        told = session.get("ancestors")
        ancestors = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
        self._names = [each.get("session") for each in ancestors]
        self._seeds = [each.get("seed") for each in ancestors]
        left_out = session.get("ancestor_left_out") is not None or session.get("inherited") is False
        self._needs = _WITHOUT_BEGINNING if left_out else None
        self._place = 0

    def placed(self, cell: RecordedCell, inherited: object) -> RecordedCell:
        """Return the cell and all before it. `inherited`: the session it ran in, if not the branch."""
        place = self._names.index(inherited) if inherited in self._names else len(self._names)
        seeds = tuple(seed for seed in self._seeds[self._place : place] if isinstance(seed, int))
        self._place = max(self._place, place)
        return replace(
            cell,
            seeds=seeds,
            inherited=inherited if isinstance(inherited, str) else None,
            needs=cell.needs or self._needs,
        )


def _code_cell(
    number: int, cell: Mapping[str, Any], timeout: float, begin: datetime | None, of_session: list[str]
) -> RecordedCell:
    known = _dict(cell, "metadata", "cellgate")
    told = [] if cell.get("cell_type") == "raw" else cell.get("outputs")
    unreadable = None
    try:
        outputs = read_outputs(told)
    except Unreadable as error:
        outputs = []
        unreadable = f"Its outputs in the notebook can't be compared: {error.reason}."
    status = known.get("status")
    if not isinstance(status, str):
        status = "error" if _failed(told) else "ok"
    skip = _skip(status, known, _started(cell))
    try:
        source = read_text(cell.get("source"))
    except Unreadable as error:
        source = ""
        skip = f"Its source is no text: {error.reason}."
    execution = known.get("execution")
    return RecordedCell(
        number=number,
        source=source,
        run=CellRun(status, _without_note(outputs, known.get("note")), _window(cell, known, begin)),
        execution=execution if isinstance(execution, str) else None,
        silent=known.get("silent") is True,
        timeout=_timeout(status, known.get("duration_ms"), timeout),
        skip=skip,
        compared=bool(known) or bool(told) or cell.get("execution_count") is not None,
        unreadable=unreadable,
        needs=_needs(_names(known.get("env")), of_session),
    )


def _failed(outputs: Any) -> bool:
    """Return whether one of the outputs, of any shape, is an error."""
    each = outputs if isinstance(outputs, list) else []
    return any(isinstance(output, dict) and output.get("output_type") == "error" for output in each)


def _without_note(outputs: list[Output], note: Any) -> list[Output]:
    """Return the cell's own outputs, without the gateway's note, the last one if the cell gave no reason."""
    data = outputs[-1].get("data") if outputs and isinstance(note, str) else None
    if not isinstance(data, dict) or data.keys() != {"text/plain"}:
        return outputs
    text = data["text/plain"]
    shown = "".join(map(str, text)) if isinstance(text, list) else text
    return outputs[:-1] if shown == f"[cellgate: {note}]" else outputs


def _names(told: Any) -> list[str]:
    return [name for name in told if isinstance(name, str)] if isinstance(told, list) else []


def _needs(of_cell: list[str], of_session: list[str]) -> str | None:
    """Return a note on environment variables: their names are recorded, their values may be secret."""
    if of_cell:
        return f"It ran with environment variables whose values are not recorded: {', '.join(of_cell)}."
    if of_session:
        names = ", ".join(of_session)
        return f"Its session had environment variables whose values are not recorded: {names}."
    return None


def _skip(status: str, known: Mapping[str, Any], started: datetime | None) -> str | None:
    if known.get("undone"):
        return "A rollback undid it."
    if status in NEVER_RAN or known.get("note") == "This cell did not run.":
        return "It did not run then." if started is None else "It was cancelled while it ran."
    return "It had not ended." if status == "running" else None


def _timeout(status: str, duration_ms: Any, timeout: float) -> float:
    """Return the time for a replay: a stopped cell gets as long as it ran before, others get more."""
    if not isinstance(duration_ms, (int, float)):
        return timeout
    seconds = min(max(duration_ms, 0), 1000 * LONGEST) / 1000
    if status in STOPPED:
        return max(1.0, min(seconds, timeout))
    return max(timeout, 2 * seconds + SLACK)


def _started(cell: Mapping[str, Any]) -> datetime | None:
    times = _dict(cell, "metadata", "execution")
    for name in ("iopub.execute_input", "iopub.status.busy", "shell.execute_reply.started"):
        if (told := moment(times.get(name))) is not None:
            return told
    return None


def _window(cell: Mapping[str, Any], known: Mapping[str, Any], begin: datetime | None) -> Window | None:
    """Return the time from the start of the run until this cell ended."""
    times = _dict(cell, "metadata", "execution")
    ended = moment(times.get("shell.execute_reply")) or moment(times.get("iopub.status.idle"))
    started = _started(cell)
    duration = known.get("duration_ms")
    if ended is None and started is not None and isinstance(duration, (int, float)):
        ended = started + timedelta(milliseconds=min(max(duration, 0), 1000 * LONGEST))
    return window(begin, ended)


def _dict(value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        value = value.get(name, {})
        if not isinstance(value, dict):
            return {}
    return value
