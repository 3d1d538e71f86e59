"""Looks up the ancestors of a branch in the tables of SQLite; ``ancestry`` interprets them.

SQL for threads of ``journal`` and for ``check``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cellgate.record.rows import EventRow, Lineage, SessionRow
from cellgate.record.store import ancestry
from cellgate.record.store.ancestry import Origin, OriginRows
from cellgate.record.store.sqlite import schema, trail
from cellgate.record.store.sqlite.transactions import snapshot


@dataclass(frozen=True, slots=True)
class StoredOrigins(OriginRows):
    """The rows of a connection's tables."""

    db: sqlite3.Connection

    def session_by_id(self, session_id: int) -> SessionRow | None:
        return schema.session_by_id(self.db, session_id)

    def event(self, session_id: int, seq: int) -> EventRow | None:
        return next(schema.stored_rows(self.db, session_id, seq, seq), None)

    def tombstones(self, session_id: int) -> Iterator[dict[str, Any]]:
        return trail.tombstones(self.db, session_id)


def lineage(db: sqlite3.Connection, session: SessionRow, covers: Callable[[str], bool]) -> Lineage:
    """Return the ancestors that are recorded, up to the first whose key is not covered."""
    with snapshot(db):
        return ancestry.lineage(StoredOrigins(db), session, covers)


def check_origin(db: sqlite3.Connection, session: SessionRow) -> Origin:
    """Compare a session's origin, if it is a branch, with the record of its parent."""
    return ancestry.check_origin(StoredOrigins(db), session)
