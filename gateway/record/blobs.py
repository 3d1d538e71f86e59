"""Equal parts of rows, such as an image that is shown a hundred times, are stored once.

A row's body is kept as it was made, byte for byte; but a long run of bytes in it that needs no escapes, as
base64 has them, goes into a table of its own and is put back when the row is read. What a body says is not
known here. It runs inside transactions of ``schema``.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from hashlib import sha256

LEAST = 4096
"""Bytes from which on a run is worth a place of its own."""

_RUN = re.compile(rb'[^"\\]+')
_USE = struct.Struct(">QQ")


def take_out(db: sqlite3.Connection, session_id: int, body: bytes) -> tuple[bytes, bytes | None]:
    """The body without its long runs, and where which of them belongs; the runs are stored."""
    if len(body) < LEAST:
        return body, None
    kept: list[bytes] = []
    uses: list[bytes] = []
    done = 0
    for match in _RUN.finditer(body):
        if match.end() - match.start() < LEAST:
            continue
        kept.append(body[done : match.start()])
        uses.append(_USE.pack(match.start(), _store(db, session_id, match[0])))
        done = match.end()
    return (b"".join([*kept, body[done:]]), b"".join(uses)) if uses else (body, None)


def _store(db: sqlite3.Connection, session_id: int, run: bytes) -> int:
    digest = sha256(run).digest()
    found = db.execute("SELECT id FROM blobs WHERE hash = ?", (digest,)).fetchone()
    if found is None:
        found = (db.execute("INSERT INTO blobs (hash, body) VALUES (?, ?)", (digest, run)).lastrowid,)
    blob: int = found[0]
    db.execute("INSERT OR IGNORE INTO blob_uses (blob_id, session_id) VALUES (?, ?)", (blob, session_id))
    return blob


def put_back(db: sqlite3.Connection, kept: bytes, uses: bytes | None) -> bytes:
    """The body as it was made. A run that is gone is left out: the chain tells."""
    if uses is None:
        return kept
    parts: list[bytes] = []
    done = size = 0
    for start, blob in _USE.iter_unpack(uses[: len(uses) - len(uses) % _USE.size]):
        before = kept[done : done + max(0, start - size)]
        found = db.execute("SELECT body FROM blobs WHERE id = ?", (blob & (1 << 63) - 1,)).fetchone()
        run = b"" if found is None else bytes(found[0])
        parts += (before, run)
        done += len(before)
        size += len(before) + len(run)
    return b"".join([*parts, kept[done:]])
