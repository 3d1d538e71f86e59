"""A session's events as a Jupyter notebook of nbformat 4.5: one code cell per execution.

Pure: rows in, a dict out; the same rows make the same notebook. What an event does to a cell's outputs is
``kernels.outputs``; reading the rows and writing files is left to others. The result is valid by
construction, given events as the kernel layer makes them; the tests hold it against nbformat's own schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec

from gateway.record.rows import EventRow, SessionRow
from kernels.outputs import OutputArea

_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OF_LANGUAGE: Mapping[str, type | tuple[type, ...]] = {
    "version": str,
    "mimetype": str,
    "file_extension": str,
    "pygments_lexer": str,
    "nbconvert_exporter": str,
    "codemirror_mode": (str, dict),
}
_UNANSWERED = frozenset({"cancelled", "died"})

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def event_of(row: EventRow) -> dict[str, Any]:
    """The event of a stored row, with the row's `hash` in hex."""
    return {**_decode(row.body), "hash": row.hash.hex()}


def build_notebook(
    session: SessionRow,
    events: Iterable[Mapping[str, Any]],
    *,
    head: str,
    gateway_version: str,
    exported_at: str,
    outputs: bool = True,
) -> dict[str, Any]:
    """The notebook of the session's events in their order; an event may have its row's `hash`.

    Cells are in the order in which they started; one that never did stays at its place in the queue.
    `head` is the chain's hash in hex. Without `outputs` cells have neither outputs nor a count, only what is
    known of their run.
    """
    cells = _cells(events, outputs=outputs)
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            **_kernel_metadata(session),
            "cellgate": _provenance(session, head, gateway_version, exported_at),
        },
        "cells": [cell.to_notebook(outputs=outputs) for cell in _in_order(cells)],
    }


def render(notebook: Mapping[str, Any]) -> bytes:
    """The notebook as the bytes that nbformat itself would write into a file."""
    import nbformat  # noqa: PLC0415 - it takes longer to load than all else that a gateway needs to start

    node = nbformat.from_dict(notebook)  # type: ignore[no-untyped-call]
    written: str = nbformat.v4.writes(node)  # type: ignore[no-untyped-call]
    return written.encode() + b"\n"


