"""What the stores of users in a database have in common: everything but the connection.

Each change is one transaction together with its act. ``user_file`` has the file of SQLite, ``user_tables``
the tables in PostgreSQL; ``interface`` says what all of it is for.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import msgspec

from cellgate.errors import Conflict, Forbidden, NotFound
from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.secrets import MOST_SECRETS, Box
from cellgate.identity.store import user_statements as statements
from cellgate.identity.store.interface import MOST_TOKENS, ONESELF, RESERVED, Act, Token, User, UserStore
from cellgate.identity.tokens import check_name, digest, new_token, scopes_text
from cellgate_kernels.base.errors import InvalidInput

Row = tuple[Any, ...]
T = TypeVar("T")


class UserDatabase(UserStore):
    """A store of users in a database. `clock`: the time in seconds since the epoch.

    `by`: who makes its changes, as each act names them; None: the system's user of this process.
    """

    def __init__(self, clock: Callable[[], float] = time.time, by: Mapping[str, Any] | None = None) -> None:
        self._clock = clock
        self._by = {"by_uid": os.getuid()} if by is None else by

    @abstractmethod
    def _rows(self, statement: str, *values: object) -> list[Row]:
        """Return the rows of a statement that reads."""

    @abstractmethod
    def _write(self, statement: str, *values: object) -> int:
        """Carry out a statement that writes; return the number of its rows."""

    @abstractmethod
    def _changing(self) -> AbstractContextManager[None]:
        """Commit all writes inside, or none; only one such change is made at a time."""

    @abstractmethod
    def _failures(self, action: str) -> AbstractContextManager[None]:
        """Turn the database's errors into StorageError. `action`: what failed, such as "read"."""

    def _read(self, convert: Callable[[Row], T], statement: str, *values: object) -> list[T]:
        with self._failures("read"):
            return [convert(row) for row in self._rows(statement, *values)]

    def _count(self, statement: str, *values: object) -> int:
        return self._read(lambda row: int(row[0]), statement, *values)[0]

    # ---- reading ------------------------------------------------------------------------------------------

    def users(self) -> list[User]:
        return self._read(_user, statements.USERS)

    def user(self, name: str) -> User:
        # PostgreSQL has no such text at all.
        rows = [] if "\x00" in name else self._read(_user, statements.USER, name)
        if not rows:
            raise NotFound(f"There is no user {name[:40]!r}; cellgate user list shows who there is")
        return rows[0]

    def tokens(self, user: str | None = None) -> list[Token]:
        if user is None:
            return self._read(_token, statements.TOKENS)
        self.user(user)
        return self._read(_token, statements.TOKENS_OF_USER, user)

    def secrets(self, user: str | None = None) -> list[Box]:
        if user is None:
            return self._read(_box, statements.SECRETS)
        self.check_owner(user)
        return self._read(_box, statements.SECRETS_OF_USER, user)

    def check_owner(self, name: str) -> None:
        if name != RESERVED:
            self.user(name)

    def acts(self, after: int, limit: int = 1000) -> list[Act]:
        return self._read(_act, statements.ACTS, after, limit)

    def count_acts(self, after: int) -> int:
        return self._count(statements.COUNT_ACTS, after)

    # ---- changing -----------------------------------------------------------------------------------------

    @contextmanager
    def _change(self, act: str, **fields: Any) -> Iterator[None]:
        with self._failures("changed"), self._changing():
            yield
            self._note(act, **fields)

    def _note(self, act: str, **fields: Any) -> None:
        body = msgspec.json.encode({"act": act, **fields, **self._by})
        self._write(statements.ADD_ACT, self._clock(), body)

    def add_user(self, name: str, role: Role) -> User:
        if check_name(name) == RESERVED:
            raise InvalidInput(f"{RESERVED!r} is the name of the administrator with the gateway's own token")
        if name == ONESELF:
            raise InvalidInput(f"{ONESELF!r} stands for whoever asks, in /v1/users/{ONESELF}")
        user = User(name, role, False, self._clock())
        with self._change("user_added", user=name, role=role):
            if self._rows(statements.USER, name):
                raise Conflict(
                    f"There is a user {name!r} already; cellgate user role gives them another role"
                )
            self._write(statements.ADD_USER, name, role.value, user.created_at)
        return user

    def set_disabled(self, name: str, *, disabled: bool) -> None:
        with self._change("user_disabled" if disabled else "user_enabled", user=name):
            self.user(name)
            self._write(statements.SET_DISABLED, disabled, name)

    def set_role(self, name: str, role: Role) -> None:
        with self._change("user_role_changed", user=name, role=role):
            self.user(name)
            self._write(statements.SET_ROLE, role.value, name)

    def remove_user(self, name: str) -> None:
        with self._change("user_removed", user=name):
            self.user(name)
            self._write(statements.REMOVE_USER, name)
            self._write(statements.REMOVE_SECRETS, name)

    def create_token(
        self,
        user: str,
        *,
        expires_at: float | None = None,
        scopes: frozenset[Permission] | None = None,
        reach: Reach,
        made_by: str | None = None,
    ) -> tuple[Token, str]:
        name, text = new_token()
        token = Token(name, user, digest(text), scopes, reach, self._clock(), expires_at, None, made_by)
        limits: dict[str, Any] = {"expires_at": expires_at, "scopes": _scopes(scopes)}
        if reach.prefix:
            limits["session" if reach.exact else "sessions"] = reach.prefix
        with self._change("token_created", user=user, token=name, **limits):
            if self.user(user).disabled:
                raise Conflict(f"User {user!r} is disabled; cellgate user enable {user} lets them in again")
            if made_by is not None and not self._lives(made_by):
                raise Forbidden("The token that asks was revoked, or is over")
            self._forget_useless(user)
            self._write(statements.ADD_TOKEN, *token_row(token))
        return token, text

    def _lives(self, token: str) -> bool:
        """Return whether the token of this id is there and was not revoked."""
        return any(_token(row).revoked_at is None for row in self._rows(statements.TOKEN, token))

    def _forget_useless(self, user: str) -> None:
        """Make room for a token: revoked and expired ones go first. Raises Conflict if all are in use."""
        count = self._count(statements.COUNT_TOKENS, user)
        if count < MOST_TOKENS:
            return
        if not self._write(statements.FORGET_TOKENS, user, self._clock()):
            raise Conflict(f"User {user!r} has {count} tokens; cellgate token revoke ID makes room")

    def revoke_token(self, name: str) -> list[Token]:
        rows = [] if "\x00" in name else self._read(_token, statements.TOKEN, name)
        if not rows:
            raise NotFound(f"There is no token {name[:40]!r}; cellgate token list shows the ids")
        user = rows[0].user
        if not self._read(_token, statements.TOKENS_MADE_BY, name, user):
            return []
        with self._failures("changed"), self._changing():
            ended = [_token(row) for row in self._rows(statements.TOKENS_MADE_BY, name, user)]
            for token in ended:
                self._write(statements.REVOKE_TOKEN, self._clock(), token.id)
                with_it = {} if token.id == name else {"revoked_with": name}
                self._note("token_revoked", user=user, token=token.id, **with_it)
        return ended

    def set_secret(self, user: str, name: str, box: bytes) -> None:
        with self._change("secret_set", user=user, secret=name):
            self.check_owner(user)
            others = self._count(statements.COUNT_OTHER_SECRETS, user, name)
            if others >= MOST_SECRETS:
                raise Conflict(
                    f"User {user!r} has {others} secrets;"
                    f" cellgate secret remove NAME --user {user} makes room"
                )
            self._write(statements.SET_SECRET, user, name, box, self._clock())

    def remove_secret(self, user: str, name: str) -> None:
        with self._change("secret_removed", user=user, secret=name):
            self.check_owner(user)
            if not self._write(statements.REMOVE_SECRET, user, name):
                raise NotFound(
                    f"User {user!r} has no secret {name[:40]!r};"
                    f" cellgate secret list --user {user} shows theirs"
                )


def _scopes(scopes: frozenset[Permission] | None) -> str | None:
    return None if scopes is None else scopes_text(scopes)


def _user(row: Row) -> User:
    name, role, disabled, created_at = row
    return User(name, Role(role), bool(disabled), created_at)


def _token(row: Row) -> Token:
    """Return the token of a row of `TOKENS`."""
    name, user, value, scopes, session, exact, *rest = row
    chosen = None if scopes is None else frozenset(Permission(each) for each in scopes.split(",") if each)
    return Token(name, user, value, chosen, Reach(session, exact=bool(exact)), *rest)


def _box(row: Row) -> Box:
    return Box(*row)


def _act(row: Row) -> Act:
    seq, at, body = row
    return Act(seq, at, msgspec.json.decode(body, type=dict[str, Any]))


def token_row(token: Token) -> Row:
    """Return the row of a token, as `_token` reads it."""
    times = (token.created_at, token.expires_at, token.revoked_at)
    where = (token.reach.prefix, token.reach.exact)
    return (token.id, token.user, token.digest, _scopes(token.scopes), *where, *times, token.made_by)
