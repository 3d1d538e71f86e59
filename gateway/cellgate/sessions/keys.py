"""The keys of sessions in use in this gateway, and the use of each: an opening, a live session, a purge.

There is no await between the last check of a key and its use, so concurrent first requests open one session.
``opener``, ``registry`` and ``purger`` use the keys; ``ownership`` says which keys other gateways have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellgate.errors import Conflict, Draining, ShuttingDown, TakesNoWork
from cellgate.fairness.reservation import Reservation
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import Purge
from cellgate.sessions.ownership import KeyOwner, Owned, Ownership, check_ours
from cellgate_kernels.base.errors import CellgateError

if TYPE_CHECKING:
    from cellgate.sessions.replacement import Moved
    from cellgate.sessions.session import Session


class Opening:
    """A session being opened, whose room is `reserved`. `made`: completes with the session.

    `folder`: its workspace, once known, which another session may share. `disk`: bytes reserved for the
    workspace; 0 if they were already. `waiting`: the number of requests that wait. `abandoned`: the last one
    has left, and the task is cancelled. `claimed`: this gateway has claimed the key for it. `fenced`: why it
    is cancelled, such as that another gateway has the key now. `told`: the callbacks of requests that follow
    its position in line for a kernel.
    """

    task: asyncio.Task[Session]

    def __init__(self, reserved: Reservation, folder: str | None, disk: int) -> None:
        self.made: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self.reserved = reserved
        self.folder = folder
        self.disk = disk
        self.waiting = 0
        self.abandoned = self.claimed = False
        self.fenced: CellgateError | None = None
        self.told: list[Moved] = []
        self._position: int | None = None

    def moved(self, position: int) -> None:
        """Report the position to all requests that follow it."""
        self._position = position
        for tell in self.told:
            tell(position)

    def tell(self, moved: Moved) -> None:
        """Report the position to one more request from now on."""
        self.told.append(moved)
        if self._position is not None and self.in_line:
            moved(self._position)

    def cancelled(self) -> CellgateError:
        """Return the error of requests that waited when the opening was cancelled."""
        return self.fenced or shutting_down()

    @property
    def in_line(self) -> bool:
        """Whether no kernel has begun to start for it."""
        return not self.made.done() or self.made.result().slot.in_line


@dataclass(frozen=True, slots=True)
class Erasure:
    """The end of a purge, until the last byte is gone. `row`: the session's, from before the purge."""

    row: SessionRow
    purge: Purge
    task: asyncio.Task[None]


@dataclass(slots=True)
class KeyUse:
    """The use of one key. A session being opened is live before its opening ends; an erasure holds no key.

    `removal`: done once a session has been deleted, which ends it and removes its files.
    """

    session: Session | None = None
    opening: Opening | None = None
    purge: asyncio.Task[Purge] | None = None
    removal: asyncio.Future[None] | None = None
    erasure: Erasure | None = None

    @property
    def open(self) -> bool:
        """Whether there is a session, or one is being opened."""
        return self.session is not None or self.opening is not None

    @property
    def taken(self) -> bool:
        """Whether no other session can be opened under the key now."""
        return self.open or self.removed_by is not None

    @property
    def removed_by(self) -> asyncio.Future[Any] | None:
        """The work that removes the session's record or files now; None if none does."""
        return self.purge if self.purge is not None else self.removal

    @property
    def made(self) -> Session | None:
        """The session, also one that is being opened, once it is made."""
        opening = self.opening
        return opening.made.result() if opening is not None and opening.made.done() else self.session


