"""Opens a record in PostgreSQL: makes the tables in an empty database, and reads the record's state."""

from __future__ import annotations

from dataclasses import dataclass

from cellgate.errors import StorageError
from cellgate.record.store.postgresql import reads, statements
from cellgate.record.store.postgresql.record_connection import Connection


@dataclass(frozen=True, slots=True)
class Beginnings:
    """A record's state when it is opened: its unfinished purges, and the last use of any session."""

    purges: list[int]
    last_activity: str | None


def bring_up(db: Connection) -> Beginnings:
    """Make missing tables, and read the record's state. Raises StorageError for another schema."""
    if not has_tables(db):
        make_tables(db)
    check_version(db)
    purges = [session_id for (session_id,) in db.execute(statements.PURGES)]
    return Beginnings(purges, reads.last_activity(db))


def has_tables(db: Connection) -> bool:
    """Return whether the database has the tables of a record."""
    row = db.execute(statements.HAS_TABLES).fetchone()
    return row is not None and bool(row[0])


def make_tables(db: Connection) -> None:
    """Make the tables, unless another program has just done so."""
    with db.transaction():
        db.execute(statements.LOCK_MAKING)
        if not has_tables(db):
            for statement in statements.TABLES.split(";"):
                db.execute(statement)
            db.execute(statements.NOTE_VERSION, (statements.SCHEMA_VERSION,))


def check_version(db: Connection) -> None:
    """Check that this version can use the tables. Raises StorageError."""
    row = db.execute(statements.VERSION).fetchone()
    version = 0 if row is None else row[0]
    if version != statements.SCHEMA_VERSION:
        raise StorageError(
            f"The record in PostgreSQL has schema {version}, and this Cellgate knows only"
            f" {statements.SCHEMA_VERSION}: use the version of Cellgate that wrote it, or another database"
        )
