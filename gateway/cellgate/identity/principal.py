"""Principals, their permissions, and the logins that prove a request's sender. Values only.

A `Principal` owns sessions. A `Login` is the result of a token: a principal, the permissions left by role and
scopes, and the session keys it reaches. ``directory`` makes logins, ``http.access`` requests them; the code
below HTTP gets the principal's name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Self

from cellgate.errors import Forbidden, NotFound
from cellgate.wire.owner import new_id

_KEY_DIGITS: Final = 32
"""Of a key that is made of a request's idempotency key: the longest prefix leaves room for 36."""


class Role(StrEnum):
    """A principal's role at the gateway.

    `user`: runs cells in sessions of their own. `admin`: does everything, also in other users' sessions.
    `auditor`: reads and verifies all users' records, and runs nothing.
    """

    USER = "user"
    ADMIN = "admin"
    AUDITOR = "auditor"


class Permission(StrEnum):
    """A permission that a request needs. A token can be limited to some permissions: these are its scopes.

    `run`: run cells, start, interrupt and end sessions. `read`: sessions, results, events, exports. `files`:
    the files of sessions. `packages`: list and change packages. `metrics`: the gateway's own figures.
    `users`: one's own tokens and secrets; for administrators, all users and theirs.
    """

    RUN = "run"
    READ = "read"
    FILES = "files"
    PACKAGES = "packages"
    METRICS = "metrics"
    USERS = "users"


GRANTED: Mapping[Role, frozenset[Permission]] = MappingProxyType(
    {
        Role.USER: frozenset(Permission) - {Permission.METRICS},
        Role.ADMIN: frozenset(Permission),
        Role.AUDITOR: frozenset({Permission.READ, Permission.METRICS, Permission.USERS}),
    }
)
"""The permissions of each role."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An owner of sessions."""

    name: str
    role: Role = Role.USER

    @property
    def admin(self) -> bool:
        """Whether the principal administers the gateway."""
        return self.role is Role.ADMIN

    @property
    def sees_others(self) -> bool:
        """Whether the principal may send requests about another principal's sessions."""
        return self.role is not Role.USER


@dataclass(frozen=True, slots=True)
class Reach:
    """The session keys that a token is limited to: those with the prefix or, if `exact`, only that key."""

    prefix: str = ""
    exact: bool = False

    def covers(self, key: str) -> bool:
        """Return whether the token may be used for this session."""
        return key == self.prefix if self.exact else key.startswith(self.prefix)

    def within(self, other: Reach) -> bool:
        """Return whether the other reach covers all keys that this one covers."""
        if other.exact:
            return self == other
        return self.prefix.startswith(other.prefix)

    def check(self, key: str) -> str:
        """Return the key. Raises NotFound for one that is out of reach, as if no such session existed."""
        if not self.covers(key):
            raise NotFound(f"No session {key!r}")
        return key

    def new_key(self, node: str = "") -> str:
        """Return a key for a session whose creator names none; for `node` see `new_id`."""
        return self.prefix if self.exact else f"{self.prefix}{new_id(node)}"

    def key_of(self, request: str) -> str:
        """Return the key for a session whose creator names none; the same for a repeat of the request.

        `request`: its idempotency key. The result names no gateway of a cluster, as any may get the repeat.
        """
        made = hashlib.sha256(request.encode()).hexdigest()[:_KEY_DIGITS]
        return self.prefix if self.exact else f"{self.prefix}{made}"

    def branch_key(self, named: str | None, node: str = "") -> str:
        """Return the key for a branch: `named`, or a new one. Raises Forbidden if the token can't have it.

        Not NotFound, as `check` does: the key is for something new, and the reach is the asker's own.
        """
        if self.exact:
            raise Forbidden(f"This token is for the session {self.prefix!r} alone, so it can't branch")
        if named is None:
            return self.new_key(node)
        if not self.covers(named):
            raise Forbidden(
                f"This token is for sessions that begin with {self.prefix!r}: give the branch such a name"
            )
        return named


EVERYWHERE = Reach()


@dataclass(frozen=True, slots=True)
class Login:
    """What a token, or its absence, gives. `id`: the token's; `expires`: seconds since the epoch, or None."""

    principal: Principal
    permissions: frozenset[Permission]
    reach: Reach = EVERYWHERE
    id: str = ""
    expires: float | None = None

    @classmethod
    def of(
        cls,
        principal: Principal,
        scopes: Iterable[Permission] | None = None,
        *,
        reach: Reach = EVERYWHERE,
        token: str = "",
        expires: float | None = None,
    ) -> Self:
        """Return a login with what the principal's role grants, or with those of it that `scopes` names."""
        granted = GRANTED[principal.role]
        allowed = granted if scopes is None else granted.intersection(scopes)
        return cls(principal, allowed, reach, token, expires)

    def check(self, needed: frozenset[Permission]) -> None:
        """Check a permission. Raises Forbidden, which says whether the role or the token lacks it."""
        if needed <= self.permissions:
            return
        missing = sorted(needed - self.permissions)
        lacking = sorted(needed - GRANTED[self.principal.role])
        if lacking:
            raise Forbidden(f"The role {self.principal.role} does not include {' and '.join(lacking)}")
        raise Forbidden(f"This token's scopes do not include {' and '.join(missing)}")

    @property
    def unlimited(self) -> bool:
        """Whether it has all that its role grants, for all sessions, without an end."""
        granted = GRANTED[self.principal.role]
        return self.permissions == granted and self.reach == EVERYWHERE and self.expires is None

    def check_for_all(self, subject: str) -> None:
        """Check that everybody's data may be read; `subject`, in the plural, names it. Raises Forbidden."""
        if not self.principal.sees_others:
            raise Forbidden(f"Only administrators and auditors may read {subject}")
        if self.reach != EVERYWHERE:
            raise Forbidden(f"This token reaches only some sessions, and {subject} are about all")

    def owner(self, named: str | None) -> str:
        """Return the principal whose sessions a request is about: its sender, or the one it names.

        Raises NotFound where the sender may not name others, as if they had no such session.
        """
        if named is None or named == self.principal.name:
            return self.principal.name
        if not self.principal.sees_others:
            raise NotFound("No such session")
        return named

    def expired(self, at: float) -> bool:
        """Return whether the token's time is over."""
        return self.expires is not None and at >= self.expires


@dataclass(frozen=True, slots=True)
class OwnLogin(Login):
    """The administrator's login, by the gateway's own token. `change`: how often the token was changed."""

    change: int = 0


DEFAULT = OwnLogin.of(Principal("default", Role.ADMIN))
"""The administrator who is everybody, if there is at most one token."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to somebody else for a login; until it is called, nothing has begun.

    `known`: the answer was a login when they were asked last, so whoever shows the token guesses nothing.
    """

    question: Callable[[str], Awaitable[Login]]
    known: bool = False

    def __call__(self, origin: str) -> Awaitable[Login]:
        """Ask for the login. `origin`: the sender's address. Raises what `Authentication.login` raises."""
        return self.question(origin)
