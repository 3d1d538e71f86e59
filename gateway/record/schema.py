"""All SQL of the record: the tables, their migrations, and every statement as a function of a connection.

It starts no threads and knows no event loop: ``journal`` calls it in threads of its own. Another database
would be another module with these functions. Statements are not committed here, except by `transaction`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from gateway.record import blobs, trail
from gateway.record.errors import StorageError, StorageFull
from gateway.record.group import Group
from gateway.record.migrations import migrate
from gateway.record.rows import EventRow, ExecutionRow, SessionRow
from gateway.record.transactions import savepoint, transaction

Sync = Literal["normal", "full"]

REFUSED = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    ValueError,
    OverflowError,
)
"""Errors that a row itself causes: trying again would not help."""

ROWS_OF_A_STATEMENT = 256
WAL_PAGES = 4000
WAL_BYTES = 64 * 1024 * 1024
LAST = 2**63 - 1

_SESSION = """id, principal, key, kernel, isolation, state, cause, created_at, last_activity, execution_count,
    limits, metadata, environment"""
_EXECUTION = """session_id, id, number, msg_id, first_seq, last_seq, status, created_at, idempotency_key,
    request_hash"""
_EVENT = "session_id, seq, type, execution, body, hash, blobs"

_INSERT_SESSION = f"INSERT INTO sessions ({_SESSION}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_UPDATE_SESSION = """
    UPDATE sessions SET kernel = ?, isolation = ?, state = ?, cause = ?, last_activity = ?,
        execution_count = ?, limits = ?, metadata = ?, environment = ? WHERE id = ?"""
_SAVE_EXECUTIONS = f"""INSERT INTO executions ({_EXECUTION}) VALUES {{}}
    ON CONFLICT (session_id, id) DO UPDATE SET last_seq = excluded.last_seq, status = excluded.status"""  # noqa: S608
_APPEND = f"INSERT INTO events ({_EVENT}) VALUES {{}}"  # noqa: S608
_HEAD = "UPDATE sessions SET head_seq = ?, head = ? WHERE id = ?"
_APPLIED = "UPDATE applied SET number = ?"

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def storage_error(error: sqlite3.Error) -> StorageError:
    """What the rest of the gateway learns of an error of the database."""
    # SHMSIZE: the index of the log could not grow; SQLite gives that a code of its own.
    if getattr(error, "sqlite_errorcode", 0) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}:
        return StorageFull("There is no space left for the record; free some on the disk of the data folder")
    return StorageError(f"The record's database failed: {error}")


# ---- opening ----------------------------------------------------------------------------------------------


def open_writer(path: Path, sync: Sync) -> sqlite3.Connection:
    """The connection that writes, of a file in the newest schema and readable by its owner only.

    Raises StorageError for a file that is no record, or of a newer schema.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    except OSError as error:
        raise StorageError(f"The record {path} can't be opened: {error.strerror}") from error
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        migrate(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {sync}")
        db.execute("PRAGMA foreign_keys = ON")
        # What is purged is gone from the file too, not only from its index.
        db.execute("PRAGMA secure_delete = ON")
        db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    except sqlite3.Error as error:
        db.close()
        raise StorageError(f"The record {path} can't be used: {error}") from error
    except BaseException:
        db.close()
        raise
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that can't write. The file must exist."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise storage_error(error) from error


# ---- writing ----------------------------------------------------------------------------------------------


def write(db: sqlite3.Connection, group: Group) -> list[str]:
    """Insert or replace sessions and executions and append events, in one transaction, and note its number.

    Rows that can't be stored are left out with all rows of their session, so that they cost no other session
    anything; returns what was wrong with them.
    """
    try:
        with transaction(db):
            _write(db, group)
            db.execute(_APPLIED, (group.number,))
    except REFUSED:
        return _write_apart(db, group)
    return []


def _write_apart(db: sqlite3.Connection, group: Group) -> list[str]:
    refused: list[str] = []
    with transaction(db):
        for session_id, part in group.by_session().items():
            try:
                with savepoint(db):
                    _write(db, part)
            except REFUSED as error:
                refused.append(f"session {session_id}: {error}")
        db.execute(_APPLIED, (group.number,))
    return refused


def _write(db: sqlite3.Connection, group: Group) -> None:
    for row in group.sessions.values():
        if db.execute(_UPDATE_SESSION, _session_changes(row)).rowcount == 0:
            trail.begun(db, row.id, row.principal, row.key)
            db.execute(_INSERT_SESSION, _session_values(row))
    # Rows of a session are next to each other in the tables, and are found sooner when they come so.
    executions = sorted(group.executions.values(), key=attrgetter("session_id"))
    _insert(db, _SAVE_EXECUTIONS, [*map(_execution_values, executions)])
    rows: list[tuple[object, ...]] = []
    heads: dict[int, tuple[int, bytes, int]] = {}
    for event in sorted(group.events, key=attrgetter("session_id")):
        body, uses = blobs.take_out(db, event.session_id, event.body)
        rows.append((event.session_id, event.seq, event.type, event.execution, body, event.hash, uses))
        heads[event.session_id] = event.seq, event.hash, event.session_id
    _insert(db, _APPEND, rows)
    db.executemany(_HEAD, heads.values())


def _insert(db: sqlite3.Connection, statement: str, rows: list[tuple[object, ...]]) -> None:
    """Many rows by each statement: before and after one, its thread has to wait for the event loop's."""
    for first in range(0, len(rows), ROWS_OF_A_STATEMENT):
        some = rows[first : first + ROWS_OF_A_STATEMENT]
        places = f"({', '.join('?' * len(some[0]))})"
        db.execute(statement.format(", ".join([places] * len(some))), [*chain.from_iterable(some)])


def _session_values(row: SessionRow) -> tuple[object, ...]:
    return (
        row.id,
        row.principal,
        row.key,
        row.kernel,
        row.isolation,
        row.state,
        row.cause,
        row.created_at,
        row.last_activity,
        row.execution_count,
        _json(row.limits),
        _json(row.metadata),
        _json(row.environment),
    )


def _session_changes(row: SessionRow) -> tuple[object, ...]:
    values = _session_values(row)
    return (*values[3:7], *values[8:], row.id)


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _execution_values(row: ExecutionRow) -> tuple[object, ...]:
    return (
        row.session_id,
        row.id,
        row.number,
        row.msg_id,
        row.first_seq,
        row.last_seq,
        row.status,
        row.created_at,
        row.idempotency_key,
        row.request_hash,
    )


# ---- reading ----------------------------------------------------------------------------------------------


def applied(db: sqlite3.Connection) -> int:
    """The number of the last commit that is in the tables."""
    (number,) = db.execute("SELECT number FROM applied").fetchone()
    return int(number)


def last_session_id(db: sqlite3.Connection) -> int:
    """The highest id a session ever had, 0 before the first."""
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'sessions'").fetchone()
    return found[0] if found else 0


def session(db: sqlite3.Connection, principal: str, key: str) -> SessionRow | None:
    """The session that the principal calls `key`."""
    return next(_sessions(db, "WHERE principal = ? AND key = ?", principal, key), None)


def sessions(
    db: sqlite3.Connection, principal: str | None, states: Collection[str] | None, limit: int, after: int
) -> list[SessionRow]:
    """Sessions with an id above `after`, by id; of all principals for None, in any state for None."""
    clauses = ["id > ?"]
    parameters: list[object] = [after]
    if principal is not None:
        clauses.append("principal = ?")
        parameters.append(principal)
    if states is not None:
        clauses.append(f"state IN ({', '.join('?' * len(states))})")
        parameters.extend(states)
    return list(_sessions(db, f"WHERE {' AND '.join(clauses)} ORDER BY id LIMIT ?", *parameters, limit))


def unfinished_sessions(db: sqlite3.Connection) -> list[SessionRow]:
    """Sessions that have not ended, by id."""
    return list(_sessions(db, "WHERE state <> 'ended' ORDER BY id"))


def longest_ended(db: sqlite3.Connection) -> SessionRow | None:
    """Of the sessions that have ended the one that was not used for longest."""
    return next(_sessions(db, "WHERE state = 'ended' ORDER BY last_activity, id LIMIT 1"), None)


def _sessions(db: sqlite3.Connection, clause: str, *parameters: object) -> Iterator[SessionRow]:
    query = f"SELECT {_SESSION}, head_seq, head FROM sessions {clause}"  # noqa: S608
    for values in db.execute(query, parameters):
        yield SessionRow(*values[:10], *map(_decode, values[10:13]), *values[13:])


def execution(db: sqlite3.Connection, session_id: int, execution_id: str) -> ExecutionRow | None:
    """One execution of a session."""
    return _execution(db, "id = ?", session_id, execution_id)


def execution_by_key(db: sqlite3.Connection, session_id: int, idempotency_key: str) -> ExecutionRow | None:
    """The newest execution that was requested under the key."""
    return _execution(db, "idempotency_key = ? ORDER BY number DESC", session_id, idempotency_key)


def last_execution(db: sqlite3.Connection, session_id: int) -> ExecutionRow | None:
    """The session's newest execution."""
    return _execution(db, "number > 0 ORDER BY number DESC", session_id)


def executions(db: sqlite3.Connection, session_id: int, limit: int, after: int) -> list[ExecutionRow]:
    """Executions of a session with a number above `after`, in their order."""
    return _executions(db, "number > ? ORDER BY number LIMIT ?", session_id, after, limit)


def unfinished_executions(db: sqlite3.Connection, session_id: int) -> list[ExecutionRow]:
    """Executions of a session without a status, in their order."""
    return _executions(db, "status IS NULL ORDER BY number", session_id)


def _execution(db: sqlite3.Connection, clause: str, *parameters: object) -> ExecutionRow | None:
    found = _executions(db, f"{clause} LIMIT 1", *parameters)
    return found[0] if found else None


def _executions(db: sqlite3.Connection, clause: str, *parameters: object) -> list[ExecutionRow]:
    query = f"SELECT {_EXECUTION} FROM executions WHERE session_id = ? AND {clause}"  # noqa: S608
    return [ExecutionRow(*values) for values in db.execute(query, parameters)]


def last_event(db: sqlite3.Connection, session_id: int) -> tuple[int, bytes] | None:
    """The sequence number and the hash of a session's last event."""
    query = "SELECT seq, hash FROM events WHERE session_id = ? ORDER BY seq DESC LIMIT 1"
    found: tuple[int, bytes] | None = db.execute(query, (session_id,)).fetchone()
    return found


def event_row(db: sqlite3.Connection, values: tuple[Any, ...]) -> EventRow:
    """A stored row's columns as the event they are. Raises sqlite3.DatabaseError when a part is gone."""
    session_id, seq, event_type, execution, body, digest, uses = values
    try:
        whole = blobs.put_back(db, body, uses)
    except ValueError as error:
        raise sqlite3.DatabaseError(f"row {seq} was changed: {error}") from error
    return EventRow(session_id, seq, event_type, execution, whole, digest)


class StoredRows:
    """The rows of a session, as ``survey`` and ``notebook`` read them: any time, one by one."""

    def __init__(self, db: sqlite3.Connection, session_id: int) -> None:
        self._db = db
        self._session_id = session_id

    def read(self, first: int, last: int) -> Iterator[EventRow]:
        """The rows from seq `first` to `last`, in order."""
        query = f"SELECT {_EVENT} FROM events WHERE session_id = ? AND seq BETWEEN ? AND ? ORDER BY seq"  # noqa: S608
        with closing(self._db.execute(query, (self._session_id, first, last))) as cursor:
            for values in cursor:
                yield event_row(self._db, values)


def events(
    db: sqlite3.Connection, session_id: int, after: int, until: int | None, limit: int, max_bytes: int
) -> list[EventRow]:
    """Events with `after` < seq <= `until`, in order, of at most `max_bytes`, but at least one."""
    where = "session_id = ? AND seq > ? AND seq <= ?"
    query = f"SELECT {_EVENT} FROM events WHERE {where} ORDER BY seq LIMIT ?"  # noqa: S608
    found: list[EventRow] = []
    size = 0
    with closing(db.execute(query, (session_id, after, LAST if until is None else until, limit))) as cursor:
        for values in cursor:
            row = event_row(db, values)
            size += len(row.body)
            if found and size > max_bytes:
                break
            found.append(row)
    return found
