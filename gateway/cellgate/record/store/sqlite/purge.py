"""Removes the record of a session except for a tombstone in the audit trail: the SQL, step by step.

A purge begins with one short transaction: the session is gone for all readers, and its tombstone is written.
Its rows are then removed a few at a time, so that other sessions' rows are not delayed; an unfinished purge
is found after any end of the gateway. Deleted bytes are overwritten with zeros (`secure_delete`), at first in
the database's log. `empty_log` checkpoints that log and truncates it. ``eraser`` decides when each step runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from cellgate.record.store.sqlite import trail
from cellgate.record.store.sqlite.transactions import transaction
from cellgate.record.trail import PURGED

STEP_ROWS = 200
STEP_BYTES = 1024 * 1024
"""Bytes of bodies that one step removes, unless a single row is larger."""

_TOLD = ("session_id", "principal", "session", "created_at", "rows")
_TOMBSTONE = "SELECT id, principal, key, created_at, head_seq, head FROM sessions WHERE id = ?"
_SOME_EVENTS = """SELECT seq, length(body) FROM events WHERE session_id = ? ORDER BY seq LIMIT ?"""
_SOME_BLOBS = """SELECT blob_id, length(body) FROM blob_uses JOIN blobs ON blobs.id = blob_id
    WHERE session_id = ? LIMIT ?"""
_ABANDONED = """DELETE FROM blobs WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_id = ?1)"""
_SOME_EXECUTIONS = """DELETE FROM executions WHERE session_id = ?1 AND number IN
    (SELECT number FROM executions WHERE session_id = ?1 LIMIT ?2)"""


def begin(db: sqlite3.Connection, session_id: int, *, by: str, reason: str) -> bool:
    """Remove the session's row and write its tombstone; False when there is no such session.

    Its other rows stay until `remove_some` has returned False.
    """
    # The rows of its events reference the session's row, and are removed after it.
    db.execute("PRAGMA foreign_keys = OFF")
    try:
        with transaction(db):
            found = db.execute(_TOMBSTONE, (session_id,)).fetchone()
            if found is None:
                return False
            tombstone = dict(zip(_TOLD, found[:5], strict=True))
            trail.append(db, PURGED, {**tombstone, "head": found[5].hex(), "by": by, "reason": reason})
            db.execute("INSERT INTO purges VALUES (?)", (session_id,))
            db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    finally:
        db.execute("PRAGMA foreign_keys = ON")
    return True


def begun(db: sqlite3.Connection) -> list[int]:
    """Return the sessions whose purge has begun but not finished."""
    return [session_id for (session_id,) in db.execute("SELECT session_id FROM purges ORDER BY session_id")]


def remove_some(db: sqlite3.Connection, session_id: int) -> bool:
    """Remove a limited part of the session's rows; return whether there may be more."""
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
        # Uses of blobs that are already missing, as in a damaged file.
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
    """Checkpoint the database's log and truncate it; False while others keep it in use.

    Does not wait for other connections. Most work is done while others write; they wait for the rest.
    """
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def end(db: sqlite3.Connection, session_ids: Collection[int]) -> None:
    """Note that these sessions are completely erased."""
    with transaction(db):
        db.executemany("DELETE FROM purges WHERE session_id = ?", [(number,) for number in session_ids])


def finish_all(db: sqlite3.Connection) -> None:
    """Finish all unfinished purges, for a caller that has the file to itself."""
    sessions = begun(db)
    for session_id in sessions:
        while remove_some(db, session_id):
            pass
    end(db, sessions)
