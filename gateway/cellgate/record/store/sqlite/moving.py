"""Moves a whole record out of its file, or another record into a new file, while nobody else uses either.

The caller, ``postgresql.migration``, copies the rows unchanged. SQL for commands.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import structs

from cellgate.errors import StorageError, not_written
from cellgate.record.findings import Finding
from cellgate.record.rows import ExecutionRow
from cellgate.record.store.checking import CheckedRows, executions_of, sessions_of
from cellgate.record.store.sqlite import blobs, check, purge, schema
from cellgate.record.store.sqlite.backup import Copy, drafting, set_aside
from cellgate.record.store.sqlite.location import existing
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.store.sqlite.opening import open_copy, open_writer
from cellgate.record.store.sqlite.transactions import transaction

_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_EXECUTION = f"""INSERT INTO executions ({", ".join(ExecutionRow.__struct_fields__)})
    VALUES ({", ".join("?" * len(ExecutionRow.__struct_fields__))})"""  # noqa: S608 - constants
_HEAD = "UPDATE sessions SET head_seq = ?, head = ? WHERE id = ?"
_LAST_ID = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'sessions'"


class MovingFile:
    """A record in a move. `former`: the later name of its file, if it is moved out."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.rows: CheckedRows = check.StoredRows(db)
        self.former: Path | None = None
        self._db = db

    def last_id(self) -> int:
        """Return the highest id that a session ever had."""
        return schema.last_session_id(self._db)

    def findings(self) -> Iterator[Finding]:
        """Check the tables, as ``check`` does."""
        return check.findings(self._db)

    def take_in(self, rows: CheckedRows, last_id: int) -> None:
        """Insert all rows of another record, in one transaction. `last_id`: that record's."""
        db = self._db
        with transaction(db):
            for session in sessions_of(rows):
                schema.insert_session(db, session)
                db.execute(_HEAD, (session.head_seq, session.head, session.id))
                for row in rows.rows(session.id):
                    body, uses = blobs.take_out(db, session.id, row.body)
                    db.execute(_EVENT, (*structs.astuple(row)[:4], body, row.hash, uses))
                db.executemany(_EXECUTION, map(structs.astuple, executions_of(rows, session.id)))
            entries = ((row.seq, row.type, row.body, row.hash) for row in rows.trail())
            db.executemany("INSERT INTO trail VALUES (?, ?, ?, ?)", entries)
            if not db.execute(_LAST_ID, (last_id,)).rowcount:
                db.execute("INSERT INTO sqlite_sequence VALUES ('sessions', ?)", (last_id,))


@contextmanager
def moving_out(record: Path) -> Iterator[MovingFile]:
    """Yield the record at a path; its file is set aside at the end, unless the block raises an error.

    Raises StorageError, also if a gateway uses it.
    """
    held = RecordLock(existing(record))
    try:
        with closing(open_writer(held.record, "full")) as db, _errors_told(held.record):
            purge.finish_all(db)
            moving = MovingFile(db)
            yield moving
        try:
            with set_aside(held.record, "moved") as former:
                moving.former = former
        except OSError as error:
            failed = f"The record is moved, but {held.record} can't be renamed"
            raise not_written(error, failed, failed) from error
    finally:
        held.release()


@contextmanager
def moving_into(record: Path) -> Iterator[MovingFile]:
    """Yield a new, empty record; it gets this name at the end, unless the block raises an error.

    Raises StorageError, also if there is a record already.
    """
    held = RecordLock(record)
    try:
        if held.record.exists():
            raise StorageError(f"There is a record at {held.record} already: use another data folder")
        with drafting(held.record) as draft:
            with closing(open_copy(draft)) as db, _errors_told(draft):
                yield MovingFile(db)
            Copy(draft, held.record).publish(replace=False, aside=False)
    finally:
        held.release()


@contextmanager
def _errors_told(record: Path) -> Iterator[None]:
    """Turn SQLite's errors inside the block into StorageError, which names the record."""
    try:
        yield
    except sqlite3.Error as error:
        raise schema.storage_error(error, record) from error
