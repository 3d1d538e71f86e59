"""Ends in the record what a lost gateway left open of a session. It is not the end of a live session.

``adoption`` does it at the start of a gateway for sessions whose kernels are gone, ``opener`` for a session
of another gateway that was lost. The caller has claimed the session: nobody else adds to its record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from msgspec import structs

from cellgate.record.events import EventLog, now
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import RecordStore


class LostBy(StrEnum):
    """Why a session has no gateway any more: the causes of the ends in the record."""

    GATEWAY_RESTART = "gateway_restart"
    NODE_LOST = "node_lost"
    RECORD_SET_BACK = "record_set_back"


_TOLD: Final = MappingProxyType(
    {
        LostBy.GATEWAY_RESTART: "The gateway stopped while this cell waited or ran.",
        LostBy.NODE_LOST: "The gateway that had this session was lost while this cell waited or ran.",
        LostBy.RECORD_SET_BACK: (
            "The database went back to an older state, in which this cell had not ended; its end is lost."
        ),
    }
)
PORT_LOST: Final = MappingProxyType({"connections": None, "sent": None, "received": None})


def lost_cell(why: LostBy, kernel: str) -> Mapping[str, Any]:
    """Return the fields of a lost cell's `finished`. `kernel`: the state of its session's kernel."""
    return {
        "status": "died",
        "cause": why.value,
        "execution_count": None,
        "error": {"ename": "KernelDied", "evalue": _TOLD[why], "traceback": []},
        "started_at": None,
        "duration_ms": None,
        "queue_ms": None,
        "truncated": False,
        "kernel": {"state": kernel, "replaced": False},
        "finished_at": now(),
    }


async def end_lost(journal: RecordStore, row: SessionRow, log: EventLog, why: LostBy) -> None:
    """Record the end of a session without a gateway, and of its cells and programs. Raises StorageError."""
    log.reopen()
    await end_cells(journal, row, log, why, "dead")
    await end_left_open(journal, row, log, why)
    end_session(row, log, why)


def end_session(row: SessionRow, log: EventLog, why: LostBy) -> None:
    """Record the end of a session in which nothing is left open, and close its log."""
    ended = {"state": "ended", "cause": why.value, "kernel": row.kernel}
    log.append("session", None, {**ended, "last_activity": row.last_activity})
    log.close()
    log.save_session(structs.replace(row, state="ended", cause=why.value))


async def end_cells(
    journal: RecordStore, row: SessionRow, log: EventLog, why: LostBy, kernel: str, but: Collection[str] = ()
) -> None:
    """Record the end of all cells that have none, except for the executions `but`."""
    for execution in await journal.reads.unfinished_executions(row.id):
        if execution.id not in but:
            event = log.append("finished", execution.id, lost_cell(why, kernel))
            log.save_execution(execution.ended(event))


async def end_left_open(journal: RecordStore, row: SessionRow, log: EventLog, why: LostBy) -> None:
    """Record that programs and connections ended with their gateway; how a program ended is unknown."""
    left = await journal.reads.left_open(row.id)
    for process in left.processes:
        ended = {"exit_code": None, "signal": None, "cause": why.value, "truncated": None}
        log.append("process_exited", None, {"process": process, **ended, "duration_ms": None})
    for port in left.ports:
        log.append("port_closed", None, {"port": port, **PORT_LOST})
