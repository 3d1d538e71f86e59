"""The SQL of the record: each statement that writes or reads rows, as a function of a connection.

It starts no threads and knows no event loop: ``journal`` calls it in its threads. Another database would be
another module with these functions. Nothing is committed here, except by `write`. Operations on whole records
are in ``migrations``, ``purge`` and ``upkeep``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import structs

from cellgate.errors import RecordDamaged, RecordGone, StorageError, StorageFull
from cellgate.record.chain import GENESIS, link
from cellgate.record.rows import FIGURES, EventRow, ExecutionRow, SessionRow
from cellgate.record.store.backlog import ROW_COST, Group, RefusedRows
from cellgate.record.store.sqlite import blobs, trail
from cellgate.record.store.sqlite.redo import encode_rows
from cellgate.record.store.sqlite.transactions import savepoint, snapshot, transaction
from cellgate.record.trail import BEGUN
from cellgate.wire.events import BranchedFrom
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import json_decoder

Sync = Literal["normal", "full"]


REFUSED = (
    RefusedRows,
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    ValueError,
    OverflowError,
    TypeError,
    RecursionError,
    msgspec.MsgspecError,
)
"""Errors that are caused by a row itself: retrying would not help."""

ROWS_OF_A_STATEMENT = 256
LAST = 2**63 - 1

_SESSION = ", ".join(SessionRow.__struct_fields__[:13])
_EXECUTION = ", ".join(ExecutionRow.__struct_fields__)
_EVENT = "session_id, seq, type, execution, body, hash, blobs"

_ORIGIN = "parent, branched_from, branched_seq, branched_head"
_INSERT_SESSION = f"""INSERT INTO sessions ({_SESSION}, folder, {_ORIGIN})
    VALUES ({", ".join("?" * 18)})"""  # noqa: S608
_UPDATE_SESSION = """
    UPDATE sessions SET kernel = ?, isolation = ?, state = ?, cause = ?, last_activity = ?,
        execution_count = ?, limits = ?, metadata = ?, environment = ? WHERE id = ?"""
_SAVE_EXECUTIONS = f"""INSERT INTO executions ({_EXECUTION}) VALUES {{}}
    ON CONFLICT (session_id, id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in ("last_seq", "status", "ended_at", *FIGURES))}"""  # noqa: S608
_APPEND = f"INSERT INTO events ({_EVENT}) VALUES {{}}"  # noqa: S608
_HEADS = "SELECT id, head_seq, head FROM sessions WHERE id IN ({})"
_SET_HEAD = "UPDATE sessions SET head_seq = ?, head = ? WHERE id = ? AND head_seq = ? AND head = ?"
_CONTINUED = """WITH RECURSIVE continued (id) AS (
    SELECT parent FROM sessions WHERE parent > 0 AND state <> 'ended'
    UNION SELECT parent FROM sessions JOIN continued USING (id) WHERE parent > 0) SELECT id FROM continued"""
_DESCENDANTS = """WITH RECURSIVE descendants (id) AS (
    SELECT id FROM sessions WHERE parent = ?
    UNION ALL SELECT sessions.id FROM sessions JOIN descendants ON parent = descendants.id LIMIT ?)
    SELECT id FROM descendants"""
_APPLIED = "UPDATE applied SET number = ?, complement = ?"
_KEEP = "INSERT INTO refused (session_id, at, reason, events, rows) VALUES (?, ?, ?, ?, ?)"

_decode = json_decoder(dict[str, Any]).decode


def storage_error(
    error: sqlite3.Error, record: Path | None = None, *, verified: bool = False
) -> StorageError:
    """Return a database error in the gateway's own form; see `RecordDamaged` for `verified`."""
    code = getattr(error, "sqlite_errorcode", None)
    # SHMSIZE: the index of the log could not grow, for which SQLite has a separate code.
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}:
        return StorageFull("There is no space left for the record; free some on the disk of the data folder")
    # `event_row` raises this class without a code, for a row whose parts have changed.
    ours = code is None and type(error) is sqlite3.DatabaseError
    if ours or (code is not None and code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}):
        name = "The record" if record is None else f"The record {record}"
        return RecordDamaged(name, error, verified=verified)
    if record is None:
        return StorageError(f"The record's database failed: {error}")
    return StorageError(f"The record {record} can't be used: {error}")


