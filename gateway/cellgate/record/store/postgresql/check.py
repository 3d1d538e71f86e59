"""Checks and counts a record in PostgreSQL, for commands; a gateway may be using the record.

``checking`` has the checks; the rows are those of one moment.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from cellgate.errors import StorageError
from cellgate.record.findings import Finding
from cellgate.record.rows import LARGEST, EventRow, ExecutionRow, SessionRow
from cellgate.record.store.checking import CheckedRows, check_session, check_trail, sessions_of
from cellgate.record.store.postgresql import reads, statements
from cellgate.record.store.postgresql.opening import SCHEMA, is_former
from cellgate.record.store.postgresql.reads import DatabaseOrigins
from cellgate.record.store.postgresql.record_connection import (
    Connection,
    Hold,
    RecordAddress,
    connect,
    storage_error,
)
from cellgate.record.store.postgresql.schema import ONE_MOMENT
from cellgate.record.store.postgresql.tables import event_row
from cellgate.record.trail import TrailRow

BATCH = 256


@contextmanager
def command_connection(address: RecordAddress, hold: Hold = Hold.NOT) -> Iterator[Connection]:
    """Yield a connection for a command, without the time limits of a gateway's. Raises StorageError."""
    db = connect(address, hold)
    try:
        names, values = zip(*statements.FOR_COMMANDS, strict=True)
        db.execute(statements.SET, (list(names), list(values)))
        yield db
    except psycopg.Error as error:
        raise storage_error(error) from error
    finally:
        db.close()


@contextmanager
def reading(address: RecordAddress) -> Iterator[Connection]:
    """Yield a connection to an existing record, as of one moment. Raises StorageError."""
    with command_connection(address) as db:
        if not SCHEMA.is_made(db):
            raise StorageError(f"There is no record in the {address}")
        SCHEMA.check(db)
        with db.transaction():
            db.execute(ONE_MOMENT)
            yield db


def describe_database(address: RecordAddress) -> str:
    """Return a clause about the server and its record, for a gateway that would use it.

    Raises StorageError if none could: also for a user who may not make the tables that are missing.
    """
    with command_connection(address) as db:
        server = f"PostgreSQL {db.info.server_version // 10000}, {address}"
        if SCHEMA.is_made(db) and is_former(db):
            return f"{server}: has a record of an older version, which the next start brings up to date"
        if SCHEMA.is_made(db):
            SCHEMA.check(db)
            return f"{server}: has a record"
        row = db.execute(statements.MAY_MAKE_TABLES).fetchone()
        if row is None or not row[0]:
            raise StorageError(f"{server}: there is no record, and the user may not create a schema")
        return f"{server}: can keep a record, and has none yet"


class DatabaseRows(DatabaseOrigins, CheckedRows):
    """The rows of a connection's tables; its transaction must see one moment."""

    def sessions(self, after: int) -> list[SessionRow]:
        return reads.sessions(self.db, limit=BATCH, after=after)

    def rows(self, session_id: int) -> Iterator[EventRow]:
        after = -LARGEST
        while found := self.db.execute(
            statements.STORED_EVENTS, (session_id, after, BATCH), binary=True
        ).fetchall():
            yield from map(event_row, found)
            after = found[-1][1]

    def executions(self, session_id: int, after: int) -> list[ExecutionRow]:
        return reads.executions(self.db, session_id, BATCH, after)

    def trail(self) -> Iterator[TrailRow]:
        return all_entries(self.db, 0)

    def stray(self) -> str | None:
        for table, query in statements.STRAY.items():
            if (found := self.db.execute(query).fetchone()) is not None:
                return f"{table} were added, or moved, to session {found[0]}, which there is not"
        return None


def all_entries(db: Connection, after: int) -> Iterator[TrailRow]:
    """Yield the entries of the audit trail after a number."""
    more = True
    while more:
        rows, more = reads.trail_page(db, after, BATCH)
        yield from rows
        after = rows[-1].seq if rows else after


def check_database(address: RecordAddress) -> Iterator[Finding]:
    """Check the record: yield a finding for each session and the audit trail. Raises StorageError."""
    with reading(address) as db:
        yield from findings(db)


def findings(db: Connection) -> Iterator[Finding]:
    """Check the tables; the connection's transaction must see one moment."""
    rows = DatabaseRows(db)
    there: dict[int, tuple[str, str]] = {}
    for session in sessions_of(rows):
        there[session.id] = session.principal, session.key
        yield check_session(rows, session)
    yield check_trail(rows, there)
    if purges := db.execute(statements.PURGES).fetchall():
        yield Finding("purges", f"{len(purges)} that a gateway carries on with")


def statistics_of(address: RecordAddress) -> dict[str, int]:
    """Return the counts of the record's parts by name; sizes in bytes. Raises StorageError."""
    with reading(address) as db:
        counts = {}
        for name, query in statements.STATISTICS:
            row = db.execute(query).fetchone()
            counts[name] = 0 if row is None else int(row[0])
        return counts


def trail_of(address: RecordAddress, after: int = 0) -> Iterator[TrailRow]:
    """Yield the entries of the audit trail after a number. Raises StorageError."""
    with reading(address) as db:
        yield from all_entries(db, after)


def acts_of(address: RecordAddress) -> Generator[Mapping[str, Any], None, None]:
    """Yield fields of acts, newest first. Raises StorageError."""
    with reading(address) as db:
        before: int | None = None
        while found := reads.acts(db, before, BATCH):
            for before, entry in found:  # noqa: B007 - `before` is used after the loop
                yield entry
