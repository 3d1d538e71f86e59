"""Which gateway has a session's key: ``keys`` asks before a session is looked for, opened or removed.

Of several gateways with one record, only one may have a key. A claim of a key also raises the epoch of the
session's record (``record.store.interface``). So a former owner that has not noticed the claim can write
nothing more; its sessions get `NotRecorded`. `Alone` is for the only gateway with a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from cellgate.errors import OwnedElsewhere

Owned = tuple[str, str]
"""A principal and the key of one of the principal's sessions."""


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """A gateway that has a key, as other gateways know it.

    `address`: its URL for other gateways; None: it is this one. `node`: the id of another gateway. `moved`,
    of a claim: the session's files are another gateway's, so files that this one has of it are old.
    """

    address: str | None = None
    node: str = ""
    moved: bool = False


OURS: Final = KeyOwner()


class Ownership(Protocol):
    """Knows the owner of each session's key. All methods belong to one event loop.

    The asynchronous methods raise StorageError while the owner can't be determined. Then no session is opened
    here, and open ones go on: the record's store decides whether they may still be recorded. `node`: the id
    of this gateway, as ids that it makes begin; empty for the only gateway.
    """

    shared: bool = True
    """Whether other gateways may have left sessions open in the record."""

    @property
    def node(self) -> str:
        """The id of this gateway."""

    async def find(self, principal: str, key: str) -> KeyOwner | None:
        """Return the key's owner; None if there is none. It may have changed: only a claim decides.

        The owner of a key that nobody has is the gateway with the session's files, if it opens sessions.
        """

    async def home(self, principal: str, key: str) -> KeyOwner | None:
        """Return the gateway that has the session's files; None if it is gone, or none has any."""

    async def files_at(self, principal: str, key: str) -> str:
        """Return the id of the gateway that has the session's files, even if it is gone.

        It is letters and digits alone; empty if it is this one, or none has any.
        """

    async def claim(self, principal: str, key: str) -> KeyOwner:
        """Claim the key for this gateway unless another one is its owner, as for `find`; return the owner.

        A repeat does no harm. Claim before anything of the session's record is read: once this gateway has
        the key, no other one adds to the record. `RecordStore.claim` returns the latest claim's epoch. Each
        claim says `moved` until the key is settled here.
        """

    async def settle(self, principal: str, key: str) -> None:
        """Note that the session's files are here from now on, because the claimed key's old ones are gone."""

    def release(self, principal: str, key: str) -> None:
        """Release a key without an open session here; does nothing if another gateway has it.

        Returns at once and raises nothing. If it fails, the key is free once this gateway is gone.
        """

    def check_opens(self) -> None:
        """Check that this gateway is to open more sessions. Raises Draining."""

    async def check_room(self, owned: Owned | None) -> None:
        """Check that a session is to be opened here, even if it has to wait for a kernel. None: a one-shot.

        Raises NodeFull if another gateway has room, unless the session's files are here; and StorageError.
        """

    async def held(self) -> Collection[Owned] | None:
        """Return the keys that a former process of this gateway has left to this one; None: all."""

    def follow(self, in_use: Callable[[], Collection[Owned]], end: Callable[[Owned], None]) -> None:
        """Call `end` with each key `in_use` that turns out to have been claimed by another gateway."""

    def address_of(self, node: str) -> str | None:
        """Return the URL of another living gateway; None if it is unknown, or this one.

        `node`: its id, or the first digits of it (`NODE_DIGITS`), as in ids that it made.
        """


class Alone(Ownership):
    """The ownership of the only gateway with a record: every key is its own."""

    shared = False

    @property
    def node(self) -> str:
        return ""

    async def find(self, principal: str, key: str) -> KeyOwner | None:
        return OURS

    async def home(self, principal: str, key: str) -> KeyOwner | None:
        return OURS

    async def files_at(self, principal: str, key: str) -> str:
        return ""

    async def claim(self, principal: str, key: str) -> KeyOwner:
        return OURS

    async def settle(self, principal: str, key: str) -> None:
        """Note nothing: files are nowhere else."""

    def release(self, principal: str, key: str) -> None:
        """Keep the key: there is no other gateway."""

    def check_opens(self) -> None:
        """Raise nothing: there is no other gateway."""

    async def check_room(self, owned: Owned | None) -> None:
        """Raise nothing: there is no other gateway."""

    async def held(self) -> Collection[Owned] | None:
        return None

    def follow(self, in_use: Callable[[], Collection[Owned]], end: Callable[[Owned], None]) -> None:
        """Call nothing: there is no other gateway."""

    def address_of(self, node: str) -> str | None:
        return None


def check_ours(owner: KeyOwner | None, key: str) -> None:
    """Check that no other gateway has the session's key. Raises OwnedElsewhere."""
    if owner is not None and owner.address is not None:
        raise OwnedElsewhere(f"Another gateway, {owner.address}, has the session {key!r}", owner.address)
