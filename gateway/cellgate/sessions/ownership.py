"""Which gateway has a session's key: ``keys`` asks before a session is looked for, opened or removed.

Of several gateways with one record, only one may have a key. Who claims a key also raises the epoch of its
record (``record.store.interface``), so a former owner that has not noticed writes nothing more; its sessions
hear of it by `NotRecorded`. `Alone` answers for a gateway with a record of its own, which is what there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from cellgate.errors import OwnedElsewhere


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """A gateway that has a key. `address`: its URL for other gateways; None: it is this one."""

    address: str | None = None


OURS: Final = KeyOwner()


class Ownership(Protocol):
    """Says who has the key of a principal's session. All methods belong to one event loop.

    Those that wait raise StorageError while that can't be found out. Then nothing is opened here, and what is
    open goes on: whether it may still be recorded is for the record's store to say.
    """

    async def find(self, principal: str, key: str) -> KeyOwner | None:
        """Return who has the key; None if nobody has. The answer may be outdated: only a claim decides."""

    async def claim(self, principal: str, key: str) -> KeyOwner:
        """Take the key for this gateway unless another one has it, and return who has it.

        A repeat does no harm. Call it before anything of the session's record is read: once it is ours, no
        other gateway adds to that, and `RecordStore.claim` returns the epoch of the latest claim.
        """

    def release(self, principal: str, key: str) -> None:
        """Give up a key, of which no session is open here any more; does nothing if it is another's.

        Returns at once and raises nothing. What could not be released is free once this gateway is gone.
        """


class Alone(Ownership):
    """The ownership of the only gateway with a record: every key is its own."""

    async def find(self, principal: str, key: str) -> KeyOwner | None:
        return OURS

    async def claim(self, principal: str, key: str) -> KeyOwner:
        return OURS

    def release(self, principal: str, key: str) -> None:
        """Keep the key: nobody else can ask for it."""


def check_ours(owner: KeyOwner | None, key: str) -> None:
    """Check that no other gateway has the session's key. Raises OwnedElsewhere."""
    if owner is not None and owner.address is not None:
        raise OwnedElsewhere(f"Another gateway, {owner.address}, has the session {key!r}", owner.address)
