"""What a session's events leave open: programs and ports whose end is not recorded.

A gateway records such an end when the program, its kernel or the session ends. One that crashed could not;
the next one reads here what it has to tell the ends of, as far as they can be told.
"""

from __future__ import annotations

import sqlite3

import msgspec

from cellgate.errors import RecordDamaged
from cellgate.record.rows import EventRow
from cellgate.record.store.interface import LeftOpen
from cellgate.record.store.sqlite.schema import events_of_types
from cellgate.record.store.sqlite.transactions import snapshot
from cellgate.wire.events import Event, PortClosed, PortOpened, ProcessExited, ProcessStarted
from cellgate_kernels.codec.decoding import json_decoder

_decode = {
    kind: json_decoder(struct).decode
    for kind, struct in (
        ("process_started", ProcessStarted),
        ("process_exited", ProcessExited),
        ("port_opened", PortOpened),
        ("port_closed", PortClosed),
    )
}


def left_open(db: sqlite3.Connection, session_id: int) -> LeftOpen:
    """Read what is open at the session's last event. Raises RecordDamaged for an event that can't be read."""
    processes: dict[str, None] = {}
    ports: dict[int, None] = {}
    with snapshot(db):
        for row in events_of_types(db, session_id, _decode):
            match _decoded(row):
                case ProcessStarted(process=process):
                    processes[process] = None
                case ProcessExited(process=process):
                    processes.pop(process, None)
                case PortOpened(port=port):
                    ports[port] = None
                case PortClosed(port=port):
                    ports.pop(port, None)
    return LeftOpen(tuple(processes), tuple(ports))


def _decoded(row: EventRow) -> Event:
    try:
        return _decode[row.type](row.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordDamaged("The record", error) from error
