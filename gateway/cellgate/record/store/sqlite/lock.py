"""The lock that gives a record to one gateway, and the checks that its files still exist.

Two things are locked: the file ``.lock`` beside the record, and the data folder itself. A file can be removed
while its lock is held, and another gateway would then create and lock a new one; the folder stays. Where a
folder can't be locked, as on some network file systems, the file has to do. If the record is a link to a file
elsewhere, ``.lock`` is beside that file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from cellgate.errors import StorageError
from cellgate.record.store.sqlite.location import resolved
from cellgate_kernels.base.errors import in_brief, in_words

ATTEMPTS = 10
_NOT_FOR_FOLDERS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})


class RecordLock:
    """Held from its creation until `release`; the end of the process releases it too.

    `record` is the record's real path, to be used for everything else.
    """

    def __init__(self, record: Path) -> None:
        """Take the lock. Raises StorageError if another process holds it, and the errors of `resolved`."""
        self.record = resolved(record)
        self._known_as = record
        self._path = self.record.with_name(self.record.name + ".lock")
        self._descriptors: list[int] = []
        self._identity: tuple[int, int] | None = None
        try:
            record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"The record {record} can't be opened: {in_brief(error)}") from error
        try:
            self._lock_folder()
            self._lock_file()
        except OSError as error:
            self.release()
            raise StorageError(f"The record {record} can't be locked: {in_words(error)}") from error
        except BaseException:
            self.release()
            raise

    def _lock_folder(self) -> None:
        descriptor = os.open(self._known_as.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise self._in_use() from error
        except OSError as error:
            if error.errno not in _NOT_FOR_FOLDERS:
                raise

    def _lock_file(self) -> None:
        for _ in range(ATTEMPTS):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            self._descriptors.append(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise self._in_use() from error
            if self.is_ours:
                return
            # The file was removed between the two calls: the locked one no longer has a name.
            os.close(self._descriptors.pop())
        raise StorageError(f"{self._path} keeps being removed; stop what does that")

    def _in_use(self) -> StorageError:
        return StorageError(
            f"The record {self._known_as} is in use by another gateway; end that one, or use another data"
            " folder"
        )

    @property
    def is_ours(self) -> bool:
        """Whether the file at the lock's path is the locked one."""
        held = os.fstat(self._descriptors[-1])
        return _identity(self._path) == (held.st_dev, held.st_ino)

    def watch(self) -> None:
        """Store the identity of the record's file, for `record_is_ours`."""
        self._identity = _identity(self._known_as, follow=True)

    @property
    def record_is_ours(self) -> bool:
        """Whether the file at the record's path is still the same as at `watch`."""
        return _identity(self._known_as, follow=True) == self._identity

    def release(self) -> None:
        """Release the record. May be called again."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _identity(path: Path, *, follow: bool = False) -> tuple[int, int] | None:
    try:
        found = path.stat(follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
