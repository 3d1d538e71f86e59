"""The installation's audit trail: one chain of events that concern more than a session.

An entry says that a session's record was begun, or when, by whom and at which head it was purged. So a record
can't disappear without contradicting its entry, nor an entry without breaking the chain. Damage that cost
commits is an entry too. Other entries record acts of administrators and refusals (``trail_writer``). Events
inside a session are in that session's own chain. This runs inside transactions of ``schema``, ``migrations``,
``salvage`` and ``purge``; `add` has one of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from cellgate.record.chain import GENESIS, link
from cellgate.record.rows import LARGEST
from cellgate.record.store.sqlite.transactions import transaction
from cellgate.record.trail import ACT, PURGED, NewEntry, TrailRow
from cellgate_kernels.base.resources import MIB

PAGE_BYTES = MIB

_PAGE = "SELECT seq, type, body, hash FROM trail WHERE seq > ? ORDER BY seq LIMIT ?"
_ACTS = "SELECT seq, body FROM trail WHERE type = ? AND seq < ? ORDER BY seq DESC LIMIT ?"

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def append(db: sqlite3.Connection, event_type: str, fields: Mapping[str, Any]) -> None:
    """Add an entry; call it inside a transaction."""
    last = db.execute("SELECT seq, hash FROM trail ORDER BY seq DESC LIMIT 1").fetchone()
    seq, head = last or (0, GENESIS)
    moment = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    body = msgspec.json.encode({"seq": seq + 1, "type": event_type, "at": moment, **fields})
    db.execute("INSERT INTO trail VALUES (?, ?, ?, ?)", (seq + 1, event_type, body, link(head, body)))


def add(db: sqlite3.Connection, entries: Iterable[NewEntry], newest_act: int | None = None) -> bool:
    """Add these entries, or none of them, as `RecordStore.add_to_trail`."""
    with transaction(db):
        newest = acts(db, None, 1) if newest_act is not None else []
        if newest_act not in {None, newest[0][0] if newest else 0}:
            return False
        for entry in entries:
            append(db, entry.type, entry.fields)
    return True


def rows(db: sqlite3.Connection) -> Iterator[TrailRow]:
    """Yield all entries, in order."""
    for values in db.execute("SELECT seq, type, body, hash FROM trail ORDER BY seq"):
        yield TrailRow(*values)


def page(db: sqlite3.Connection, after: int, limit: int) -> tuple[list[TrailRow], bool]:
    """Return up to `limit` entries after a number, fewer if long, and whether there are more."""
    found: list[TrailRow] = []
    size = 0
    for values in db.execute(_PAGE, (after, limit + 1)):
        row = TrailRow(*values)
        size += len(row.body)
        if len(found) == limit or (found and size > PAGE_BYTES):
            return found, True
        found.append(row)
    return found, False


def tombstones(db: sqlite3.Connection, session_id: int) -> Iterator[dict[str, Any]]:
    """Yield the fields of entries about this session's purge."""
    for (body,) in db.execute("SELECT body FROM trail WHERE type = ?", (PURGED,)):
        told = _decode(body)
        if told["session_id"] == session_id:
            yield told


def acts(db: sqlite3.Connection, before: int | None, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Return the number and the body of entries as `Reads.acts`."""
    values = (ACT, LARGEST if before is None else before, limit)
    return [(seq, _decode(body)) for seq, body in db.execute(_ACTS, values)]