# ---- opening ----------------------------------------------------------------------------------------------


def open_reader(path: Path, mode: str = "ro", timeout: float = 5.0) -> sqlite3.Connection:
    """Return a connection to an existing file; by default it is read-only. Raises StorageError."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    try:
        return sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise storage_error(error) from error


@contextmanager
def reading(path: Path, *, verified: bool = False) -> Iterator[sqlite3.Connection]:
    """Read a record that a gateway may be using. Raises StorageError; see `RecordDamaged` for `verified`."""
    try:
        with closing(open_reader(path)) as db:
            yield db
    except sqlite3.Error as error:
        raise storage_error(error, path, verified=verified) from error


# ---- writing ----------------------------------------------------------------------------------------------


def write(
    db: sqlite3.Connection, group: Group, barred: Mapping[int, str], *, acknowledged: bool
) -> dict[int, str]:
    """Insert or replace sessions and executions, append events and note the number, in one transaction.

    If a row can't be stored, all rows of its session are left out, so that no other session is affected; so
    are the rows of `barred` sessions. Returns the reason for each session left out. If a session's rows were
    `acknowledged`, they are kept in the table `refused`.
    """
    if not group.concerns(barred):
        try:
            with transaction(db):
                _write(db, group)
                set_applied(db, group.number)
        except REFUSED:
            pass
        else:
            return {}
    with transaction(db):
        refused = put_apart(db, group, barred, acknowledged=acknowledged)
        set_applied(db, group.number)
    return refused


def put_apart(
    db: sqlite3.Connection, group: Group, barred: Mapping[int, str], *, acknowledged: bool = True
) -> dict[int, str]:
    """Write the rows session by session; like `write`, but inside a transaction of the caller."""
    refused: dict[int, str] = {}
    for session_id, part in group.by_session().items():
        if (reason := barred.get(session_id)) is None:
            try:
                with savepoint(db):
                    _write(db, part)
            except REFUSED as error:
                reason = in_words(error).encode("ascii", "backslashreplace").decode()
        if reason is not None:
            refused[session_id] = reason
            if acknowledged:
                moment = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
                db.execute(_KEEP, (session_id, moment, reason, len(part.events), encode_rows(part)))
    return refused


def not_following(db: sqlite3.Connection, group: Group) -> dict[int, str]:
    """Return the sessions of the group whose rows can't directly follow those in the tables, and why.

    For rows committed after lost ones: unless one of them is an event, whose hash would prove it, earlier
    rows of the session may be missing.
    """
    parts = group.by_session()
    heads = _heads(db, [*parts])
    found: dict[int, str] = {}
    for session_id, part in parts.items():
        row = part.sessions.get(session_id)
        head = None if row is None else (row.head_seq, row.head)
        if not part.events and head != heads.get(session_id):
            found[session_id] = "rows before these are lost"
    return found


def _write(db: sqlite3.Connection, group: Group) -> None:
    for row in group.sessions.values():
        if db.execute(_UPDATE_SESSION, _session_changes(row)).rowcount == 0:
            begun = {"session_id": row.id, "principal": row.principal, "session": row.key}
            trail.append(db, BEGUN, begun)
            insert_session(db, row)
    # Rows of a session are adjacent in the tables, so inserting them together is faster.
    executions = sorted(group.executions.values(), key=attrgetter("session_id"))
    _insert(db, _SAVE_EXECUTIONS, [*map(structs.astuple, executions)])
    if group.events:
        _append(db, sorted(group.events, key=attrgetter("session_id")))


def insert_session(db: sqlite3.Connection, row: SessionRow) -> None:
    """Insert a session's row, whose head is a chain's start."""
    db.execute(_INSERT_SESSION, (*_session_values(row), row.folder, *_origin_values(row)))


@dataclass(slots=True)
class _Move:
    """A chain's head: in the tables (`last`, `head`), and after the rows that are being appended."""

    last: int
    head: bytes
    seq: int
    hash: bytes


