"""What can go wrong with the record's storage; part of the tree that begins in ``kernels.errors``.

It is not the mapping to HTTP: that is ``gateway.errors``.

    CellgateError
    └── StorageError        storage_error  the record can't be read or written
        └── StorageFull     storage_full   it can't be written for want of space
"""

from __future__ import annotations

import errno

from kernels.errors import CellgateError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StorageError(CellgateError):
    """The record could not be opened, read or written; the message says what the storage answered."""

    reason = "storage_error"


class StorageFull(StorageError):
    """There is no space for the record: on the disk, or in memory while the disk takes nothing."""

    reason = "storage_full"


def not_written(error: OSError, full: str, failed: str) -> StorageError:
    """What it means that a file could not be written: `full` says it for want of space, else `failed`."""
    return StorageFull(full) if error.errno in _NO_ROOM else StorageError(f"{failed}: {error.strerror}")
