"""The end of a session's previous life, as its events tell it: for a session that is resumed or adopted.

A life begins when the session is created or resumed. Its row has the limits and the names of its variables;
this module finds what only the events have: a loss that no execution has announced, and installed packages.
"""

from __future__ import annotations

import sqlite3

import msgspec
from msgspec import UNSET, UnsetType

from cellgate.errors import RecordDamaged
from cellgate.record.facts import BEGINNINGS, decode_fact
from cellgate.record.rows import EventRow
from cellgate.record.store.interface import LastLife
from cellgate.record.store.sqlite.schema import events_of_types
from cellgate.record.store.sqlite.transactions import snapshot
from cellgate.wire.events import Event, Finished, Loss, Missing, PackagesChanged, SessionChanged


def last_life(db: sqlite3.Connection, session_id: int) -> LastLife:
    """Read the session's last life. Raises RecordDamaged for an event that can't be read."""
    loss: Loss | UnsetType = UNSET
    missing: Missing | UnsetType = UNSET
    packages: set[str] = set()
    introduced = 0
    with snapshot(db):
        for row in events_of_types(db, session_id, ("session", "packages")):
            event = _decoded(row)
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
        if not isinstance(loss, UnsetType) and not _announced(db, session_id, introduced):
            unannounced = loss
    return LastLife(unannounced, tuple(sorted(packages)), missing)


def _announced(db: sqlite3.Connection, session_id: int, after: int) -> bool:
    """Whether an execution that ended later says that the kernel was replaced."""
    rows = events_of_types(db, session_id, ("finished",), after)
    ends = (event for event in map(_decoded, rows) if isinstance(event, Finished))
    return any(end.kernel.replaced for end in ends)


def _decoded(row: EventRow) -> Event:
    try:
        return decode_fact(row.type, row.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordDamaged("The record", error) from error
