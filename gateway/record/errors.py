"""What can go wrong with the record's storage; part of the tree that begins in ``kernels.errors``.

It is not the mapping to HTTP: that is ``gateway.errors``.

    CellgateError
    └── StorageError        storage_error  the record can't be read or written
        ├── StorageFull     storage_full   it can't be written for want of space
        ├── NoOpenFiles     storage_error  nothing can be opened at the moment
        ├── RecordDamaged   storage_error  what is stored can't be what was written
        ├── LogClosed       storage_error  something was said of a session that has ended
        ├── RecordGone      record_gone    what was read of it is not there any more
        └── NotRecorded     recording_failed  a session's rows were refused, nothing more of it is recorded
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from kernels.errors import CellgateError
from kernels.trees import NO_OPEN_FILES

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StorageError(CellgateError):
    """The record could not be opened, read or written; the message says what the storage answered."""

    reason = "storage_error"


class StorageFull(StorageError):
    """There is no space for the record: on the disk, or in memory while the disk takes nothing."""

    reason = "storage_full"


class NoOpenFiles(StorageError):
    """The gateway, or its machine, has no open file left. That passes: `retry_after` is in seconds."""

    retry_after = 5.0


class RecordDamaged(StorageError):
    """The record, called `record` here, says what no sound one says, or is none at all; `why` says which.

    `verified`: it is told to who checks the record at this moment.
    """

    def __init__(self, record: str, why: object, *, verified: bool = False) -> None:
        verify = "" if verified else "`cellgate verify --data-dir` tells what of it is whole; "
        super().__init__(
            f"{record} is damaged ({why}): {verify}`cellgate record restore` puts a backup in its place"
        )
        self.why = str(why)


class LogClosed(StorageError):
    """The session has ended, and its record may be another's to continue."""


class RecordGone(StorageError):
    """The session's record was purged while it was read; what was read of it so far is not the whole."""

    reason = "record_gone"


class NotRecorded(StorageError):
    """The record has refused rows of this session and takes no more of it. Others are not concerned."""

    reason = "recording_failed"


def is_full(error: OSError) -> bool:
    """Whether the file system refused for want of space."""
    return error.errno in _NO_ROOM


def not_written(error: OSError, full: str, failed: str) -> StorageError:
    """Turn an OSError into an error of ours: `full` if the disk is full, otherwise `failed` and the reason.

    This is the one place that decides what a refusal of the file system means.
    """
    if is_full(error):
        return StorageFull(full)
    kind = NoOpenFiles if error.errno in NO_OPEN_FILES else StorageError
    return kind(f"{failed}: {error.strerror or error}")


@contextmanager
def storage(failed: str, full: str = "There is no room on the gateway's disk") -> Iterator[None]:
    """Raise what the file system refuses inside as `not_written` does."""
    try:
        yield
    except OSError as error:
        raise not_written(error, full, failed) from error
