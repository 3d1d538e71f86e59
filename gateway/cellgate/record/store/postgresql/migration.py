"""Moves a record from SQLite into PostgreSQL and back, for ``cellgate record migrate``.

No other program may use either record meanwhile. A record is copied row by row, unchanged: no body and no
hash is made anew. The copy is checked and counted before it counts as a record. The original is set aside,
not removed: two gateways that continue one record each would fork its chains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs
from psycopg import sql

from cellgate.errors import StorageError
from cellgate.record.findings import Finding
from cellgate.record.rows import SessionRow
from cellgate.record.store.checking import CheckedRows, executions_of, sessions_of
from cellgate.record.store.interface import FIRST_EPOCH
from cellgate.record.store.postgresql import check, statements, writes
from cellgate.record.store.postgresql.check import DatabaseRows, command_connection
from cellgate.record.store.postgresql.opening import SCHEMA
from cellgate.record.store.postgresql.record_connection import Connection, Hold, RecordAddress
from cellgate.record.store.postgresql.schema import ONE_MOMENT
from cellgate.record.store.postgresql.tables import session_values
from cellgate.record.store.sqlite.moving import MovingFile, moving_into, moving_out


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of a record's rows of each kind, and the heads of its chains, by the sessions' ids."""

    sessions: int
    executions: int
    events: int
    entries: int
    heads: tuple[tuple[int, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """A record that has been moved. `former`: the new name of the original."""

    counts: Counts
    former: str


def move_in(record: Path, address: RecordAddress) -> Moved:
    """Move the record at a path into an empty database. Raises StorageError if nothing was moved."""
    with moving_out(record) as source:
        _refuse_problems(source.findings(), f"The record {record}")
        counts = _copy_in(source, address)
    return Moved(counts, str(source.former))


def move_back(address: RecordAddress, record: Path) -> Moved:
    """Move the record in a database to a path. Raises StorageError if nothing was moved."""
    with command_connection(address, Hold.ALONE) as db:
        if not SCHEMA.is_made(db):
            raise StorageError(f"There is no record in the {address}")
        SCHEMA.check(db)
        for (session_id,) in db.execute(statements.PURGES).fetchall():
            while writes.remove_some(db, session_id):
                pass
        with moving_into(record) as target, db.transaction():
            db.execute(ONE_MOMENT)
            counts = _copy_out(db, target)
        former = f"cellgate_moved_{datetime.now(UTC).strftime('%Y%m%dt%H%M%Sz')}"
        db.execute(sql.SQL(statements.SET_ASIDE).format(sql.Identifier(former)))
    return Moved(counts, f"the schema {former} of the database")


def _copy_in(source: MovingFile, address: RecordAddress) -> Counts:
    """Copy all rows into an empty database, all or none."""
    with command_connection(address, Hold.ALONE) as db:
        if not SCHEMA.is_made(db):
            SCHEMA.make(db)
        SCHEMA.check(db)
        row = db.execute(statements.IS_EMPTY).fetchone()
        if row is None or not row[0]:
            raise StorageError(f"The {address} has a record already: use an empty database")
        with db.transaction():
            _copy(db, statements.COPY_SESSIONS, map(_values_of_session, sessions_of(source.rows)))
            for session in sessions_of(source.rows):
                events = map(structs.astuple, source.rows.rows(session.id))
                _copy(db, statements.COPY_EVENTS, events)
                executions = map(structs.astuple, executions_of(source.rows, session.id))
                _copy(db, statements.COPY_EXECUTIONS, executions)
            entries = ((row.seq, row.type, row.body, row.hash) for row in source.rows.trail())
            _copy(db, statements.COPY_TRAIL, entries)
            db.execute(statements.SET_BYTES)
            if last_id := source.last_id():
                db.execute(statements.SET_LAST_ID, (last_id,))
            _refuse_problems(check.findings(db), "The copy")
            counts = _compared(source.rows, DatabaseRows(db))
        db.execute(statements.ANALYZE)
    return counts


def _copy_out(db: Connection, target: MovingFile) -> Counts:
    """Copy all rows into a new file."""
    _refuse_problems(check.findings(db), "The record in the database")
    row = db.execute(statements.LAST_ID).fetchone()
    target.take_in(DatabaseRows(db), 0 if row is None else row[0])
    _refuse_problems(target.findings(), "The copy")
    return _compared(DatabaseRows(db), target.rows)


def _copy(db: Connection, statement: str, rows: Iterable[Sequence[object]]) -> None:
    with db.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def _values_of_session(row: SessionRow) -> tuple[object, ...]:
    return session_values(row, (row.head_seq, row.head), FIRST_EPOCH, 0)


def _compared(source: CheckedRows, target: CheckedRows) -> Counts:
    """Return the counts of both records. Raises StorageError if they differ."""
    counts = _count(source)
    if counts != _count(target):
        raise StorageError("The copy does not have all rows of the record; nothing was moved")
    return counts


def _count(rows: CheckedRows) -> Counts:
    heads: list[tuple[int, int, bytes]] = []
    executions = events = 0
    for session in sessions_of(rows):
        heads.append((session.id, session.head_seq, session.head))
        executions += sum(1 for _ in executions_of(rows, session.id))
        events += sum(1 for _ in rows.rows(session.id))
    return Counts(len(heads), executions, events, sum(1 for _ in rows.trail()), tuple(heads))


def _refuse_problems(findings: Iterable[Finding], what: str) -> None:
    for found in findings:
        if not found.valid:
            raise StorageError(f"{what} is not valid: {found.subject}: {found.problem}; nothing was moved")
