"""Reads the file of users whenever it, or the key of the secrets beside it, has changed or was replaced."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from cellgate.errors import NotFound, StorageError
from cellgate.identity.secrets import SECRET_KEY, load_secret_key
from cellgate.identity.store.interface import Act, Everybody, UserReader
from cellgate.identity.store.user_file import UserFile
from cellgate_kernels.base.errors import in_words

logger = logging.getLogger(__name__)

TICK_NS = 50_000_000
"""Longer than a tick of the clock by which a system stamps files: 4 ms, or 10."""


class UserFileReader(UserReader):
    """Reads one file, which need not exist. `stamp` is one system call; the rest is for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: UserFile | None = None
        self._seen: tuple[int, ...] | None = None

    def stamp(self, *, settled: bool = False) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116, a path's own method takes longer
        except OSError:
            return None
        # Right after a write another one may follow within the same tick.
        if settled and 0 <= time.time_ns() - found.st_mtime_ns < TICK_NS:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def read(self) -> Everybody | None:
        try:
            found = self._path.stat()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise StorageError(f"{self._path} can't be read: {in_words(error, file=False)}") from error
            self.close()
            gone = self._seen is not None
            self._seen = None
            return Everybody() if gone else None
        if self._file is None or self._seen is None or self._seen[:2] != (found.st_dev, found.st_ino):
            self.close()
            try:
                self._file = UserFile(self._path, create=False)
            except NotFound:
                return None  # removed in this moment: the next look sees it
        seen = (found.st_dev, found.st_ino, self._file.version(), *self._state_of_key())
        if self._seen == seen:
            return None
        everybody = self._everybody(self._file)
        self._seen = seen
        return everybody

    def forget(self) -> None:
        self._seen = None

    def acts(self, after: int, limit: int) -> list[Act]:
        return [] if self._file is None else self._file.acts(after, limit)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _state_of_key(self) -> tuple[int, ...]:
        """Changes when the key of the secrets does: it may be put back from a backup."""
        try:
            found = self._path.with_name(SECRET_KEY).lstat()
        except OSError:
            return ()
        return found.st_ino, found.st_ctime_ns

    def _everybody(self, file: UserFile) -> Everybody:
        users, tokens, secrets, key = file.users(), file.tokens(), file.secrets(), None
        if secrets:
            try:
                key = load_secret_key(self._path.with_name(SECRET_KEY), create=False)
            except StorageError as error:
                # Everything but sessions with secrets goes on.
                logger.error("%s", error.message)
        return Everybody(users, tokens, secrets, key)
