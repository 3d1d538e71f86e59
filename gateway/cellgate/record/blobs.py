"""Equal parts of rows, such as an image that is shown a hundred times, are stored once.

A row's body is kept as it was made, byte for byte; but a long run of bytes in it that needs no escapes, as
base64 has them, goes into a table of its own and is put back when the row is read. What a body says is not
known here. It runs inside transactions of ``schema``.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from hashlib import sha256

LEAST = 4096
"""Bytes from which on a run is worth a place of its own."""

_STEP = 4 * LEAST
_USE = struct.Struct(">QQ")
_INTEGER = (1 << 63) - 1


def take_out(db: sqlite3.Connection, session_id: int, body: bytes) -> tuple[bytes, bytes | None]:
    """The body without its long runs, and where which of them belongs; the runs are stored."""
    if len(body) < LEAST:
        return body, None
    kept: list[bytes] = []
    uses: list[bytes] = []
    done = 0
    for start, end in long_runs(body):
        kept.append(body[done:start])
        uses.append(_USE.pack(start, _store(db, session_id, body[start:end])))
        done = end
    return (b"".join([*kept, body[done:]]), b"".join(uses)) if uses else (body, None)


def long_runs(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the runs of LEAST bytes and more begin and end.

    Each of them covers a multiple of LEAST, so nothing else is looked at: a text of ten million line feeds
    has as many short runs, and whoever looks at each keeps all others' commits waiting for seconds.
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
    """In steps: one search for either mark would let no other thread run before its end."""
    while place < len(body):
        step = place + _STEP
        quote = body.find(b'"', place, step)
        escape = body.find(b"\\", place, step if quote < 0 else quote)
        if max(quote, escape) >= 0:
            return quote if escape < 0 else escape
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
    """The sizes of what belongs into a body."""
    query = "SELECT LENGTH(body) FROM blobs WHERE id = ?"
    for at in range(0, len(uses) - _USE.size + 1, _USE.size):
        _, blob = _USE.unpack_from(uses, at)
        yield from db.execute(query, (blob & _INTEGER,)).fetchone() or ()


def put_back(db: sqlite3.Connection, kept: bytes, uses: bytes | None) -> bytes:
    """The body as it was made. Raises ValueError when what belongs into it is gone."""
    if uses is None:
        return kept
    if len(uses) % _USE.size:
        raise ValueError("the list of its parts is damaged")
    parts: list[bytes] = []
    done = size = 0
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
    """The ids of the runs that are not what they were stored as."""
    for blob, digest, body in db.execute("SELECT id, hash, body FROM blobs"):
        if sha256(body).digest() != digest:
            yield blob
