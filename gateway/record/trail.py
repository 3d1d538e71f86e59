"""The installation's audit trail: one chain of what happened to whole records; and how one is purged.

An entry says that a session's record was begun, or that it was purged, when, by whom and at which head. So a
record can't vanish without its entry being missed, nor the entry without breaking the chain. What happened
inside a session is that session's own chain. It runs inside transactions of ``schema`` and ``migrations``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.record.chain import GENESIS, link
from gateway.record.transactions import transaction

BEGUN = "record_begun"
PURGED = "record_purged"

_ABANDONED_BLOBS = """DELETE FROM blobs WHERE id IN (SELECT blob_id FROM blob_uses WHERE session_id = ?1)
    AND NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_id = blobs.id AND session_id <> ?1)"""


@dataclass(frozen=True, slots=True)
class TrailRow:
    """One entry. `body`: its JSON as it is hashed and stored."""

    seq: int
    type: str
    body: bytes
    hash: bytes


def append(db: sqlite3.Connection, event_type: str, fields: Mapping[str, Any]) -> None:
    """Add an entry; inside a transaction."""
    last = db.execute("SELECT seq, hash FROM trail ORDER BY seq DESC LIMIT 1").fetchone()
    seq, head = last or (0, GENESIS)
    moment = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    body = msgspec.json.encode({"seq": seq + 1, "type": event_type, "at": moment, **fields})
    db.execute("INSERT INTO trail VALUES (?, ?, ?, ?)", (seq + 1, event_type, body, link(head, body)))


def begun(db: sqlite3.Connection, session_id: int, principal: str, key: str) -> None:
    """Note that there is a record of this session from now on; inside a transaction."""
    append(db, BEGUN, {"session_id": session_id, "principal": principal, "session": key})


def rows(db: sqlite3.Connection) -> Iterator[TrailRow]:
    """All entries in their order."""
    for values in db.execute("SELECT seq, type, body, hash FROM trail ORDER BY seq"):
        yield TrailRow(*values)


def purge(db: sqlite3.Connection, session_id: int, *, by: str, reason: str) -> bool:
    """Remove all that is recorded of a session but for its tombstone here; False when there is nothing.

    The bytes are overwritten (``secure_delete``) once the log of the database has been folded in, which this
    asks for too.
    """
    with transaction(db):
        found = db.execute(
            "SELECT principal, key, created_at, head_seq, head FROM sessions WHERE id = ?", (session_id,)
        ).fetchone()
        if found is None:
            return False
        db.execute(_ABANDONED_BLOBS, (session_id,))
        for table in ("blob_uses", "events", "executions"):
            db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))  # noqa: S608
        db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
        principal, key, created_at, last_seq, head = found
        told = {"session_id": session_id, "principal": principal, "session": key, "created_at": created_at}
        append(db, PURGED, {**told, "rows": last_seq, "head": head.hex(), "by": by, "reason": reason})
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return True
