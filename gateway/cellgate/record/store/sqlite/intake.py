"""Takes all rows of another record into an empty one in SQLite, as they are. SQL for commands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from msgspec import structs

from cellgate.record.rows import SessionRow
from cellgate.record.store.checking import CheckedRows, executions_of
from cellgate.record.store.sqlite import blobs, schema
from cellgate.record.store.sqlite.transactions import transaction

_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_EXECUTION = "INSERT INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_HEAD = "UPDATE sessions SET head_seq = ?, head = ? WHERE id = ?"
_LAST_ID = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'sessions'"


def take_in(
    db: sqlite3.Connection, sessions: Iterable[SessionRow], rows: CheckedRows, *, last_id: int
) -> None:
    """Insert the rows of all these sessions and the audit trail, in one transaction.

    `last_id`: the highest id that a session ever had.
    """
    with transaction(db):
        for session in sessions:
            schema.insert_session(db, session)
            db.execute(_HEAD, (session.head_seq, session.head, session.id))
            for row in rows.rows(session.id):
                body, uses = blobs.take_out(db, session.id, row.body)
                db.execute(_EVENT, (*structs.astuple(row)[:4], body, row.hash, uses))
            db.executemany(_EXECUTION, map(structs.astuple, executions_of(rows, session.id)))
        entries = ((row.seq, row.type, row.body, row.hash) for row in rows.trail())
        db.executemany("INSERT INTO trail VALUES (?, ?, ?, ?)", entries)
        if not db.execute(_LAST_ID, (last_id,)).rowcount:
            db.execute("INSERT INTO sqlite_sequence VALUES ('sessions', ?)", (last_id,))
