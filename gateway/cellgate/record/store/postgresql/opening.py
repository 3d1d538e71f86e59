"""Opens a record in PostgreSQL: makes the tables in an empty database, and reads the record's state."""

from __future__ import annotations

from dataclasses import dataclass

from cellgate.record.store.postgresql import reads, statements
from cellgate.record.store.postgresql.record_connection import Connection
from cellgate.record.store.postgresql.schema import RECORD, Schema

SCHEMA = Schema(
    "cellgate",
    RECORD,
    statements.TABLES,
    statements.NOTE_VERSION,
    statements.SCHEMA_VERSION,
    "The record in PostgreSQL has",
    "use the version of Cellgate that wrote it, or another database",
)


@dataclass(frozen=True, slots=True)
class Beginnings:
    """A record's state when it is opened: its unfinished purges, and the last use of any session."""

    purges: list[int]
    last_activity: str | None


def bring_up(db: Connection) -> Beginnings:
    """Make missing tables, and read the record's state. Raises StorageError for another schema."""
    if not SCHEMA.is_made(db):
        SCHEMA.make(db)
    SCHEMA.check(db)
    purges = [session_id for (session_id,) in db.execute(statements.PURGES)]
    return Beginnings(purges, reads.last_activity(db))
