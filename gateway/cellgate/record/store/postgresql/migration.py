"""Moves a record from SQLite into PostgreSQL and back, for ``cellgate record migrate``.

Nobody may use either meanwhile. A record is copied as it is, row by row: no body and no hash is made anew.
The copy is checked like any record and counted before it becomes one, and the original is set aside, not
removed: two gateways that go on with one record each would fork its chains.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs
from psycopg import sql

from cellgate.errors import StorageError, not_written
from cellgate.record.findings import Finding
from cellgate.record.rows import SessionRow
from cellgate.record.store.checking import CheckedRows, executions_of
from cellgate.record.store.interface import FIRST_EPOCH
from cellgate.record.store.postgresql import check, reads, statements, writes
from cellgate.record.store.postgresql.check import StoredRows, command_connection
from cellgate.record.store.postgresql.opening import check_version, has_tables, make_tables
from cellgate.record.store.postgresql.record_connection import Connection, Hold, RecordAddress
from cellgate.record.store.postgresql.tables import session_values
from cellgate.record.store.sqlite import check as sqlite_check
from cellgate.record.store.sqlite import intake, purge, schema
from cellgate.record.store.sqlite.backup import Copy, drafting, set_aside
from cellgate.record.store.sqlite.location import existing
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.store.sqlite.opening import open_copy, open_writer

BATCH = 256


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows a record has of each kind, and the heads of its chains, by the sessions' ids."""

    sessions: int
    executions: int
    events: int
    entries: int
    heads: tuple[tuple[int, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """A record that has been moved. `former`: what the original is called now."""

    counts: Counts
    former: str


def move_in(record: Path, address: RecordAddress) -> Moved:
    """Move the record at a path into an empty database. Raises StorageError, and changes nothing then."""
    held = RecordLock(existing(record))
    try:
        with closing(open_writer(held.record, "full")) as source, _errors_told(held.record):
            purge.finish_all(source)
            _refuse_problems(sqlite_check.findings(source), f"The record {held.record}")
            counts = _copy_in(source, address)
        try:
            with set_aside(held.record, "moved") as former:
                return Moved(counts, str(former))
        except OSError as error:
            failed = f"The record is moved, but {held.record} can't be renamed"
            raise not_written(error, failed, failed) from error
    finally:
        held.release()


def move_back(address: RecordAddress, record: Path) -> Moved:
    """Move the record in a database to a path. Raises StorageError, and changes nothing then."""
    held = RecordLock(record)
    try:
        if held.record.exists():
            raise StorageError(f"There is a record at {held.record} already: use another data folder")
        with command_connection(address, Hold.ALONE) as db:
            if not has_tables(db):
                raise StorageError(f"There is no record in the {address}")
            check_version(db)
            for (session_id,) in db.execute(statements.PURGES).fetchall():
                while writes.remove_some(db, session_id):
                    pass
            with drafting(held.record) as draft:
                counts = _copy_out(db, draft)
                Copy(draft, held.record).publish(replace=False, aside=False)
            former = f"cellgate_moved_{datetime.now(UTC).strftime('%Y%m%dt%H%M%Sz')}"
            db.execute(sql.SQL(statements.SET_ASIDE).format(sql.Identifier(former)))
        return Moved(counts, f"schema {former}")
    finally:
        held.release()


@contextmanager
def _errors_told(record: Path) -> Iterator[None]:
    """Turn errors of SQLite inside into StorageError, which names the record."""
    try:
        yield
    except sqlite3.Error as error:
        raise schema.storage_error(error, record) from error


def _copy_in(source: sqlite3.Connection, address: RecordAddress) -> Counts:
    """Copy all rows into an empty database, all or none."""
    with command_connection(address, Hold.ALONE) as db:
        if not has_tables(db):
            make_tables(db)
        check_version(db)
        row = db.execute(statements.IS_EMPTY).fetchone()
        if row is None or not row[0]:
            raise StorageError(f"The {address} has a record already: use an empty database")
        rows = sqlite_check.StoredRows(source)
        with db.transaction():
            _copy(db, statements.COPY_SESSIONS, map(_session_values, _sqlite_sessions(source)))
            for session in _sqlite_sessions(source):
                events = (structs.astuple(row) for row in rows.rows(session.id))
                _copy(db, statements.COPY_EVENTS, events)
                executions = map(structs.astuple, executions_of(rows, session.id))
                _copy(db, statements.COPY_EXECUTIONS, executions)
            entries = ((row.seq, row.type, row.body, row.hash) for row in rows.trail())
            _copy(db, statements.COPY_TRAIL, entries)
            db.execute(statements.SET_BYTES)
            if last := schema.last_session_id(source):
                db.execute(statements.SET_LAST_ID, (last,))
            _refuse_problems(check.findings(db), "The copy")
            counts = count(_sqlite_sessions(source), rows)
            _compare(counts, count(_database_sessions(db), StoredRows(db)))
        db.execute(statements.ANALYZE)
    return counts


def _copy_out(db: Connection, draft: Path) -> Counts:
    """Copy all rows into a new file."""
    with db.transaction():
        db.execute(statements.ONE_MOMENT)
        _refuse_problems(check.findings(db), "The record in the database")
        rows = StoredRows(db)
        with closing(open_copy(draft)) as target, _errors_told(draft):
            row = db.execute(statements.LAST_ID).fetchone()
            intake.take_in(target, _database_sessions(db), rows, last_id=0 if row is None else row[0])
            copied = sqlite_check.StoredRows(target)
            _refuse_problems(sqlite_check.findings(target), "The copy")
            counts = count(_database_sessions(db), rows)
            _compare(counts, count(_sqlite_sessions(target), copied))
    return counts


def count(sessions: Iterable[SessionRow], rows: CheckedRows) -> Counts:
    """Count the rows of a record, whose sessions are these."""
    heads: list[tuple[int, int, bytes]] = []
    executions = events = 0
    for session in sessions:
        heads.append((session.id, session.head_seq, session.head))
        executions += sum(1 for _ in executions_of(rows, session.id))
        events += sum(1 for _ in rows.rows(session.id))
    return Counts(len(heads), executions, events, sum(1 for _ in rows.trail()), tuple(heads))


def _compare(expected: Counts, found: Counts) -> None:
    if expected != found:
        raise StorageError("The copy has not all rows of the record: nothing was moved")


def _refuse_problems(findings: Iterable[Finding], what: str) -> None:
    for found in findings:
        if not found.valid:
            raise StorageError(f"{what} is not valid: {found.subject}: {found.problem}; nothing was moved")


def _sqlite_sessions(db: sqlite3.Connection) -> Iterator[SessionRow]:
    after = 0
    while found := schema.sessions(db, limit=BATCH, after=after):
        yield from found
        after = found[-1].id


def _database_sessions(db: Connection) -> Iterator[SessionRow]:
    after = 0
    while found := reads.sessions(db, limit=BATCH, after=after):
        yield from found
        after = found[-1].id


def _session_values(row: SessionRow) -> tuple[object, ...]:
    return session_values(row, (row.head_seq, row.head), FIRST_EPOCH, 0)


def _copy(db: Connection, statement: str, rows: Iterable[Sequence[object]]) -> None:
    with db.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
