"""Opens a record for writing: makes the tables of a new one, and absorbs the rows of its redo log.

Both happen in one transaction. So if this version can't read the log, the start fails before any change, and
the version that wrote the log can still be started. The SQL is in ``schema`` and ``migrations``.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cellgate.errors import RecordDamaged, StorageError, not_written
from cellgate.record.store.sqlite import purge, salvage, schema
from cellgate.record.store.sqlite.migrations import VERSION, add_columns, create, fill, version_of
from cellgate.record.store.sqlite.schema import Sync
from cellgate.record.store.sqlite.transactions import transaction
from cellgate_kernels.base.errors import in_brief

logger = logging.getLogger(__name__)

WAL_PAGES = 4000
WAL_BYTES = 64 * 1024 * 1024


def open_writer(path: Path, sync: Sync) -> sqlite3.Connection:
    """Return a connection for writing, to a file that only its owner can read.

    The rows of a redo log are then in its tables. Raises StorageError for a file that is not a record, has
    another schema, or is too damaged to be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
    except OSError as error:
        raise StorageError(f"The record {path} can't be opened: {in_brief(error)}") from error
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise StorageError(f"The record {path} can't be opened: {error}") from error
    try:
        with damage_told(f"The record {path}"):
            bring_up_to_date(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {sync}")
        db.execute("PRAGMA foreign_keys = ON")
        # Purged bytes are overwritten in the file, not only unlinked from its tables.
        db.execute("PRAGMA secure_delete = ON")
        db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    except sqlite3.Error as error:
        db.close()
        raise schema.storage_error(error, path) from error
    except OSError as error:
        db.close()
        full = f"There is no space left to bring the record {path} up to date; free some on its disk"
        raise not_written(error, full, f"The files beside {path} can't be written") from error
    except BaseException:
        db.close()
        raise
    return db


@dataclass(frozen=True, slots=True)
class RecordState:
    """The state of a record when it is opened.

    `number`: the last commit's. `last_session`: the highest id a session ever had. `refused`: sessions whose
    acknowledged rows could not all be stored, and why. `purges`: begun but not finished ones.
    `last_activity`: when any session was last used, as in rows; None without sessions.
    """

    number: int
    last_session: int
    refused: dict[int, str]
    purges: list[int]
    last_activity: str | None


def beginnings(db: sqlite3.Connection) -> RecordState:
    """Read the record's state. Raises StorageError for a damaged record."""
    with damage_told("The record"):
        refused = {number: why for number, (why, _) in schema.refused_sessions(db).items()}
        number, last_id = schema.applied(db), schema.last_session_id(db)
        return RecordState(number, last_id, refused, purge.begun(db), schema.last_activity(db))


@contextmanager
def damage_told(record: str, *, verified: bool = False) -> Iterator[None]:
    """Turn errors from values that no sound record has into RecordDamaged; `verified`: see there."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise RecordDamaged(record, error, verified=verified) from error


def bring_up_to_date(db: sqlite3.Connection, path: Path) -> None:
    """Make missing tables and columns, and absorb the redo log.

    Raises StorageError, sqlite3.Error and OSError.
    """
    version = version_of(db, path, older=True)
    empty = not version
    older = 0 < version < VERSION
    seed = None if empty else schema.expected_log(db)
    found = salvage.look(path, seed)
    waits = found.there or found.last is not None or seed is not None
    if not (empty or older or waits):
        return
    with transaction(db):
        if older:
            logger.info("The record %s is brought up to date, which takes a while if it is large", path)
            add_columns(db)
        if empty:
            logger.info("There is no record yet: a new one begins in %s", path)
            create(db)
        if waits:
            salvage.take_in(db, path, found, expected=seed is not None)
            schema.expect_log(db, None)
        if older:
            # After the log's rows, which the older version wrote.
            fill(db)
    salvage.put_away(path)


def open_copy(path: Path) -> sqlite3.Connection:
    """Return a record that nobody else has open, brought up to date, in a single file without any log."""
    with closing(open_writer(path, "full")):
        pass
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = DELETE").fetchone()
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")
    except BaseException:
        db.close()
        raise
    return db