def _append(db: sqlite3.Connection, events: list[EventRow]) -> None:
    """Append events, each session's together. Raises RefusedRows unless they continue their chains.

    Each head is compared and set. Only the hash of a session's first row is checked against the head: the
    other rows were chained to it when they were made.
    """
    rows: list[tuple[object, ...]] = []
    heads = _heads(db, [*dict.fromkeys(event.session_id for event in events)])
    moves: dict[int, _Move] = {}
    for event in events:
        session_id = event.session_id
        seq = event.seq
        move = moves.get(session_id)
        if move is None:
            if session_id not in heads:
                raise RefusedRows("there is no such session")
            last, head = heads[session_id]
            if seq == last + 1 and link(head, event.body) != event.hash:
                raise RefusedRows(f"row {seq} does not follow from row {last} as it is recorded")
            move = _Move(last, head, last, head)
            moves[session_id] = move
        if seq != move.seq + 1:
            raise RefusedRows(f"row {seq} can't follow on row {move.seq}")
        move.seq = seq
        move.hash = event.hash
        body, uses = blobs.take_out(db, session_id, event.body)
        rows.append((session_id, seq, event.type, event.execution, body, event.hash, uses))
    _insert(db, _APPEND, rows)
    steps = [(move.seq, move.hash, number, move.last, move.head) for number, move in moves.items()]
    if db.executemany(_SET_HEAD, steps).rowcount != len(steps):
        raise RefusedRows("the head of the session is another")


def _heads(db: sqlite3.Connection, sessions: list[int]) -> dict[int, tuple[int, bytes]]:
    found: dict[int, tuple[int, bytes]] = {}
    for first in range(0, len(sessions), ROWS_OF_A_STATEMENT):
        some = sessions[first : first + ROWS_OF_A_STATEMENT]
        for number, seq, head in db.execute(_HEADS.format(", ".join("?" * len(some))), some):
            found[number] = seq, head
    return found


def _insert(db: sqlite3.Connection, statement: str, rows: list[tuple[object, ...]]) -> None:
    """Insert many rows by each statement: before and after each one, this thread must wait for the GIL."""
    for first in range(0, len(rows), ROWS_OF_A_STATEMENT):
        some = rows[first : first + ROWS_OF_A_STATEMENT]
        places = f"({', '.join('?' * len(some[0]))})"
        db.execute(statement.format(", ".join([places] * len(some))), [*chain.from_iterable(some)])


def _session_values(row: SessionRow) -> tuple[object, ...]:
    values = structs.astuple(row)
    return (*values[:10], *map(_json, values[10:13]))


def _session_changes(row: SessionRow) -> tuple[object, ...]:
    values = _session_values(row)
    return (*values[3:7], *values[8:], row.id)


def _origin(session: str, seq: int, head: str) -> BranchedFrom | None:
    return BranchedFrom(session=session, seq=seq, head=head) if session or seq or head else None


def _origin_values(row: SessionRow) -> tuple[object, ...]:
    origin = row.branched_from
    return (row.parent, "", 0, "") if origin is None else (row.parent, *structs.astuple(origin))


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


# ---- reading ----------------------------------------------------------------------------------------------


def applied(db: sqlite3.Connection) -> int:
    """Return the number of the last commit in the tables. Raises RecordDamaged if it has changed."""
    found = db.execute("SELECT number, complement FROM applied").fetchall()
    if len(found) == 1:
        number, complement = found[0]
        if isinstance(number, int) and isinstance(complement, int) and number == ~complement:
            return number
    raise RecordDamaged("The record", "the number of its last commit is not what it was")


