"""Opens a record in PostgreSQL: makes the tables in an empty database, and reads the record's state."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from psycopg import errors

from cellgate.errors import StorageError
from cellgate.record.facts import UNREADABLE, end_of
from cellgate.record.rows import FIGURES
from cellgate.record.store.postgresql import reads, statements
from cellgate.record.store.postgresql.record_connection import Connection
from cellgate.record.store.postgresql.schema import RECORD, Schema, lock_making, make_tables
from cellgate.record.store.postgresql.tables import columns
from cellgate.record.store.upgrade_progress import UpgradeProgress
from cellgate_kernels.base.errors import in_words

CELLS_AT_ONCE = 64
"""Cells that one step of an upgrade reads, with their code."""
_FILLED = ("ended_at", *FIGURES, "session", "number")

logger = logging.getLogger(__name__)

SCHEMA = Schema(
    "cellgate",
    RECORD,
    statements.TABLES,
    statements.NOTE_VERSION,
    statements.SCHEMA_VERSION,
    "The record in PostgreSQL has",
    "a gateway of this version brings an older one up to date when it starts; for a newer one use the version"
    " of Cellgate that wrote it, or another database",
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
    upgrade(db)
    SCHEMA.check(db)
    _add_index(db)
    purges = [session_id for (session_id,) in db.execute(statements.PURGES)]
    return Beginnings(purges, reads.last_activity(db))


def upgrade(db: Connection) -> None:
    """Bring the tables of the version before up to date, if they are that; other gateways wait meanwhile."""
    if not is_former(db):
        return
    try:
        with db.transaction():
            lock_making(db, RECORD)
            if is_former(db):
                logger.info("The record in PostgreSQL is brought up to date, which may take a while")
                for statement in statements.ADD_COLUMNS.split(";"):
                    db.execute(statement)
                _fill(db)
                db.execute(statements.NOTE_NEWER)
    except errors.InsufficientPrivilege as error:
        raise StorageError(
            "The record's tables in PostgreSQL are of an older Cellgate, and the gateway's user may not"
            f" change them ({in_words(error)}): start a gateway once as their owner"
        ) from error


def is_former(db: Connection) -> bool:
    """Return whether the tables are those of the version before, which `upgrade` brings up to date."""
    row = db.execute(statements.IS_FORMER).fetchone()
    return row is not None and bool(row[0])


def _fill(db: Connection) -> None:
    """Fill the new columns of cells that have ended, from their events."""
    after, progress = (0, 0), UpgradeProgress()
    while cells := db.execute(statements.ENDED_CELLS, (*after, CELLS_AT_ONCE), binary=True).fetchall():
        known: list[tuple[object, ...]] = []
        for session_id, number, queued, finished in cells:
            # `verify` reports events that are gone or can't be read; such a cell has no known end.
            with suppress(*UNREADABLE):
                if (told := end_of(queued, finished)) is not None:
                    known.append((*told, session_id, number))
        db.execute(statements.SET_ENDS, columns("", _FILLED, known))
        after = cells[-1][:2]
        progress.count(len(cells))


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