class SessionKeys:
    """The uses of all keys. A key that nothing uses has no entry, and its ownership is released."""

    def __init__(self, ownership: Ownership) -> None:
        self.closing = False
        """Whether the gateway is shutting down."""
        self.ownership = ownership
        self.uses: dict[Owned, KeyUse] = {}
        """The keys in use, to be read without a call; `use` and `release` change them."""
        self._unmade: set[Opening] = set()

    def find(self, owned: Owned) -> KeyUse:
        """Return the use of a key, for reading."""
        return self.uses.get(owned) or KeyUse()

    def use(self, owned: Owned) -> KeyUse:
        """Return the use of a key, to be added to; call `release` whenever a part of it has ended."""
        return self.uses.setdefault(owned, KeyUse())

    def release(self, owned: Owned) -> None:
        """Give the key up, unless it is in use."""
        use = self.find(owned)
        if not use.taken:
            self.ownership.release(*owned)
            if use.erasure is None:
                self.uses.pop(owned, None)

    @contextmanager
    def removing(self, owned: Owned) -> Iterator[None]:
        """Let no session be opened under a key while the context lasts, in which none is being removed."""
        use, removal = self.use(owned), asyncio.get_running_loop().create_future()
        use.removal = removal
        try:
            yield
        finally:
            use.removal = None
            removal.set_result(None)
            self.release(owned)

    def sessions(self) -> list[Session]:
        """Return all live sessions."""
        return [use.session for use in self.uses.values() if use.session is not None]

    def openings(self) -> Iterator[tuple[str, Opening]]:
        """Return all openings, each with its principal."""
        return ((key[0], use.opening) for key, use in tuple(self.uses.items()) if use.opening is not None)

    def check_open(self) -> None:
        """Check that the gateway accepts new work. Raises TakesNoWork."""
        if self.closing:
            raise TakesNoWork("The gateway is shutting down and takes no new work")

    def check_opens(self) -> None:
        """Check that a session may be opened now. Raises TakesNoWork, Draining."""
        self.check_open()
        self.ownership.check_opens()

    @property
    def draining(self) -> bool:
        """Whether other gateways open sessions in the place of this one."""
        try:
            self.ownership.check_opens()
        except Draining:
            return True
        return False

    def check_free(self, owned: Owned) -> None:
        """Check that a branch may have this key. Raises Conflict."""
        if self.find(owned).taken:
            raise Conflict(f"There is a session {owned[1]!r} already; choose another key for the branch")

    def begin(self, owned: Owned, opening: Opening) -> None:
        """Use a key for an opening, until `end`."""
        self.use(owned).opening = opening
        self._unmade.add(opening)

    def made(self, opening: Opening, session: Session) -> None:
        """Note the session of an opening, which claims its kernel now."""
        self._unmade.discard(opening)
        opening.made.set_result(session)

    def end(self, owned: Owned, opening: Opening) -> None:
        """Remove an opening that has ended; a repeat does nothing."""
        self._unmade.discard(opening)
        if (use := self.find(owned)).opening is opening:
            use.opening = None

    @property
    def unmade(self) -> int:
        """The number of openings that are about to claim a kernel: each claim of a key asks for it."""
        return len(self._unmade)

    async def check_ours(self, owned: Owned) -> None:
        """Check that no other gateway has the key. Raises OwnedElsewhere, StorageError."""
        if not self.find(owned).open:
            check_ours(await self.ownership.find(*owned), owned[1])

    async def check_home(self, owned: Owned) -> None:
        """Check that no other gateway, even one that opens no sessions, has the files of a session that is
        not open. Raises OwnedElsewhere, StorageError.
        """
        if not self.find(owned).open:
            check_ours(await self.ownership.home(*owned), owned[1])

    async def claim(self, owned: Owned) -> KeyOwner:
        """Take the key for this gateway, and return the owner. Raises OwnedElsewhere, StorageError."""
        owner = await self.ownership.claim(*owned)
        check_ours(owner, owned[1])
        if (opening := self.find(owned).opening) is not None:
            opening.claimed = True
        return owner


def shutting_down() -> ShuttingDown:
    """Return the error of requests whose work the gateway's end cancelled."""
    return ShuttingDown("The gateway is shutting down")