def set_applied(db: sqlite3.Connection, number: int) -> None:
    """Note that the commits up to this number are in the tables; call it inside their transaction."""
    db.execute(_APPLIED, (number, ~number))


def expected_log(db: sqlite3.Connection) -> bytes | None:
    """Return the seed of the redo log that must exist, None when the last gateway ended in order."""
    found = db.execute("SELECT log FROM applied").fetchone()
    return found[0] if found and isinstance(found[0], bytes) else None


def expect_log(db: sqlite3.Connection, seed: bytes | None) -> None:
    """Note that a redo log with this seed may now have rows that the tables lack, or (None) that none has."""
    db.execute("UPDATE applied SET log = ?", (seed,))


def refused_sessions(db: sqlite3.Connection) -> dict[int, tuple[str, int]]:
    """Return sessions with acknowledged rows that are lost: the first reason, and the number of events."""
    found: dict[int, tuple[str, int]] = {}
    rows = db.execute("SELECT session_id, reason, events FROM refused ORDER BY id")
    for session_id, reason, events in rows:
        why, count = found.get(session_id, (reason, 0))
        found[session_id] = why, count + events
    return found


def last_session_id(db: sqlite3.Connection) -> int:
    """Return the highest id a session ever had, 0 before the first."""
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'sessions'").fetchone()
    return int(found[0]) if found else 0


def session(db: sqlite3.Connection, principal: str, key: str) -> SessionRow | None:
    """Return the session that the principal calls `key`."""
    return next(_sessions(db, "WHERE principal = ? AND key = ?", principal, key), None)


def session_by_id(db: sqlite3.Connection, session_id: int) -> SessionRow | None:
    """Return the session with this id."""
    return next(_sessions(db, "WHERE id = ?", session_id), None)


def descendants(db: sqlite3.Connection, session_id: int, limit: int) -> list[SessionRow]:
    """Return up to `limit` branches of a session, branches of these and so on, by id."""
    return list(_sessions(db, f"WHERE id IN ({_DESCENDANTS}) ORDER BY id", session_id, limit))


def sessions(
    db: sqlite3.Connection,
    principal: str | None = None,
    states: Collection[str] | None = None,
    *,
    limit: int = 100,
    after: int = 0,
    prefix: str = "",
    exact: bool = False,
    newest: bool = False,
) -> list[SessionRow]:
    """Return sessions as `Reads.sessions`."""
    clauses = ["id < ?" if newest else "id > ?"]
    parameters: list[object] = [after]
    if principal is not None:
        clauses.append("principal = ?")
        parameters.append(principal)
    if states is not None:
        clauses.append(f"state IN ({', '.join('?' * len(states))})")
        parameters.extend(states)
    if exact:
        clauses.append("key = ?")
        parameters.append(prefix)
    elif prefix:
        clauses.append("substr(key, 1, ?) = ?")
        parameters.extend((len(prefix), prefix))
    order = f"ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?"
    return list(_sessions(db, f"WHERE {' AND '.join(clauses)} {order}", *parameters, limit))


def unfinished_sessions(
    db: sqlite3.Connection, keys: Collection[tuple[str, str]] | None = None
) -> list[SessionRow]:
    """Return the sessions that have not ended, by id; None: those with any key."""
    found = _sessions(db, "WHERE state <> 'ended' ORDER BY id")
    return [row for row in found if keys is None or (row.principal, row.key) in keys]


def session_folders(db: sqlite3.Connection) -> list[str]:
    """Return the folder of each session from its row."""
    return [folder for (folder,) in db.execute("SELECT folder FROM sessions")]


def holds_folder(db: sqlite3.Connection, folder: str, but: int) -> bool:
    """Return whether another session than this one, not deleted, has its files in this folder."""
    query = """SELECT 1 FROM sessions WHERE folder = ? AND id <> ?
        AND NOT (state = 'ended' AND cause IS 'deleted') LIMIT 1"""
    return db.execute(query, (folder, but)).fetchone() is not None


