"""The tables of the record and the number of their schema.

A file has the number as `PRAGMA user_version`. ``opening`` makes the tables of an empty file, and puts the
rows of a redo log into them in the same transaction. ``schema`` reads and writes the rows.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from cellgate.errors import StorageError

APPLICATION_ID = 0x43454C47
"""Marks the file as Cellgate's ("CELG")."""

VERSION = 6
"""The number of the schema. Only unreleased versions wrote lower ones."""

_SCHEMA = """
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
    request_hash TEXT,
    PRIMARY KEY (session_id, number),
    UNIQUE (session_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX executions_of_key ON executions (session_id, idempotency_key, number)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_unfinished ON executions (session_id, number) WHERE status IS NULL;
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
"""


def is_foreign(db: sqlite3.Connection) -> bool:
    """Tell whether another program's tables are in the file."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return application != APPLICATION_ID and bool(tables or version)


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """Return the schema's number, 0 for an empty file. Raises StorageError for a foreign or newer one."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if is_foreign(db):
        raise StorageError(f"{path} is a database of something else; choose another data folder")
    if version > VERSION:
        raise StorageError(
            f"The record {path} has schema {version}, written by a newer Cellgate; this one knows none above"
            f" {VERSION}. Use the newer version, or another data folder"
        )
    if 0 < version < VERSION:
        raise StorageError(
            f"The record {path} has schema {version}, from before the first release; this Cellgate knows none"
            f" below {VERSION}. Use another data folder"
        )
    return version


def create(db: sqlite3.Connection) -> None:
    """Make the tables in an empty file. Call it inside a transaction."""
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
