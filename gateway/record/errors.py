"""What can go wrong with the record's storage; part of the tree that begins in ``kernels.errors``.

It is not the mapping to HTTP: that is ``gateway.errors``.

    CellgateError
    └── StorageError        storage_error  the record can't be read or written
        └── StorageFull     storage_full   it can't be written for want of space
"""

from __future__ import annotations

from kernels.errors import CellgateError


class StorageError(CellgateError):
    """The record could not be opened, read or written; the message says what the storage answered."""

    reason = "storage_error"


class StorageFull(StorageError):
    """There is no space for the record: on the disk, or in memory while the disk takes nothing."""

    reason = "storage_full"