def last_activity(db: sqlite3.Connection) -> str | None:
    """Return the time at which any session was last used, in the form of rows; None without sessions."""
    (found,) = db.execute("SELECT max(last_activity) FROM sessions").fetchone()
    return None if found is None else str(found)


def longest_ended(db: sqlite3.Connection, but: Collection[int] = ()) -> SessionRow | None:
    """Return the ended session that was unused for longest and that no live branch continues."""
    clause = f"WHERE state = 'ended' AND id NOT IN ({_CONTINUED}) ORDER BY last_activity, id"
    return next((row for row in _sessions(db, clause) if row.id not in but), None)


def _sessions(db: sqlite3.Connection, clause: str, *parameters: object) -> Iterator[SessionRow]:
    query = f"SELECT {_SESSION}, head_seq, head, folder, {_ORIGIN} FROM sessions {clause}"  # noqa: S608
    for values in db.execute(query, parameters):
        try:
            origin = _origin(*values[17:20])
            columns = [*values[:10], *map(_decode, values[10:13]), *values[13:17], origin]
            row = SessionRow(*columns)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise RecordDamaged("The record", error) from error
        yield row


def execution(db: sqlite3.Connection, session_id: int, execution_id: str) -> ExecutionRow | None:
    """Return one execution of a session."""
    return _execution(db, "id = ?", session_id, execution_id)


def execution_by_key(db: sqlite3.Connection, session_id: int, idempotency_key: str) -> ExecutionRow | None:
    """Return the newest execution that was requested under the key."""
    return _execution(db, "idempotency_key = ? ORDER BY number DESC", session_id, idempotency_key)


def last_execution(db: sqlite3.Connection, session_id: int) -> ExecutionRow | None:
    """Return the session's newest execution."""
    return _execution(db, "number > 0 ORDER BY number DESC", session_id)


def executions(
    db: sqlite3.Connection, session_id: int, limit: int = 100, after: int = 0, *, newest: bool = False
) -> list[ExecutionRow]:
    """Return executions as `Reads.executions`."""
    if newest:
        return _executions(db, "number < ? ORDER BY number DESC LIMIT ?", session_id, after, limit)
    return _executions(db, "number > ? ORDER BY number LIMIT ?", session_id, after, limit)


def execution_counts(db: sqlite3.Connection, session_ids: Sequence[int]) -> dict[int, int]:
    """Count the executions of each of these sessions; sessions without any are left out."""
    last = "SELECT number FROM executions WHERE session_id = ? ORDER BY number DESC LIMIT 1"
    found = ((each, db.execute(last, (each,)).fetchone()) for each in session_ids)
    return {each: row[0] for each, row in found if row is not None}


def unfinished_counts(db: sqlite3.Connection, session_ids: Sequence[int]) -> dict[int, int]:
    """Count the executions without a status of each of these sessions; sessions with none are left out."""
    count = "SELECT count(*) FROM executions WHERE session_id = ? AND status IS NULL"
    found = ((each, db.execute(count, (each,)).fetchone()[0]) for each in session_ids)
    return {each: number for each, number in found if number}


def unfinished_executions(db: sqlite3.Connection, session_id: int) -> list[ExecutionRow]:
    """Return a session's executions without a status, in their order."""
    return _executions(db, "status IS NULL ORDER BY number", session_id)


def _execution(db: sqlite3.Connection, clause: str, *parameters: object) -> ExecutionRow | None:
    found = _executions(db, f"{clause} LIMIT 1", *parameters)
    return found[0] if found else None


def _executions(db: sqlite3.Connection, clause: str, *parameters: object) -> list[ExecutionRow]:
    query = f"SELECT {_EXECUTION} FROM executions WHERE session_id = ? AND {clause}"  # noqa: S608
    return [ExecutionRow(*values) for values in db.execute(query, parameters)]


def is_there(db: sqlite3.Connection, session_id: int) -> bool:
    """Return whether there is a session with this id; a purge removes its row before all others."""
    return db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone() is not None


