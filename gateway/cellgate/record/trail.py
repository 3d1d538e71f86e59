"""The installation's audit trail: one chain of events that concern whole records.

An entry says that a session's record was begun, or when, by whom and at which head it was purged. So a record
can't disappear without contradicting its entry, nor an entry without breaking the chain. Damage that cost
commits is an entry too. Events inside a session are in that session's own chain. This runs inside
transactions of ``schema``, ``migrations``, ``salvage`` and ``purge``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from cellgate.record.chain import GENESIS, link

BEGUN = "record_begun"
PURGED = "record_purged"
DAMAGED = "record_damaged"


@dataclass(frozen=True, slots=True)
class TrailRow:
    """One entry. `body`: its JSON as it is hashed and stored."""

    seq: int
    type: str
    body: bytes
    hash: bytes


def append(db: sqlite3.Connection, event_type: str, fields: Mapping[str, Any]) -> None:
    """Add an entry; call it inside a transaction."""
    last = db.execute("SELECT seq, hash FROM trail ORDER BY seq DESC LIMIT 1").fetchone()
    seq, head = last or (0, GENESIS)
    moment = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    body = msgspec.json.encode({"seq": seq + 1, "type": event_type, "at": moment, **fields})
    db.execute("INSERT INTO trail VALUES (?, ?, ?, ?)", (seq + 1, event_type, body, link(head, body)))


def begun(db: sqlite3.Connection, session_id: int, principal: str, key: str) -> None:
    """Note that this session's record was begun; call it inside a transaction."""
    append(db, BEGUN, {"session_id": session_id, "principal": principal, "session": key})


def damaged(db: sqlite3.Connection, fields: Mapping[str, Any]) -> None:
    """Note that commits were lost, or may have been; call it inside a transaction."""
    append(db, DAMAGED, fields)


def rows(db: sqlite3.Connection) -> Iterator[TrailRow]:
    """All entries, in order."""
    for values in db.execute("SELECT seq, type, body, hash FROM trail ORDER BY seq"):
        yield TrailRow(*values)
