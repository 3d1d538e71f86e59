"""Finds a record's real path.

SQLite follows a link at a record's path and keeps its own log beside the target. So all other files of a
record (redo log, lock, files set aside) are beside the target too. A journal, a check and a backup each
resolve the path here first, and then use only the result.
"""

from __future__ import annotations

import stat
from pathlib import Path

from cellgate.errors import StorageError
from cellgate.record.store.sqlite.redo import beside, last_beside
from cellgate_kernels.base.errors import in_brief

RECORD = "record.sqlite3"
"""The record's name in a data folder."""


def wal_beside(record: Path) -> Path:
    """Return the path of SQLite's own log of the record."""
    return record.with_name(record.name + "-wal")


def resolved(record: Path) -> Path:
    """Return the record's own file, also where there is a link at its path.

    Raises StorageError for a dangling link, because a new record would replace one on a missing disk, and for
    files that were left beside the link when the record was moved.
    """
    try:
        if not record.is_symlink():
            return record
    except OSError as error:
        raise _unreadable(record, error) from error
    try:
        target = record.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise StorageError(
            f"The record {record} is a link to {record.readlink()}, which is not there; mount its disk, or"
            " remove the link"
        ) from error
    for place in (wal_beside, beside, last_beside):
        stray = place(record)
        if stray.is_file() and not stray.is_symlink():
            raise StorageError(
                f"The record {record} is a link to {target}, but {stray.name} lies beside the link. It holds"
                f" what was committed last: move it to {place(target)}"
            )
    return target


def existing(record: Path, what: str = "record at") -> Path:
    """Resolve an existing record's path, called `what` in the StorageError if it can't be seen."""
    record = resolved(record)
    if not stat.S_ISREG(mode_of(record)):
        raise StorageError(f"There is no {what} {record}")
    return record


def mode_of(path: Path) -> int:
    """Return the kind and mode of the file at a path, 0 if there is none. Raises StorageError."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} can't be read: {in_brief(error)}")
