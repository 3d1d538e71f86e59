"""Keeps long rows short: their long parts are stored apart, and equal parts once, such as an image that is
shown a hundred times.

A row's body is preserved byte for byte; but a long run of bytes without quotes and escapes, such as base64,
goes into a separate table and is put back when the row is read. So does long text between such runs. A long
row would slow down all others: the table is a tree of whole rows (WITHOUT ROWID), and SQLite reads all of a
row, with all its overflow pages, for each comparison with its key on the way to another. The meaning of a
body is not known here. This runs inside transactions of ``schema``.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Mapping
from hashlib import sha256

LEAST = 4096
"""Bytes of the shortest part that is stored apart; a row keeps fewer."""

_STEP = 4 * LEAST
_USE = struct.Struct(">QQ")
_INTEGER = (1 << 63) - 1


def take_out(db: sqlite3.Connection, session_id: int, body: bytes) -> tuple[bytes, bytes | None]:
    """Store the long parts of a body; return the rest, and the place of each part.

    Rest and places have less than LEAST bytes in all. A body that can't get that short is stored as one part.
    """
    if len(body) < LEAST:
        return body, None
    parts = [*_long_parts(body)]
    if len(body) - sum(end - start for start, end in parts) + _USE.size * len(parts) >= LEAST:
        parts = [(0, len(body))]
    kept: list[bytes] = []
    uses: list[bytes] = []
    done = 0
    for start, end in parts:
        kept.append(body[done:start])
        uses.append(_USE.pack(start, _store(db, session_id, body[start:end])))
        done = end
    kept.append(body[done:])
    return b"".join(kept), b"".join(uses)


def _long_parts(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of the long runs, and of equally long parts between them."""
    done = 0
    for start, end in (*long_runs(body), (len(body), len(body))):
        if start - done >= LEAST:
            yield done, start
        if end > start:
            yield start, end
        done = end


def long_runs(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of at least LEAST bytes.

    Each of them covers a multiple of LEAST, so only these places are examined: a text of ten million line
    feeds has as many short runs, and examining each would delay all other commits for seconds.
    """
    done = 0
    for place in range(0, len(body), LEAST):
        if place < done:
            continue
        before = max(done, place - LEAST)
        start = max(before - 1, body.rfind(b'"', before, place), body.rfind(b"\\", before, place)) + 1
        end = _end_of_run(body, place)
        if end - start >= LEAST:
            yield start, end
            done = end


def _end_of_run(body: bytes, place: int) -> int:
    """Search in steps: one long search would hold the GIL to its end."""
    while place < len(body):
        step = place + _STEP
        quote = body.find(b'"', place, step)
        limit = step if quote < 0 else quote
        escape = body.find(b"\\", place, limit)
        if escape >= 0:
            return escape
        if quote >= 0:
            return quote
        place = step
    return len(body)


def _store(db: sqlite3.Connection, session_id: int, run: bytes) -> int:
    digest = sha256(run).digest()
    found = db.execute("SELECT id FROM blobs WHERE hash = ?", (digest,)).fetchone()
    if found is None:
        found = (db.execute("INSERT INTO blobs (hash, body) VALUES (?, ?)", (digest, run)).lastrowid,)
    blob: int = found[0]
    db.execute("INSERT OR IGNORE INTO blob_uses (blob_id, session_id) VALUES (?, ?)", (blob, session_id))
    return blob


def lengths(db: sqlite3.Connection, uses: bytes) -> Iterator[int]:
    """Yield the sizes of the runs that belong to a body."""
    query = "SELECT LENGTH(body) FROM blobs WHERE id = ?"
    for at in range(0, len(uses) - _USE.size + 1, _USE.size):
        _, blob = _USE.unpack_from(uses, at)
        yield from db.execute(query, (blob & _INTEGER,)).fetchone() or ()


def size_of(uses: bytes, sizes: Mapping[int, int]) -> int:
    """Return the size of all runs that belong to a body; `sizes`: the stored runs' sizes, by id."""
    whole = len(uses) - len(uses) % _USE.size
    return sum(sizes.get(blob & _INTEGER, 0) for _, blob in _USE.iter_unpack(uses[:whole]))


def put_back(db: sqlite3.Connection, kept: bytes, uses: bytes | None) -> bytes:
    """Return the original body. Raises ValueError when one of its runs is missing."""
    if uses is None:
        return kept
    if len(uses) % _USE.size:
        raise ValueError("the list of its parts is damaged")
    parts: list[bytes] = []
    done = 0  # bytes of `kept` that are used
    size = 0  # bytes of the body so far
    for start, blob in _USE.iter_unpack(uses):
        found = db.execute("SELECT body FROM blobs WHERE id = ?", (blob & _INTEGER,)).fetchone()
        length = start - size
        if found is None or not 0 <= length <= len(kept) - done:
            raise ValueError("a part of it is gone")
        parts += (kept[done : done + length], found[0])
        done += length
        size = start + len(found[0])
    return b"".join([*parts, kept[done:]])


def damaged(db: sqlite3.Connection) -> Iterator[int]:
    """Yield the ids of the stored runs that have changed."""
    for blob, digest, body in db.execute("SELECT id, hash, body FROM blobs"):
        if sha256(body).digest() != digest:
            yield blob
