"""A session read from the database and written out, part by part: notebook, audit trail and their check.

All functions belong into a thread of their own (``Journal.long_read``): they read a whole session, and hold
no more of it than one cell. They see the rows up to a given head and no later one, so that an export is of
one moment however long it takes. What a bundle holds besides is ``bundle``'s affair.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from gateway.record import chain
from gateway.record.errors import StorageError
from gateway.record.keys import SigningKey
from gateway.record.notebook import Export, Notebook
from gateway.record.rows import EventRow, SessionRow
from gateway.record.schema import StoredRows
from gateway.record.survey import Survey

PART = 256 * 1024
"""Bytes that a part has at least, but for the last."""


def read_notebook(db: sqlite3.Connection, session: SessionRow, until: int, export: Export) -> Notebook:
    """The notebook of the rows up to `until`. Raises StorageError when some are gone, as after a purge."""
    rows, survey = StoredRows(db, session.id), Survey()
    for row in rows.read(1, until):
        survey.add(row)
    if survey.seq != until:
        raise StorageError("The record of this session is not there any more")
    return Notebook(session, survey, rows, export)


def notebook_parts(
    db: sqlite3.Connection, session: SessionRow, until: int, export: Export, key: SigningKey | None
) -> Iterator[bytes]:
    """The sealed notebook as a file's bytes."""
    return in_parts(part.encode() for part in read_notebook(db, session, until, export).write(key))


def audit_parts(db: sqlite3.Connection, session: SessionRow, until: int) -> Iterator[bytes]:
    """The rows as NDJSON: each line has a row's hash and its exact bytes, see `audit_line`."""
    return in_parts(audit_line(row) for row in StoredRows(db, session.id).read(1, until))


def audit_line(row: EventRow) -> bytes:
    """The row as a line: ``{"hash":"<64 hex digits>","row":<the row's bytes as they were hashed>}``."""
    return b'{"hash":"%s","row":%s}\n' % (row.hash.hex().encode(), row.body)


def check(db: sqlite3.Connection, session: SessionRow, until: int, head: bytes) -> chain.Verification:
    """Whether the chain holds up to its head."""
    rows = StoredRows(db, session.id).read(1, until)
    return chain.verify(((row.seq, row.body, row.hash) for row in rows), head=head)


def in_parts(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of a good size."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PART:
            yield b"".join(held)
            held.clear()
            size = 0
    yield b"".join(held)
