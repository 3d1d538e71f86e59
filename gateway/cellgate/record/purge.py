"""Removes all that is recorded of a session but for a tombstone in the audit trail. The SQL, step by step.

A purge begins with one short transaction: the session is gone for all who look, its tombstone stands. Its
rows are then removed a few at a time, so that they never keep the writer from other sessions' rows, and what
was begun is known after any end of the gateway. Deleted bytes are overwritten with zeros (`secure_delete`),
in the database's log at first. `empty_log` has them written into the database and the log cut to nothing.
When to do what is ``eraser``'s affair.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from cellgate.record import trail
from cellgate.record.transactions import transaction

STEP_ROWS = 200
STEP_BYTES = 1024 * 1024
"""Of bodies that one step removes, but for a single row that is larger."""

_SOME_EVENTS = """SELECT seq, length(body) FROM events WHERE session_id = ? ORDER BY seq LIMIT ?"""
_SOME_BLOBS = """SELECT blob_id, length(body) FROM blob_uses JOIN blobs ON blobs.id = blob_id
    WHERE session_id = ? LIMIT ?"""
_ABANDONED = """DELETE FROM blobs WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_id = ?1)"""
_SOME_EXECUTIONS = """DELETE FROM executions WHERE session_id = ?1 AND number IN
    (SELECT number FROM executions WHERE session_id = ?1 LIMIT ?2)"""


def begin(db: sqlite3.Connection, session_id: int, *, by: str, reason: str) -> bool:
    """Take the session's row away and write its tombstone; False when there is none.

    Its other rows stay until `remove_some` has been called often enough.
    """
    # The rows of its events refer to the session's row, and go after it.
    db.execute("PRAGMA foreign_keys = OFF")
    try:
        with transaction(db):
            found = db.execute(
                "SELECT principal, key, created_at, head_seq, head FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
            if found is None:
                return False
            principal, key, created_at, last_seq, head = found
            told = {
                "session_id": session_id,
                "principal": principal,
                "session": key,
                "created_at": created_at,
            }
            told |= {"rows": last_seq, "head": head.hex(), "by": by, "reason": reason}
            trail.append(db, trail.PURGED, told)
            db.execute("INSERT INTO purges VALUES (?)", (session_id,))
            db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    finally:
        db.execute("PRAGMA foreign_keys = ON")
    return True


def begun(db: sqlite3.Connection) -> list[int]:
    """The sessions whose purge has begun and is not over."""
    return [session_id for (session_id,) in db.execute("SELECT session_id FROM purges ORDER BY session_id")]


def remove_some(db: sqlite3.Connection, session_id: int) -> bool:
    """Remove a bounded part of what is left of the session; whether there may be more."""
    with transaction(db):
        events = _within_limit(db.execute(_SOME_EVENTS, (session_id, STEP_ROWS)).fetchall())
        if events:
            query = "DELETE FROM events WHERE session_id = ? AND seq <= ?"
            db.execute(query, (session_id, events[-1]))
            return True
        blobs = _within_limit(db.execute(_SOME_BLOBS, (session_id, STEP_ROWS)).fetchall())
        for blob in blobs:
            query = "DELETE FROM blob_uses WHERE blob_id = ? AND session_id = ?"
            db.execute(query, (blob, session_id))
            db.execute(_ABANDONED, (blob,))
        if blobs or db.execute(_SOME_EXECUTIONS, (session_id, STEP_ROWS)).rowcount:
            return True
        # Parts whose body is gone already, as in a damaged file.
        db.execute("DELETE FROM blob_uses WHERE session_id = ?", (session_id,))
        db.execute("DELETE FROM refused WHERE session_id = ?", (session_id,))
    return False


def _within_limit(found: list[tuple[int, int]]) -> list[int]:
    taken: list[int] = []
    size = 0
    for number, length in found:
        size += length
        if taken and size > STEP_BYTES:
            break
        taken.append(number)
    return taken


def empty_log(db: sqlite3.Connection) -> bool:
    """Write the database's log into the database and cut it to nothing; False while others keep it in use.

    It waits for nobody. The larger part is done while others write; they wait for what is left only.
    """
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def end(db: sqlite3.Connection, session_ids: Collection[int]) -> None:
    """Nothing is left of these sessions anywhere."""
    with transaction(db):
        db.executemany("DELETE FROM purges WHERE session_id = ?", [(number,) for number in session_ids])


def finish_all(db: sqlite3.Connection) -> None:
    """Do all that is left of purges that were begun, for who has the file to himself."""
    for session_id in (sessions := begun(db)):
        while remove_some(db, session_id):
            pass
    end(db, sessions)
