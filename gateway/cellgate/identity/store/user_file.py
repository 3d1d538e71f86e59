"""The file of users, tokens and secrets in the data folder: an SQLite database, read and changed in place.

Beside the file is the key of the secrets, which is read with it. ``user_database`` has the changes and the
questions; ``interface`` says what all of it is for.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cellgate.errors import NotFound, StorageError
from cellgate.identity.secrets import SECRET_KEY, load_secret_key
from cellgate.identity.store.interface import Act, Everybody, UserReader
from cellgate.identity.store.user_database import Row, UserDatabase
from cellgate.record.store.sqlite.transactions import transaction
from cellgate_kernels.base.errors import in_brief

logger = logging.getLogger(__name__)

PRINCIPALS = "principals.sqlite"
"""Its name in the data folder."""
BUSY_SECONDS = 5.0
TICK_NS = 50_000_000
"""Longer than a tick of the clock by which a system stamps files: 4 ms, or 10."""

_SCRIPTS = (
    """
CREATE TABLE users (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, disabled INTEGER NOT NULL, created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users ON DELETE CASCADE, digest BLOB NOT NULL UNIQUE,
    scopes TEXT, session TEXT NOT NULL, exact INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL,
    revoked_at REAL
) WITHOUT ROWID;
CREATE INDEX tokens_of_user ON tokens (user, created_at);
CREATE TABLE acts (seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, body BLOB NOT NULL);
""",
    """
CREATE TABLE secrets (
    user TEXT NOT NULL, name TEXT NOT NULL, box BLOB NOT NULL, former BLOB, set_at REAL NOT NULL,
    PRIMARY KEY (user, name)
) WITHOUT ROWID;
""",
    "ALTER TABLE tokens ADD COLUMN made_by TEXT",
)
"""From an empty file to the newest version."""
VERSION = len(_SCRIPTS)


class UserFile(UserDatabase):
    """The open file. `close` it at the end."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool,
        clock: Callable[[], float] = time.time,
        by: Mapping[str, Any] | None = None,
    ) -> None:
        """Open it; with `create`, make it if it is missing. Raises StorageError, NotFound."""
        super().__init__(clock, by)
        self.path = path
        if not create and not path.exists():
            raise NotFound(f"There are no users yet ({path} does not exist); cellgate user add makes one")
        with self._failures("opened"):
            if create:
                # Made before SQLite opens it: readable by its owner only, whatever the umask.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("PRAGMA trusted_schema = OFF")
        # Removed values are overwritten, not only unlinked.
        self._db.execute("PRAGMA secure_delete = ON")
        with transaction(self._db):
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            for number, script in enumerate(_SCRIPTS[version:], version + 1):
                for statement in filter(str.strip, script.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {number}")
        if version > VERSION:
            raise StorageError(f"{self.path} was made by a newer version of Cellgate; use that one")

    def close(self) -> None:
        self._db.close()

    def version(self) -> int:
        """Return a number that changes when another process has committed a change."""
        with self._failures("read"):
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def _rows(self, statement: str, *values: object) -> list[Row]:
        return self._db.execute(statement, values).fetchall()

    def _write(self, statement: str, *values: object) -> int:
        return self._db.execute(statement, values).rowcount

    def _changing(self) -> AbstractContextManager[None]:
        return transaction(self._db)

    @contextmanager
    def _failures(self, action: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, msgspec.MsgspecError) as error:
            raise StorageError(f"{self.path} can't be {action}: {in_brief(error)}") from error


class UserFileReader(UserReader):
    """Reads one file, which need not exist. `stamp` is one system call; the rest is for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: UserFile | None = None
        self._unread = False
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

    def read(self, *, anew: bool = False) -> Everybody | None:
        try:
            found = self._path.stat()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise StorageError(f"{self._path} can't be read: {in_brief(error)}") from error
            self.close()
            gone, self._seen = self._seen is not None, None
            return Everybody() if gone else None
        if anew or self._file is None or self._seen is None or self._seen[:2] != (found.st_dev, found.st_ino):
            self._unread = True  # its version may be that of the connection before, whatever has changed
            self.close()
            try:
                self._file = UserFile(self._path, create=False)
            except NotFound:
                return None  # removed in this moment: the next look sees it
        seen = (found.st_dev, found.st_ino, self._file.version(), *self._state_of_key())
        if self._seen == seen and not self._unread:
            return None
        everybody = self._everybody(self._file)
        self._seen, self._unread = seen, False
        return everybody

    def acts(self, after: int, limit: int) -> list[Act]:
        return [] if self._file is None else self._file.acts(after, limit)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _state_of_key(self) -> tuple[int, ...]:
        """Return a value that changes with the secrets' key, which may come back from a backup."""
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
