"""The file of users, tokens and secrets in the data folder: an SQLite database, read and changed in place.

Each change is one transaction together with its act. Beside the file is the key of the secrets, which is read
with it. ``interface`` says what all of it is for.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cellgate.errors import Conflict, NotFound, StorageError
from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.secrets import MOST_SECRETS, SECRET_KEY, Box, load_secret_key
from cellgate.identity.store.interface import (
    MOST_TOKENS,
    RESERVED,
    Act,
    Everybody,
    Token,
    User,
    UserReader,
    UserStore,
)
from cellgate.identity.tokens import check_name, digest, new_token, scopes_text
from cellgate.record.store.sqlite.transactions import transaction
from cellgate_kernels.base.errors import InvalidInput, in_brief

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
)
"""From an empty file to the newest version."""
VERSION = len(_SCRIPTS)

_USERS = "SELECT name, role, disabled, created_at FROM users"
_TOKENS = """
SELECT id, user, digest, scopes, session, exact, created_at, expires_at, revoked_at FROM tokens
WHERE :user IS NULL OR user = :user ORDER BY created_at, id
"""


class UserFile(UserStore):
    """The open file. `close` it at the end."""

    def __init__(self, path: Path, *, create: bool, clock: Callable[[], float] = time.time) -> None:
        """Open it; with `create`, make it if it is missing. Raises StorageError, NotFound."""
        self.path = path
        self._clock = clock
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

    def users(self) -> list[User]:
        with self._failures("read"):
            return [_user(row) for row in self._db.execute(f"{_USERS} ORDER BY name")]

    def tokens(self, user: str | None = None) -> list[Token]:
        if user is not None:
            self.user(user)
        with self._failures("read"):
            return [_token(row) for row in self._db.execute(_TOKENS, {"user": user})]

    def user(self, name: str) -> User:
        with self._failures("read"):
            row = self._db.execute(f"{_USERS} WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise NotFound(f"There is no user {name[:40]!r}; cellgate user list shows who there is")
        return _user(row)

    def acts(self, after: int, limit: int = 1000) -> list[Act]:
        with self._failures("read"):
            rows = self._db.execute(
                "SELECT seq, at, body FROM acts WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
            )
            return [Act(seq, at, msgspec.json.decode(body, type=dict[str, Any])) for seq, at, body in rows]

    def count_acts(self, after: int) -> int:
        with self._failures("read"):
            return int(self._db.execute("SELECT count(*) FROM acts WHERE seq > ?", (after,)).fetchone()[0])

    def add_user(self, name: str, role: Role) -> User:
        if check_name(name) == RESERVED:
            raise InvalidInput(f"{RESERVED!r} is the name of the administrator with the gateway's own token")
        user = User(name, role, False, self._clock())
        with self._change("user_added", user=name, role=role):
            if self._db.execute("SELECT 1 FROM users WHERE name = ?", (name,)).fetchone():
                raise Conflict(
                    f"There is a user {name!r} already; cellgate user role gives them another role"
                )
            self._db.execute("INSERT INTO users VALUES (?, ?, 0, ?)", (name, role, user.created_at))
        return user

    def set_disabled(self, name: str, *, disabled: bool) -> None:
        with self._change("user_disabled" if disabled else "user_enabled", user=name):
            self.user(name)
            self._db.execute("UPDATE users SET disabled = ? WHERE name = ?", (disabled, name))

    def set_role(self, name: str, role: Role) -> None:
        with self._change("user_role_changed", user=name, role=role):
            self.user(name)
            self._db.execute("UPDATE users SET role = ? WHERE name = ?", (role, name))

    def remove_user(self, name: str) -> None:
        with self._change("user_removed", user=name):
            self.user(name)
            self._db.execute("DELETE FROM users WHERE name = ?", (name,))
            self._db.execute("DELETE FROM secrets WHERE user = ?", (name,))

    def create_token(
        self,
        user: str,
        *,
        expires_at: float | None = None,
        scopes: frozenset[Permission] | None = None,
        reach: Reach,
    ) -> tuple[Token, str]:
        name, text = new_token()
        token = Token(name, user, digest(text), scopes, reach, self._clock(), expires_at, None)
        limits: dict[str, Any] = {"expires_at": expires_at, "scopes": _scopes(scopes)}
        if reach.prefix:
            limits["session" if reach.exact else "sessions"] = reach.prefix
        with self._change("token_created", user=user, token=name, **limits):
            if self.user(user).disabled:
                raise Conflict(f"User {user!r} is disabled; cellgate user enable {user} lets them in again")
            self._forget_useless(user)
            where, times = (reach.prefix, reach.exact), (token.created_at, expires_at)
            row = (name, user, token.digest, _scopes(scopes), *where, *times)
            self._db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", row)
        return token, text

    def _forget_useless(self, user: str) -> None:
        """Make room for a token: revoked and expired ones go first. Raises Conflict if all are in use."""
        (count,) = self._db.execute("SELECT count(*) FROM tokens WHERE user = ?", (user,)).fetchone()
        if count < MOST_TOKENS:
            return
        gone = self._db.execute(
            "DELETE FROM tokens WHERE user = ? AND (revoked_at IS NOT NULL OR expires_at <= ?)",
            (user, self._clock()),
        )
        if not gone.rowcount:
            raise Conflict(f"User {user!r} has {count} tokens; cellgate token revoke ID makes room")

    def revoke_token(self, name: str) -> Token:
        known = next((token for token in self.tokens() if token.id == name), None)
        if known is None:
            raise NotFound(f"There is no token {name[:40]!r}; cellgate token list shows the ids")
        if known.revoked_at is None:
            with self._change("token_revoked", user=known.user, token=name):
                self._db.execute("UPDATE tokens SET revoked_at = ? WHERE id = ?", (self._clock(), name))
        return known

    def secrets(self, user: str | None = None) -> list[Box]:
        if user is not None:
            self.check_owner(user)
        query = (
            "SELECT user, name, box, former, set_at FROM secrets WHERE ?1 IS NULL OR user = ?1 ORDER BY 1, 2"
        )
        with self._failures("read"):
            return [Box(*row) for row in self._db.execute(query, (user,))]

    def set_secret(self, user: str, name: str, box: bytes) -> None:
        with self._change("secret_set", user=user, secret=name):
            self.check_owner(user)
            query = "SELECT count(*) FROM secrets WHERE user = ? AND name <> ?"
            (others,) = self._db.execute(query, (user, name)).fetchone()
            if others >= MOST_SECRETS:
                raise Conflict(
                    f"User {user!r} has {others} secrets;"
                    f" cellgate secret remove NAME --user {user} makes room"
                )
            self._db.execute(
                """INSERT INTO secrets VALUES (?, ?, ?, NULL, ?) ON CONFLICT DO UPDATE
                SET former = box, box = excluded.box, set_at = excluded.set_at""",
                (user, name, box, self._clock()),
            )

    def remove_secret(self, user: str, name: str) -> None:
        with self._change("secret_removed", user=user, secret=name):
            self.check_owner(user)
            gone = self._db.execute("DELETE FROM secrets WHERE user = ? AND name = ?", (user, name))
            if not gone.rowcount:
                raise NotFound(
                    f"User {user!r} has no secret {name[:40]!r};"
                    f" cellgate secret list --user {user} shows theirs"
                )

    def check_owner(self, name: str) -> None:
        if name != RESERVED:
            self.user(name)

    @contextmanager
    def _change(self, act: str, **fields: Any) -> Iterator[None]:
        with self._failures("changed"), transaction(self._db):
            yield
            body = msgspec.json.encode({"act": act, **fields, "by_uid": os.getuid()})
            self._db.execute("INSERT INTO acts (at, body) VALUES (?, ?)", (self._clock(), body))

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, msgspec.MsgspecError) as error:
            raise StorageError(f"{self.path} can't be {what}: {in_brief(error)}") from error


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


def _scopes(scopes: frozenset[Permission] | None) -> str | None:
    return None if scopes is None else scopes_text(scopes)


def _user(row: tuple[Any, ...]) -> User:
    name, role, disabled, created_at = row
    return User(name, Role(role), bool(disabled), created_at)


def _token(row: tuple[Any, ...]) -> Token:
    """Return a row of `_TOKENS`."""
    name, user, value, scopes, session, exact, *times = row
    chosen = None if scopes is None else frozenset(Permission(each) for each in scopes.split(",") if each)
    return Token(name, user, value, chosen, Reach(session, exact=bool(exact)), *times)
