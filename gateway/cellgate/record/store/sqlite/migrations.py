"""The tables of the record and the number of their schema, and what brings an older version's up to date.

A file has the number as `PRAGMA user_version`. ``opening`` makes the tables of an empty file, or adds what an
older version's lack, and puts the rows of a redo log into them in the same transaction. ``schema`` reads and
writes the rows.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from cellgate.errors import StorageError
from cellgate.record.facts import UNREADABLE, end_of
from cellgate.record.rows import FIGURES
from cellgate.record.store.sqlite import schema
from cellgate.record.store.upgrade_progress import UpgradeProgress

APPLICATION_ID = 0x43454C47
"""Marks the file as Cellgate's ("CELG")."""

VERSION = 7
"""The number of the schema."""
OLDEST = 6
"""The lowest number that is brought up to date. Only versions before the first release wrote lower ones."""

_ENDS = """
    ended_at TEXT,
    cpu_seconds REAL,
    memory_peak INTEGER,
    disk_written INTEGER,
    network_sent INTEGER,
    network_received INTEGER"""
_ENDED_INDEX = f"""CREATE INDEX executions_ended ON executions (ended_at, {", ".join(FIGURES)})
    WHERE ended_at IS NOT NULL"""
"""It has all that a sum reads: looking each cell up in the table takes several times as long."""

_SCHEMA = f"""
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    kernel TEXT NOT NULL,
    isolation TEXT NOT NULL,
    state TEXT NOT NULL,
    cause TEXT,
    created_at TEXT NOT NULL,
    last_activity TEXT NOT NULL,
    execution_count INTEGER NOT NULL,
    limits TEXT NOT NULL,
    metadata TEXT NOT NULL,
    environment TEXT NOT NULL,
    head_seq INTEGER NOT NULL DEFAULT 0,
    head BLOB NOT NULL DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000',
    folder TEXT NOT NULL,
    parent INTEGER NOT NULL DEFAULT 0,
    branched_from TEXT NOT NULL DEFAULT '',
    branched_seq INTEGER NOT NULL DEFAULT 0,
    branched_head TEXT NOT NULL DEFAULT '',
    UNIQUE (principal, key)
) STRICT;
CREATE INDEX sessions_of_principal ON sessions (principal, id);
CREATE INDEX sessions_ended ON sessions (last_activity, id) WHERE state = 'ended';
CREATE INDEX branches ON sessions (parent, id) WHERE parent > 0;
CREATE TABLE executions (
    session_id INTEGER NOT NULL REFERENCES sessions (id),
    id TEXT NOT NULL,
    number INTEGER NOT NULL,
    msg_id TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER,
    status TEXT,
    created_at TEXT NOT NULL,
    idempotency_key TEXT,
    request_hash TEXT,{_ENDS},
    PRIMARY KEY (session_id, number),
    UNIQUE (session_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX executions_of_key ON executions (session_id, idempotency_key, number)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_unfinished ON executions (session_id, number) WHERE status IS NULL;
{_ENDED_INDEX};
CREATE TABLE events (
    session_id INTEGER NOT NULL REFERENCES sessions (id),
    seq INTEGER NOT NULL,
    type TEXT NOT NULL,
    execution TEXT,
    body BLOB NOT NULL,
    hash BLOB NOT NULL,
    blobs BLOB,
    PRIMARY KEY (session_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE blobs (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, body BLOB NOT NULL) STRICT;
CREATE TABLE blob_uses (
    blob_id INTEGER NOT NULL,
    session_id INTEGER NOT NULL,
    PRIMARY KEY (blob_id, session_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uses_of_session ON blob_uses (session_id, blob_id);
CREATE TABLE trail (
    seq INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE TABLE applied (
    number INTEGER NOT NULL,
    log BLOB,
    complement INTEGER NOT NULL
) STRICT;
INSERT INTO applied VALUES (0, NULL, ~0);
CREATE TABLE refused (
    id INTEGER PRIMARY KEY,
    session_id INTEGER NOT NULL,
    at TEXT NOT NULL,
    reason TEXT NOT NULL,
    events INTEGER NOT NULL,
    rows BLOB NOT NULL
) STRICT;
CREATE TABLE purges (session_id INTEGER PRIMARY KEY) STRICT;
"""  # noqa: S608 - constants of this module

_ENDED_CELLS = """SELECT session_id, number, first_seq, last_seq FROM executions
    WHERE (session_id, number) > (?, ?) AND status IS NOT NULL ORDER BY session_id, number LIMIT ?"""
_SET_END = f"""UPDATE executions SET {", ".join(f"{name} = ?" for name in ("ended_at", *FIGURES))}
    WHERE session_id = ? AND number = ?"""  # noqa: S608 - constants


def is_foreign(db: sqlite3.Connection) -> bool:
    """Tell whether another program's tables are in the file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return application != APPLICATION_ID and bool(tables or version)


def version_of(db: sqlite3.Connection, path: Path, *, older: bool = False) -> int:
    """Return the schema's number, 0 for an empty file. Raises StorageError for a foreign or newer one.

    `older`: whether one that can be brought up to date is good as well.
    """
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if is_foreign(db):
        raise StorageError(f"{path} is a database of something else; choose another data folder")
    if version > VERSION:
        raise StorageError(
            f"The record {path} has schema {version}, written by a newer Cellgate; this one knows none above"
            f" {VERSION}. Use the newer version, or another data folder"
        )
    if 0 < version < OLDEST:
        raise StorageError(
            f"The record {path} has schema {version}, from before the first release; this Cellgate knows none"
            f" below {OLDEST}. Use another data folder"
        )
    if 0 < version < VERSION and not older:
        raise StorageError(
            f"The record {path} has schema {version}, of an older Cellgate: a gateway of this version brings"
            f" it up to date when it starts"
        )
    return version


def create(db: sqlite3.Connection) -> None:
    """Make the tables in an empty file. Call it inside a transaction."""
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def add_columns(db: sqlite3.Connection) -> None:
    """Add to an older version's tables what they lack, empty. Call it inside a transaction, then `fill`."""
    for column in _ENDS.split(","):
        db.execute(f"ALTER TABLE executions ADD COLUMN {column}")


def fill(db: sqlite3.Connection) -> None:
    """Fill what `add_columns` added from the events, and note the new number; in the same transaction."""
    after, progress = (0, 0), UpgradeProgress()
    while cells := db.execute(_ENDED_CELLS, (*after, schema.ROWS_OF_A_STATEMENT)).fetchall():
        known = []
        for session_id, number, first, last in cells:
            # `verify` reports rows that are gone or can't be read; such a cell has no known end.
            with suppress(sqlite3.DatabaseError, *UNREADABLE):
                queued = b"".join(row.body for row in schema.stored_rows(db, session_id, first, first))
                finished = b"".join(row.body for row in schema.stored_rows(db, session_id, last, last))
                if (told := end_of(queued, finished)) is not None:
                    known.append((*told, session_id, number))
        db.executemany(_SET_END, known)
        after = cells[-1][:2]
        progress.count(len(cells))
    db.execute(_ENDED_INDEX)
    db.execute(f"PRAGMA user_version = {VERSION}")
