"""Where a record really is.

SQLite follows a link at a record's path and keeps its own log beside the file that the link leads to. So all
else that belongs to a record (redo log, lock, what is set aside) is beside that file too, whoever opens it: a
journal, a check, a backup. Each of them asks here first, and from then on knows that path alone.
"""

from __future__ import annotations

from pathlib import Path

from cellgate.record.redo import beside, last_beside
from cellgate.wire.errors import StorageError

RECORD = "record.sqlite3"
"""The record's name in a data folder."""


def wal_beside(record: Path) -> Path:
    """Where SQLite's own log of the record is."""
    return record.with_name(record.name + "-wal")


def resolved(record: Path) -> Path:
    """The file that the record is, also where there is a link at its path.

    Raises StorageError for a link that leads to nothing, because a new record would be begun in the place of
    one whose disk is missing, and for files that were left beside the link when the record was moved.
    """
    if not record.is_symlink():
        return record
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
