"""The owners of tokens, and users' secrets: the content of the store of users, up to date in memory.

A gateway calls `login` for every request, so a look-up is one hash and one dictionary, after `is_behind` has
checked whether a command has changed the store. A supervised task also checks the store twice a second and
reports logins that ended, so that open connections end. Others write it: commands, and ``user_keeper``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from cellgate.errors import InvalidToken, StorageError
from cellgate.identity.administrator import Administrator
from cellgate.identity.principal import DEFAULT, Login, OwnLogin, Principal, Role
from cellgate.identity.secrets import SECRET_KEY, Box, Secret, SecretKey, open_boxes, what_to_do
from cellgate.identity.shared_reading import SharedReading
from cellgate.identity.store.interface import Act, Everybody, Token, User, UserReader
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
REMOVED_SECONDS = 60.0
PATIENCE_SECONDS = 30.0
"""The seconds for which an unreadable store is taken for unchanged; then its tokens are invalid."""


class DirectoryListener(Protocol):
    """The gateway's reactions to changes of the store. No method may raise."""

    def logins_changed(self) -> None:
        """Check the open connections, because some login may have ended."""

    def user_gone(self, name: str, cause: str) -> None:
        """Note that a user was disabled or removed."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The content of the store. `next_end`: the time when the first token expires.

    `of_disabled`: the tokens of disabled users, by their digests, without revoked ones.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    logins: Mapping[bytes, Login] = field(default_factory=dict)
    by_id: Mapping[str, Login] = field(default_factory=dict)
    of_disabled: Mapping[bytes, Token] = field(default_factory=dict)
    next_end: float = float("inf")
    secrets: Mapping[tuple[str, str], Box] = field(default_factory=dict)
    key: SecretKey | None = None
    ended_sign_ins: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class _Reading:
    """A reading of the store. `stamp`: its stamp from before; `error`: why `content` is an older one."""

    stamp: Hashable
    content: _Known
    error: StorageError | None = None


class PrincipalDirectory:
    """Logins by token. Call `refresh` once before use, then `follow`; `close` at the end.

    `administrator`: the bearer of the gateway's own token.
    """

    def __init__(
        self,
        users: UserReader,
        administrator: Administrator,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users = users
        self.administrator = administrator
        self._clock = clock
        self._monotonic = monotonic
        self._read = self._content = self._known = _Known()
        """The content read last, the content in use since then, and the content reported to the listener."""
        self._told_of = self._known
        self._listener: DirectoryListener | None = None
        self.generation = 0
        """The number of changes of the store's content so far."""
        self._stamp: Hashable = None
        """The store's stamp at the last reading, even if that failed."""
        self._anew = False
        self._failed_since: float | None = None
        self._told = ""
        self._removed: dict[str, float] = {}
        self._tasks = Supervisor()
        self._lane = Lane("principals", 1)
        self._readings = SharedReading(self._read_users, self._tasks, monotonic)

    # Asking

    @property
    def is_open(self) -> bool:
        """Whether requests without a token come from the administrator."""
        return self.administrator.digest is None

    @property
    def has_users(self) -> bool:
        """Whether there are users."""
        return bool(self._known.users)

    def login(self, given: bytes) -> Login | None:
        """Return a token digest's login, if known; any if no token is needed. Raises InvalidToken."""
        # Digests of secrets that can't be guessed: the time of a comparison reveals nothing about a token.
        if given == self.administrator.digest:
            return self.administrator.login
        login = self._known.logins.get(given)
        if login is None:
            return self.administrator.login if self.is_open else None
        if login.expired(self._clock()):
            raise InvalidToken("This token has expired", cause="expired_token", token=login.id)
        return login

    def knows(self, given: bytes) -> bool:
        """Return whether this is the digest of a token in the store, valid or not, that was not revoked."""
        return (
            given == self.administrator.digest
            or given in self._known.logins
            or given in self._known.of_disabled
        )

    def is_valid(self, login: Login) -> bool:
        """Return whether a request with this login would still be served."""
        if isinstance(login, OwnLogin):
            return login == self.administrator.login
        return self._known.by_id.get(login.id) == login and not login.expired(self._clock())

    def is_disabled(self, name: str) -> bool:
        """Return whether this user exists and is disabled."""
        user = self._known.users.get(name)
        return user is not None and user.disabled

    def is_sign_in_ended(self, given: bytes) -> bool:
        """Return whether the browser's sign-in with this digest was ended, at any gateway of the cluster."""
        return given in self._known.ended_sign_ins

    def of_disabled(self, given: bytes) -> Token | None:
        """Return the token with this digest if its user is disabled; None for any other or a revoked one."""
        return self._known.of_disabled.get(given)

    def is_shut_out(self, name: str) -> bool:
        """Return whether the user is disabled, or was removed so recently that a request may still wait."""
        return self.is_disabled(name) or self._removed.get(name, 0.0) > self._monotonic()

    def role_of(self, name: str) -> Role:
        """Return the role of a principal, who may have no request at hand; `user` if it is unknown."""
        if name == DEFAULT.principal.name:
            return Role.ADMIN
        user = self._known.users.get(name)
        return Role.USER if user is None else user.role

    async def check_secrets(self, owner: str, names: Collection[str]) -> None:
        """Check the owner's secrets. Raises InvalidInput that names a missing one, StorageError."""
        if self.missing_secrets(owner, names):
            # The secret may have been set a moment ago.
            await self.refresh()
        for name in self.missing_secrets(owner, names):
            raise InvalidInput(f"secrets: there is no secret {name[:40]!r} of {owner}")

    def missing_secrets(self, owner: str, names: Collection[str]) -> list[str]:
        """Return those of the names for which the owner has no secret."""
        return [name for name in names if (owner, name) not in self._known.secrets]

    def secrets(self, owner: str, names: Collection[str]) -> list[Secret]:
        """Return the owner's existing secrets. Raises StorageError naming unreadable ones."""
        boxes = [box for name in names if (box := self._known.secrets.get((owner, name))) is not None]
        if not boxes:
            return []
        if self._known.key is None:
            raise StorageError(f"{SECRET_KEY} is missing or can't be used: {what_to_do(boxes)}")
        return open_boxes(self._known.key, boxes)

    # Following the store

    def is_behind(self) -> bool:
        """Return whether the store has changed since the last reading or attempt; `refresh` reads it.

        This takes one system call, so each request can afford it: a new token works, and a disabled user's
        stops working, from the moment on that the command has returned.
        """
        return self._users.stamp() != self._stamp

    async def catch_up(self) -> None:
        """Read the store if it has changed, and notify the listener, which closes ended logins' connections.

        A store that can't be read is left to the next look.
        """
        with suppress(CellgateError):
            await self.refresh()
        if self._listener is not None:
            self._tell_of_changes(self._listener)

    def follow(self, listener: DirectoryListener) -> None:
        """Watch the store from now on, and notify the listener."""
        self._told_of = self._known
        self._listener = listener
        self._tasks.repeat(lambda: self._look(listener), "users and tokens", pause=LOOK_SECONDS)

    async def close(self) -> None:
        """Stop following the store and close it."""
        await self._tasks.cancel()
        await self._lane.run(self._users.close)
        self._lane.close()

    async def refresh(self) -> None:
        """Read the store if it has changed. Raises StorageError, at once if a reading has just failed.

        The stamp changes only together with the content: callers meanwhile wait for a reading, too.
        """
        await self._readings.wait_briefly()

    async def _read_users(self) -> None:
        reading = await self._lane.run(self._look_at_users)
        self._stamp = reading.stamp
        if reading.content is not self._content:
            self._content = self._known = reading.content
            self.generation += 1
        if reading.error is not None:
            raise reading.error

    async def acts(self, after: int, limit: int) -> list[Act]:
        """Return the acts after the one with this number, in order. Raises StorageError."""
        return await self._lane.run(self._users.acts, after, limit)

    async def _look(self, listener: DirectoryListener) -> float:
        try:
            await self._readings.wait()
            self._failed_since = None
            self._told = ""
        except CellgateError as error:
            self._failed(error)
        self._tell_of_changes(listener)
        return LOOK_SECONDS

    def _tell_of_changes(self, listener: DirectoryListener) -> None:
        # Not the state before this look: a request that searched for a secret may have read the store.
        former = self._told_of
        if self._known is not former or self._clock() >= former.next_end:
            self._tell(former, listener)
            self._told_of = self._known

    def _failed(self, error: CellgateError) -> None:
        now = self._monotonic()
        if self._failed_since is None:
            self._failed_since = now
        if error.message != self._told:
            logger.error("Users and tokens can't be read again: %s", error.message)
            self._told = error.message
        if now - self._failed_since > PATIENCE_SECONDS and self._known.logins:
            logger.error("Users and tokens could not be read for too long: their tokens open nothing now")
            # As far as we know no user was removed. The next successful reading counts, changed or not.
            self._known = replace(self._known, logins={}, by_id={})
            self._anew = True

    def _tell(self, former: _Known, listener: DirectoryListener) -> None:
        listener.logins_changed()
        self._removed = {
            name: until
            for name, until in self._removed.items()
            if until > self._monotonic() and name not in self._known.users
        }
        for name, user in former.users.items():
            now = self._known.users.get(name)
            if now is None:
                self._removed[name] = self._monotonic() + REMOVED_SECONDS
                listener.user_gone(name, "user_removed")
            elif now.disabled and not user.disabled:
                listener.user_gone(name, "user_disabled")
        if self._known is former:
            # A token has expired; the next look need not report it again.
            self._known = replace(former, next_end=_next_end(former.logins.values(), self._clock()))

    # In the lane's thread

    def _look_at_users(self) -> _Reading:
        stamp = self._users.stamp(settled=True)  # before it is read: a later change is another state
        error = None
        try:
            if (found := self._users.read(anew=self._anew)) is not None:
                self._read = _know(found, self._clock())
                self._anew = False
        except StorageError as raised:
            error = raised
        return _Reading(stamp, self._read, error)


def _know(found: Everybody, at: float) -> _Known:
    """Return the users and their secrets, and the logins of all tokens except revoked ones."""
    by_name = {user.name: user for user in found.users}
    principals = {name: Principal(name, user.role) for name, user in by_name.items() if not user.disabled}
    logins = {}
    of_disabled = {}
    for token in found.tokens:
        if token.revoked_at is not None:
            continue
        principal = principals.get(token.user)
        if principal is None:
            of_disabled[token.digest] = token
            continue
        logins[token.digest] = Login.of(
            principal, token.scopes, reach=token.reach, token=token.id, expires=token.expires_at
        )
    by_id = {login.id: login for login in logins.values()}
    secrets = {(box.user, box.name): box for box in found.secrets}
    known = _Known(by_name, logins, by_id, of_disabled, _next_end(logins.values(), at))
    return replace(known, secrets=secrets, key=found.key, ended_sign_ins=found.ended_sign_ins)


def _next_end(logins: Iterable[Login], at: float) -> float:
    ends = [login.expires for login in logins if login.expires is not None and not login.expired(at)]
    return min(ends, default=float("inf"))
