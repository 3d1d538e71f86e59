"""Opens a record in PostgreSQL: makes the tables in an empty database, and reads the record's state."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from psycopg import errors

from cellgate.record.store.postgresql import reads, statements
from cellgate.record.store.postgresql.record_connection import Connection
from cellgate.record.store.postgresql.schema import RECORD, Schema, make_tables
from cellgate_kernels.base.errors import in_words

logger = logging.getLogger(__name__)

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
        logger.info("There is no record yet: a new one begins in the database")
        SCHEMA.make(db)
    SCHEMA.check(db)
    _add_index(db)
    purges = [session_id for (session_id,) in db.execute(statements.PURGES)]
    return Beginnings(purges, reads.last_activity(db))


def _add_index(db: Connection) -> None:
    """Make the index that tables of an earlier version lack, if the gateway's user may do so."""
    row = db.execute(statements.HAS_UNFINISHED_INDEX).fetchone()
    if row is not None and row[0]:
        # Making it "if not exists" would wait for all writers, to find that it exists.
        return
    try:
        with db.transaction():
            make_tables(db, RECORD, statements.UNFINISHED_INDEX)
    except (errors.InsufficientPrivilege, errors.QueryCanceled, errors.LockNotAvailable) as error:
        logger.warning(
            "The record's table executions lacks an index, without which lists of sessions are slow, and it"
            " could not be made now (%s). Let the table's owner run, in the schema cellgate: %s",
            in_words(error),
            " ".join(statements.UNFINISHED_INDEX.split()),
        )