def last_event(db: sqlite3.Connection, session_id: int) -> tuple[int, bytes] | None:
    """Return the number and the hash of a session's last event as `Reads.last_event`."""
    query = "SELECT seq, hash FROM events WHERE session_id = ? ORDER BY seq DESC LIMIT 1"
    with snapshot(db):
        if not is_there(db, session_id):
            return None
        found: tuple[int, bytes] | None = db.execute(query, (session_id,)).fetchone()
    return found or (0, GENESIS)


def event_row(db: sqlite3.Connection, values: tuple[Any, ...]) -> EventRow:
    """Return the event of a stored row's columns. Raises sqlite3.DatabaseError if a part is missing."""
    session_id, seq, event_type, execution, body, digest, uses = values
    try:
        whole = blobs.put_back(db, body, uses)
    except ValueError as error:
        raise sqlite3.DatabaseError(f"row {seq} was changed: {error}") from error
    return EventRow(session_id, seq, event_type, execution, whole, digest)


def events_of_types(
    db: sqlite3.Connection, session_id: int, types: Collection[str], after: int = 0
) -> Iterator[EventRow]:
    """Yield a session's events of these types with a seq above `after`, in order."""
    query = f"""SELECT {_EVENT} FROM events WHERE session_id = ? AND seq > ?
        AND type IN ({", ".join("?" * len(types))}) ORDER BY seq"""  # noqa: S608
    with closing(db.execute(query, (session_id, after, *types))) as cursor:
        for values in cursor:
            yield event_row(db, values)


def stored_rows(db: sqlite3.Connection, session_id: int, first: int, last: int) -> Iterator[EventRow]:
    """Yield a session's rows from seq `first` to `last`, in order, as stored: with gaps."""
    query = f"SELECT {_EVENT} FROM events WHERE session_id = ? AND seq BETWEEN ? AND ? ORDER BY seq"  # noqa: S608
    with closing(db.execute(query, (session_id, first, last))) as cursor:
        for values in cursor:
            yield event_row(db, values)


def are_larger(db: sqlite3.Connection, session_id: int, size: int, after: int, until: int | None) -> bool:
    """Return whether these events take more than `size` bytes in memory."""
    where = "session_id = ? AND seq > ? AND seq <= ?"
    values = (session_id, after, LAST if until is None else until)
    query = f"SELECT TOTAL(LENGTH(body)) + {ROW_COST} * COUNT(*) FROM events WHERE {where}"  # noqa: S608
    (total,) = db.execute(query, values).fetchone()
    query = f"SELECT blobs FROM events WHERE {where} AND blobs IS NOT NULL"  # noqa: S608
    with closing(db.execute(query, values)) as cursor:
        for (uses,) in cursor:
            for length in blobs.lengths(db, uses):
                total += length
                if total > size:
                    return True
    return bool(total > size)


def events(
    db: sqlite3.Connection,
    session_id: int,
    after: int = 0,
    until: int | None = None,
    limit: int = 256,
    max_bytes: int = MIB,
) -> list[EventRow]:
    """Return events with `after` < seq <= `until`, in order, of at most `max_bytes`, or one.

    Raises RecordGone for events that a purge has not removed yet.
    """
    where = "session_id = ? AND seq > ? AND seq <= ?"
    query = f"SELECT {_EVENT} FROM events WHERE {where} ORDER BY seq LIMIT ?"  # noqa: S608
    values_of = (session_id, after, LAST if until is None else until, limit)
    found: list[EventRow] = []
    size = 0
    # The blobs of a row must be read from the same snapshot as the row.
    with snapshot(db), closing(db.execute(query, values_of)) as cursor:
        for values in cursor:
            row = event_row(db, values)
            size += len(row.body)
            if found and size > max_bytes:
                break
            found.append(row)
        if found and not is_there(db, session_id):
            raise RecordGone("The record of this session was purged while it was read")
    return found