# ---- cells ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cell:
    """An execution as its events tell it so far."""

    execution: str
    first_seq: int
    last_seq: int = 0
    hash: str | None = None
    source: str = ""
    cell_id: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    started: Mapping[str, Any] | None = None
    finished: Mapping[str, Any] | None = None
    area: OutputArea = field(default_factory=OutputArea)

    def apply(self, event: Mapping[str, Any], *, outputs: bool) -> None:
        self.last_seq, self.hash = event["seq"], event.get("hash")
        match event["type"]:
            case "queued":
                self.source = event["code"]
                self.cell_id = event.get("cell_id")
                self.flags = {
                    key: event[key]
                    for key, usual in (("silent", False), ("store_history", True))
                    if event.get(key, usual) is not usual
                }
            case "started":
                self.source, self.started = event["code"], event
            case "finished":
                self.finished = event
            case event_type if outputs:
                self.area.apply(event_type, event)

    def to_notebook(self, *, outputs: bool) -> dict[str, Any]:
        shown = self.area.outputs()
        return {
            "cell_type": "code",
            "id": self.cell_id or _cell_id(self.execution),
            "execution_count": self._count() if outputs else None,
            "metadata": {**self._timing(), "cellgate": self._provenance(shown)},
            "source": self.source,
            "outputs": shown,
        }

    def _count(self) -> int | None:
        for event in (self.finished, self.started):
            if event is not None and event["execution_count"] is not None:
                return int(event["execution_count"])
        return None

    def _timing(self) -> dict[str, Any]:
        """Jupyter's keys, for the messages that came: a kernel that was lost or never asked gave no reply."""
        times: dict[str, str] = {}
        if self.started is not None:
            times["iopub.status.busy"] = times["iopub.execute_input"] = self.started["at"]
        ended = self.finished
        if ended is not None and ended["status"] not in _UNANSWERED and not ended["kernel"]["replaced"]:
            times["shell.execute_reply"] = times["iopub.status.idle"] = ended["finished_at"]
        return {"execution": times} if times else {}

    def _provenance(self, shown: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        known: dict[str, Any] = {
            "execution": self.execution,
            "seq": [self.first_seq, self.last_seq],
            **self._outcome(shown),
            **self.flags,
        }
        if self.hash is not None:
            known["hash"] = self.hash
        return known

    def _outcome(self, shown: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        ended = self.finished
        if ended is None:
            return {"status": "running" if self.started is not None else "queued"}
        known = {"status": ended["status"], "cause": ended["cause"], "duration_ms": ended["duration_ms"]}
        if ended["truncated"]:
            known["truncated"] = True
        if ended["kernel"]["replaced"]:
            known["kernel_replaced"] = True
        if self.started is None and ended["status"] in _UNANSWERED:
            known["note"] = "This cell did not run."
        elif ended["error"] and not any(output["output_type"] == "error" for output in shown):
            known["note"] = f"{ended['error']['ename']}: {ended['error']['evalue']}"
        return known


def _cells(events: Iterable[Mapping[str, Any]], *, outputs: bool) -> list[_Cell]:
    """The cells in the order of their first events."""
    cells: dict[str, _Cell] = {}
    displays: dict[str, dict[str, _Cell]] = {}
    taken: set[str] = set()
    for event in events:
        execution = event["execution"]
        if execution is None:
            continue
        cell = cells.get(execution)
        if cell is None:
            cell = cells[execution] = _Cell(execution, event["seq"])
        cell.apply(event, outputs=outputs)
        if cell.cell_id is not None and event["type"] == "queued":
            if cell.cell_id in taken or not _CELL_ID.fullmatch(cell.cell_id):
                cell.cell_id = None
            else:
                taken.add(cell.cell_id)
        display_id = event.get("display_id")
        if display_id is not None:
            shown_in = displays.setdefault(display_id, {})
            for other in shown_in.values():
                other.area.update_display(display_id, event["data"], event["metadata"])
            shown_in[execution] = cell
    return list(cells.values())


def _in_order(cells: Iterable[_Cell]) -> Iterator[_Cell]:
    """The places are those of the queue; those that started share theirs out in the order they started in."""
    queued = list(cells)
    by_start = sorted(
        ((cell.started["seq"], cell) for cell in queued if cell.started is not None), key=lambda pair: pair[0]
    )
    started = iter(by_start)
    for cell in queued:
        yield cell if cell.started is None else next(started)[1]


def _cell_id(execution: str) -> str:
    return execution if _CELL_ID.fullmatch(execution) else sha256(execution.encode()).hexdigest()[:32]


# ---- metadata ---------------------------------------------------------------------------------------------


def _kernel_metadata(session: SessionRow) -> dict[str, Any]:
    """`kernelspec` and `language_info`, as far as the session's environment tells them."""
    environment = session.environment
    language = _language_info(environment.get("kernel_info", {}).get("language_info"))
    kernelspec = {
        "name": session.kernel,
        "display_name": str(environment.get("display_name") or session.kernel),
    }
    if language is None:
        return {"kernelspec": kernelspec}
    return {"kernelspec": {**kernelspec, "language": language["name"]}, "language_info": language}


def _language_info(told: Any) -> dict[str, Any] | None:
    """What a kernel says of its language, without what nbformat does not allow."""
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    fields = {key: told[key] for key, kind in _OF_LANGUAGE.items() if isinstance(told.get(key), kind)}
    return {"name": told["name"], **fields}


def _provenance(session: SessionRow, head: str, gateway_version: str, exported_at: str) -> dict[str, Any]:
    """Where the notebook comes from; of the environment whatever the record holds."""
    environment = {
        key: value for key, value in session.environment.items() if key not in {"kernel_info", "display_name"}
    }
    kernel_info = session.environment.get("kernel_info", {})
    for key in ("implementation", "implementation_version"):
        if key in kernel_info:
            environment[key] = kernel_info[key]
    language = kernel_info.get("language_info")
    if isinstance(language, dict) and language.get("name") == "python":
        environment.setdefault("python", language.get("version"))
    return {
        "session": session.key,
        "principal": session.principal,
        "state": session.state,
        "created_at": session.created_at,
        "exported_at": exported_at,
        "isolation": session.isolation,
        **environment,
        "limits": session.limits,
        "metadata": session.metadata,
        "head": head,
        "gateway_version": gateway_version,
    }
