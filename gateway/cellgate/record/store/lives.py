"""Reads from a session's events what its next life needs: the end of its last life, and what was left open.

A life begins when the session is created or resumed. Its row has the limits and the names of its variables;
only the events have a loss that no execution has announced, and installed packages. The ends of programs and
ports are recorded when they, their kernel or the session end. A gateway that crashed could not record them;
here the next one finds the missing ends. Pure: each store reads the events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec
from msgspec import UNSET, UnsetType

from cellgate.errors import RecordDamaged
from cellgate.record.facts import BEGINNINGS, decode_fact
from cellgate.record.rows import EventRow
from cellgate.record.store.interface import LastLife, LeftOpen
from cellgate.wire.events import (
    Event,
    Finished,
    Loss,
    Missing,
    PackagesChanged,
    PortClosed,
    PortOpened,
    ProcessExited,
    ProcessStarted,
    SessionChanged,
)
from cellgate_kernels.codec.decoding import json_decoder

Read = Callable[[Collection[str], int], Iterator[EventRow]]
"""Reads the session's events of some types with a higher number, in order."""

_OPENING = {
    kind: json_decoder(struct).decode
    for kind, struct in (
        ("process_started", ProcessStarted),
        ("process_exited", ProcessExited),
        ("port_opened", PortOpened),
        ("port_closed", PortClosed),
    )
}


def last_life(read: Read) -> LastLife:
    """Read the session's last life. Raises RecordDamaged for an event that can't be read."""
    loss: Loss | UnsetType = UNSET
    missing: Missing | UnsetType = UNSET
    packages: set[str] = set()
    introduced = 0
    for event in map(_decoded, read(("session", "packages"), 0)):
        if isinstance(event, PackagesChanged):
            names = {package.name for package in event.packages}
            packages = packages | names if event.action == "installed" else packages - names
        elif isinstance(event, SessionChanged):
            if not isinstance(event.environment, UnsetType):  # a kernel is introduced
                loss = event.loss
                introduced = event.seq
            if event.cause in BEGINNINGS:
                packages.clear()
                missing = UNSET if isinstance(event.loss, UnsetType) else event.loss.missing
    unannounced = None
    if not isinstance(loss, UnsetType):
        ends = map(_decoded, read(("finished",), introduced))
        announced = any(end.kernel.replaced for end in ends if isinstance(end, Finished))
        unannounced = None if announced else loss
    return LastLife(unannounced, tuple(sorted(packages)), missing)


def left_open(read: Read) -> LeftOpen:
    """Return what is open at the session's last event. Raises RecordDamaged for an unreadable event."""
    processes: dict[str, None] = {}
    ports: dict[int, None] = {}
    for event in map(_decoded, read(_OPENING, 0)):
        match event:
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
        if (decode := _OPENING.get(row.type)) is not None:
            return decode(row.body)
        return decode_fact(row.type, row.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordDamaged("The record", error) from error
