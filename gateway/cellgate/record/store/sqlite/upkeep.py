"""The upkeep of a record: its size, the next session's record to remove, and the file's compaction.

``purge`` removes a session's record and leaves a tombstone; ``sessions.retention`` decides when. This is SQL
for threads of ``journal``, or for a command that has the file to itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellgate.record.rows import SessionRow
from cellgate.record.store.sqlite import blobs, purge, schema, trail
from cellgate.record.store.sqlite.location import existing
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.store.sqlite.opening import open_writer
from cellgate.record.store.sqlite.transactions import transaction
from cellgate.record.trail import TrailRow

_BATCH = 256
_PAGES = ("page_count", "freelist_count", "page_size")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Sizes of a record. `event_bytes`: rows as stored, without `blob_bytes`; `free_bytes`: in the file."""

    sessions: int
    open_sessions: int
    executions: int
    events: int
    event_bytes: int
    blobs: int
    blob_bytes: int
    purged: int
    trail_entries: int
    file_bytes: int
    free_bytes: int


def statistics(db: sqlite3.Connection) -> Statistics:
    """Return the statistics of the record; reads all of it."""
    queries = (
        "count(*) FROM sessions",
        "count(*) FROM sessions WHERE state <> 'ended'",
        "count(*) FROM executions",
        "count(*) FROM events",
        "sum(length(body)) FROM events",
        "count(*) FROM blobs",
        "sum(length(body)) FROM blobs",
        "count(*) FROM trail WHERE type = 'record_purged'",
        "count(*) FROM trail",
        "page_count * page_size FROM pragma_page_count, pragma_page_size",
        "freelist_count * page_size FROM pragma_freelist_count, pragma_page_size",
    )
    return Statistics(*(db.execute(f"SELECT {each}").fetchone()[0] or 0 for each in queries))


def record_sizes(db: sqlite3.Connection) -> dict[str, int]:
    """Return the bytes of each principal's events, equal parts counted each time; reads every row."""
    principals = dict(db.execute("SELECT id, principal FROM sessions"))
    blob_sizes = dict(db.execute("SELECT id, length(body) FROM blobs"))
    sizes: dict[str, int] = {}
    totals = db.execute("SELECT session_id, sum(length(body)) FROM events GROUP BY session_id")
    for session_id, size in totals:
        if (principal := principals.get(session_id)) is not None:
            sizes[principal] = sizes.get(principal, 0) + size
    for session_id, uses in db.execute("SELECT session_id, blobs FROM events WHERE blobs IS NOT NULL"):
        if (principal := principals.get(session_id)) is not None:
            sizes[principal] += blobs.size_of(uses, blob_sizes)
    return sizes


def record_size(db: sqlite3.Connection, session_id: int) -> int:
    """Return the size of one session's record; see `record_sizes`."""
    query = "SELECT sum(length(body)) FROM events WHERE session_id = ?"
    (size,) = db.execute(query, (session_id,)).fetchone()
    query = """SELECT blob_id, length(body) FROM blob_uses JOIN blobs ON blobs.id = blob_id
        WHERE session_id = ?"""
    blob_sizes = dict(db.execute(query, (session_id,)))
    query = "SELECT blobs FROM events WHERE session_id = ? AND blobs IS NOT NULL"
    taken_out = sum(blobs.size_of(uses, blob_sizes) for (uses,) in db.execute(query, (session_id,)))
    return (size or 0) + taken_out


def overdue(
    db: sqlite3.Connection, before: str | None, most_bytes: int | None, but: Collection[int] = ()
) -> tuple[SessionRow, str] | None:
    """Return the ended session whose record should go first, and why; None when all may stay.

    It is the session unused for longest, if it was last used `before` a time, or if the record uses more than
    `most_bytes` of the file.
    """
    found = schema.longest_ended(db, but)
    if found is None:
        return None
    if before is not None and found.last_activity < before:
        return found, "retention_age"
    pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES)
    if most_bytes is not None and (pages - free) * size > most_bytes:
        return found, "retention_size"
    return None


@contextmanager
def alone(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a record that no gateway uses. Raises StorageError if one does."""
    existing(path)
    held = RecordLock(path)
    try:
        with closing(open_writer(held.record, "full")) as db:
            purge.finish_all(db)
            yield db
    except sqlite3.Error as error:
        raise schema.storage_error(error, held.record) from error
    finally:
        held.release()


def statistics_of(path: Path) -> Statistics:
    """Return the statistics of a record, which a gateway may be using. Raises StorageError."""
    with schema.reading(existing(path)) as db:
        return statistics(db)


def trail_of(path: Path, after: int = 0) -> Iterator[TrailRow]:
    """Yield audit entries after a number of a record that a gateway may use. Raises StorageError."""
    with schema.reading(existing(path)) as db:
        more = True
        while more:
            rows, more = trail.page(db, after, _BATCH)
            yield from rows
            after = rows[-1].seq if rows else after


def acts_of(path: Path) -> Generator[Mapping[str, Any], None, None]:
    """Yield fields of acts, newest first, of a record that a gateway may use. Raises StorageError."""
    with schema.reading(existing(path)) as db:
        before: int | None = None
        while found := trail.acts(db, before, _BATCH):
            for before, entry in found:  # noqa: B007 - it is used after the loop
                yield entry


def compact(db: sqlite3.Connection) -> int:
    """Store the long parts of old rows apart, then release free space; return how many rows changed.

    Earlier versions kept all of a row in place, or all but its long runs. Compaction temporarily needs free
    space of about the record's size.
    """
    changed = 0
    after = (-1, -1)
    while rows := _long(db, after):
        with transaction(db):
            for session_id, seq in rows:
                key = (session_id, seq)
                query = "SELECT body, blobs FROM events WHERE session_id = ? AND seq = ?"
                former = db.execute(query, key).fetchone()
                with suppress(ValueError):  # `verify` reports a row whose parts are gone
                    kept, uses = blobs.take_out(db, session_id, blobs.put_back(db, *former))
                    changed += 1
                    query = "UPDATE events SET body = ?, blobs = ? WHERE session_id = ? AND seq = ?"
                    db.execute(query, (kept, uses, *key))
        after = rows[-1]
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return changed


def _long(db: sqlite3.Connection, after: tuple[int, int]) -> list[tuple[int, int]]:
    query = """SELECT session_id, seq FROM events WHERE (session_id, seq) > (?, ?)
        AND length(body) + ifnull(length(blobs), 0) >= ? ORDER BY session_id, seq LIMIT ?"""
    return db.execute(query, (*after, blobs.LEAST, _BATCH)).fetchall()
