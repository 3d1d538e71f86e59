"""The versions of the record's schema, and the step from each to the next.

`PRAGMA user_version` counts the steps that a file has had. All missing steps are one transaction, together
with the rows of the redo log (``opening``). ``schema`` reads and writes the newest schema.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from cellgate.errors import StorageError
from cellgate.record import trail

APPLICATION_ID = 0x43454C47
"""Marks the file as Cellgate's ("CELG")."""

_SCRIPTS = (
    """
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
        UNIQUE (principal, key)
    ) STRICT;
    CREATE INDEX sessions_of_principal ON sessions (principal, id);
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
        PRIMARY KEY (session_id, seq)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE sessions ADD COLUMN head_seq INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN head BLOB NOT NULL
        DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000';
    UPDATE sessions SET (head_seq, head) =
        (SELECT seq, hash FROM events WHERE session_id = sessions.id ORDER BY seq DESC LIMIT 1)
        WHERE EXISTS (SELECT 1 FROM events WHERE session_id = sessions.id);
    ALTER TABLE events ADD COLUMN blobs BLOB;
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
    """,
    """
    CREATE TABLE applied (number INTEGER NOT NULL) STRICT;
    INSERT INTO applied VALUES (0);
    """,
    """
    ALTER TABLE sessions ADD COLUMN folder TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE applied ADD COLUMN log BLOB;
    ALTER TABLE applied ADD COLUMN complement INTEGER NOT NULL DEFAULT 0;
    UPDATE applied SET complement = ~number;
    CREATE TABLE refused (
        id INTEGER PRIMARY KEY,
        session_id INTEGER NOT NULL,
        at TEXT NOT NULL,
        reason TEXT NOT NULL,
        events INTEGER NOT NULL,
        rows BLOB NOT NULL
    ) STRICT;
    CREATE TABLE purges (session_id INTEGER PRIMARY KEY) STRICT;
    CREATE INDEX sessions_ended ON sessions (last_activity, id) WHERE state = 'ended';
    """,
    """
    ALTER TABLE sessions ADD COLUMN parent INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN branched_from TEXT NOT NULL DEFAULT '';
    ALTER TABLE sessions ADD COLUMN branched_seq INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN branched_head TEXT NOT NULL DEFAULT '';
    CREATE INDEX branches ON sessions (parent, id) WHERE parent > 0;
    """,
)
"""From an empty file to the newest schema."""


def _begin_trail(db: sqlite3.Connection) -> None:
    """Enter records that are older than the trail as if they had begun with it."""
    for session in db.execute("SELECT id, principal, key FROM sessions ORDER BY id").fetchall():
        trail.begun(db, *session)


_STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {2: _begin_trail}
"""Steps that SQL alone can't do, by the version that they lead to."""

VERSION = len(_SCRIPTS)
"""The newest schema's number."""


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """The schema's number, 0 for an empty file. Raises StorageError for a foreign file or a newer schema."""
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (tables or version):
        raise StorageError(f"{path} is a database of something else; choose another data folder")
    if version > VERSION:
        raise StorageError(
            f"The record {path} has schema {version}, written by a newer Cellgate; this one knows none above"
            f" {VERSION}. Use the newer version, or another data folder"
        )
    return version


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring the file from this version to the newest schema; call it inside a transaction."""
    for number, script in enumerate(_SCRIPTS[version:], version + 1):
        for statement in script.split(";"):
            db.execute(statement)
        if (step := _STEPS.get(number)) is not None:
            step(db)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {number}")
