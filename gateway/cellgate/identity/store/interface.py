"""The interface of what keeps users, tokens and secrets: what every other room knows of it. Types alone.

Commands change a `UserStore` whether a gateway serves or not, and so do requests (``user_keeper``); what a
gateway knows of users, it reads by a `UserReader`. Each change is durable on return, together with an act,
which a gateway copies into the record's audit trail.
Tokens are kept as digests and secrets encrypted: what is kept lets nobody in. All methods block and raise
StorageError when users can't be read or changed; each instance is for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.secrets import Box, SecretKey

RESERVED = "default"
"""The administrator with the gateway's own token, who is no user but may have secrets."""
ONESELF = "me"
"""What stands for whoever asks, so no user has this name."""
MOST_TOKENS = 1000
"""Tokens that one user may have; revoked and expired ones are forgotten when there are more."""


@dataclass(frozen=True, slots=True)
class User:
    """A user. `created_at`: seconds since the epoch."""

    name: str
    role: Role
    disabled: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret. Times in seconds since the epoch. `scopes` None: what the role grants.

    `made_by`: the id of the token that it was made with; None if it was made without one.
    """

    id: str
    user: str
    digest: bytes
    scopes: frozenset[Permission] | None
    reach: Reach
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    made_by: str | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """A change of users or tokens, as it goes into the audit trail."""

    seq: int
    at: float
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Everybody:
    """All that a gateway knows of users. `key` opens the secrets; None without any, or if that can't be.

    `ended_sign_ins`: the digests of browsers' sign-ins, shared by several gateways, that were ended early.
    """

    users: list[User] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    secrets: list[Box] = field(default_factory=list)
    key: SecretKey | None = None
    ended_sign_ins: frozenset[bytes] = frozenset()


class UserReader(Protocol):
    """Reads what is kept while others change it. Without any users it finds nobody."""

    def stamp(self, *, settled: bool = False) -> Hashable:
        """Return what is another value after any change. Called for each request, by the event loop.

        `settled`: a value that `stamp` does not return, if there may be a change that would not show in it.
        """

    def read(self, *, anew: bool = False) -> Everybody | None:
        """Return all there is; None if nothing changed since the last call that returned, unless `anew`."""

    def acts(self, after: int, limit: int) -> list[Act]:
        """Return acts after the one with this number, in order, as of the last `read`."""

    def close(self) -> None:
        """Close what it reads; may be repeated."""


class UserStore(Protocol):
    """Keeps users, tokens, secrets, and the acts by which they changed."""

    def users(self) -> list[User]:
        """Return all users, by name."""

    def user(self, name: str) -> User:
        """Return one user. Raises NotFound."""

    def tokens(self, user: str | None = None) -> list[Token]:
        """Return all tokens, or a user's, oldest first. Raises NotFound if there is no such user."""

    def secrets(self, user: str | None = None) -> list[Box]:
        """Return all secrets, or a user's, by name, encrypted. Raises NotFound if there is no such user."""

    def check_owner(self, name: str) -> None:
        """Check that there can be sessions of this name. Raises NotFound."""

    def acts(self, after: int, limit: int = 1000) -> list[Act]:
        """Return the acts after this number, in order."""

    def count_acts(self, after: int) -> int:
        """Return the number of acts after this one."""

    def add_user(self, name: str, role: Role) -> User:
        """Add a user. Raises Conflict if there is one of this name, InvalidInput for a bad name."""

    def set_disabled(self, name: str, *, disabled: bool) -> None:
        """Disable a user, whose tokens then open nothing, or enable one again. Raises NotFound."""

    def set_role(self, name: str, role: Role) -> None:
        """Give a user another role, which their tokens then have too. Raises NotFound."""

    def remove_user(self, name: str) -> None:
        """Remove a user and all their tokens and secrets. Raises NotFound."""

    def create_token(
        self,
        user: str,
        *,
        expires_at: float | None = None,
        scopes: frozenset[Permission] | None = None,
        reach: Reach,
        made_by: str | None = None,
    ) -> tuple[Token, str]:
        """Return a new token of the user, and its text, which is kept nowhere. Raises NotFound, Conflict.

        `made_by`: the id of the token that it is made with. Raises Forbidden if that one was revoked.
        """

    def revoke_token(self, name: str) -> list[Token]:
        """Revoke a token by its id, and those that its user made with it, or with these; return them all.

        Those that were revoked before are not among them. Tokens of other users stay. Raises NotFound.
        """

    def set_secret(self, user: str, name: str, box: bytes) -> None:
        """Keep a user's secret, and its former value until the next change. Raises NotFound, Conflict."""

    def remove_secret(self, user: str, name: str) -> None:
        """Remove a user's secret with all its values. Raises NotFound."""

    def close(self) -> None:
        """Close it; may be repeated."""


class SignInLedger(Protocol):
    """Notes what gateways must know of each other's tickets and sign-ins: digests, which are no secrets."""

    def use_ticket(self, digest: bytes, until: float) -> bool:
        """Note that a ticket was used, durably; return whether it was the first time.

        `until`: when it expires, in seconds since the epoch.
        """

    def end_sign_ins(self, digests: Collection[bytes], until: float) -> None:
        """Note, durably, that these sign-ins are over; all readers learn of it.

        `until`: when the last of them would be over anyhow.
        """

    def close(self) -> None:
        """Close it; may be repeated."""
