"""Counts the bytes on the gateway's disk that wait for clients: of all kinds together, and by principal.

All bytes that are on the disk because a client reads slowly, or not at all, are counted here before they are
written: frames of WebSockets, exports, files of conversions. Together they may take half of the free space
above the record's reserve, and one principal three quarters of that. When there is no room, the principal
with the most bytes gives way, not the one that asks: first its spills that were not read for long, then its
largest. The same happens when something else fills the disk up to the reserve. A principal's running work
never ends for new work of the same principal.

It only counts, and knows no files: ``spill``, ``jobs`` and ``channels`` write them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from cellgate.fairness.turns import part_of_one
from cellgate_kernels.base.tasks import Supervisor, guarded
from cellgate_kernels.base.threads import Lane, work_for
from cellgate_kernels.base.trees import free

PATIENCE = 10.0
"""Seconds that a thread waits for others to give way."""
WATCH_SECONDS = 1.0
"""Seconds between two checks whether others have filled the disk."""
_NEVER = float("inf")


class Spiller(Protocol):
    """An owner of bytes on the disk that wait for clients. Called on the event loop."""

    def stalled_since(self) -> float | None:
        """Return the time of the last read if bytes have waited long since; else None."""

    def give_way(self, *, to_own: bool) -> bool:
        """Free some bytes; return whether that is possible. `to_own`: for the same principal."""


Opener = Callable[[Spiller], "Space"]
"""Makes a spiller's space, for a principal chosen when the opener was made."""


class Space:
    """The bytes of one spiller. It is made on the `loop`; its methods may be called from any thread.

    `held`: counted for its principal. `leaving`: no longer counted, but still on the disk. `closed`: nothing
    may be written any more.
    """

    def __init__(self, ledger: SpillLedger, principal: str, spiller: Spiller) -> None:
        self.principal = principal
        self.spiller = spiller
        self.loop = asyncio.get_running_loop()
        self.held = 0
        self.leaving = 0
        self.closed = False
        self._ledger = ledger

    def take(self, count: int) -> None:
        """Count bytes that are about to be written. Raises OSError if there is no room, or if the space is
        closed: a thread that was about to write may outlive the close.
        """
        self._ledger.take(self, count)

    def leave(self, count: int) -> None:
        """Note that so many bytes will soon be gone, because the spiller gave way."""
        with self._ledger.lock:
            count = min(count, self.held)
            self._ledger.add(self, -count)
            self.leaving += count
            self._ledger.leaving += count

    def gone(self, count: int) -> None:
        """Note that so many bytes are gone from the disk, leaving ones first."""
        with self._ledger.lock:
            left = min(count, self.leaving)
            self.leaving -= left
            self._ledger.leaving -= left
            self._ledger.add(self, left - count)

    def close(self) -> None:
        """Note that all bytes are gone from the disk, and that nothing more is written."""
        with self._ledger.lock:
            self.closed = True
            self.gone(self.held + self.leaving)

    @property
    def room(self) -> int:
        """The bytes that it may still take before another spiller must give way."""
        return self._ledger.room(self.principal)


class SpillLedger:
    """All spills of a gateway. `folder`: on their common disk; `reserve`: bytes there that stay free."""

    def __init__(self, folder: Path, reserve: int) -> None:
        self._folder = folder
        self._reserve = reserve
        self._held: Counter[str] = Counter()
        self._total = 0
        self.leaving = 0
        self._spaces: dict[Space, None] = {}
        # Reentrant: a spiller that gives way reports its bytes while the ledger holds the lock.
        self.lock = threading.RLock()

    @property
    def used(self) -> int:
        """Bytes of all spills that are on the disk."""
        return self._total + self.leaving

    def held_by(self, principal: str) -> int:
        """Return the bytes that count for this principal."""
        return self._held[principal]

    @property
    def most(self) -> int:
        """Bytes that all spills may have together now: half of what is free beyond the reserve."""
        return max(0, (free(self._folder) + self.used - self._reserve) // 2)

    def open(self, principal: str, spiller: Spiller) -> Space:
        """Open an empty space for a spiller of this principal."""
        return Space(self, principal, spiller)

    def room(self, principal: str) -> int:
        """Return the bytes that this principal may still take before another spiller must give way."""
        with self.lock:
            most = self.most
            return max(0, min(most - self._total, part_of_one(most) - self._held[principal]))

    def take(self, space: Space, count: int) -> None:
        """Take bytes for a space; see `Space.take`."""
        with self.lock:
            if not space.closed and self._too_much(space, count) is None:
                self.add(space, count)
                return
        made = self._make_room if on_loop() else self._ask_loop
        if space.closed or not made(space, count):
            number = errno.EBADF if space.closed else errno.ENOSPC
            raise OSError(number, os.strerror(number))

    def add(self, space: Space, count: int) -> None:
        """Count bytes of a space; call it with the lock."""
        space.held += count
        self._total += count
        self._held[space.principal] += count
        if not self._held[space.principal]:
            del self._held[space.principal]
        if space.held:
            self._spaces[space] = None
        else:
            self._spaces.pop(space, None)

    def _too_much(self, asking: Space, count: int) -> str | None:
        """Return the principal that would hold too much after `asking` took `count` bytes; None if nobody."""
        most = self.most
        theirs = self._held[asking.principal] + count
        if theirs > part_of_one(most):
            return asking.principal
        if self._total + count <= most:
            return None
        others = [(held, name) for name, held in self._held.items() if name != asking.principal]
        heaviest = max(others, default=(0, ""))
        return heaviest[1] if heaviest[0] > theirs else asking.principal

    def _ask_loop(self, space: Space, count: int) -> bool:
        """Make room from a thread: the spillers are called on the loop."""
        made: concurrent.futures.Future[bool] = concurrent.futures.Future()

        def make() -> None:
            if made.set_running_or_notify_cancel():
                made.set_result(self._make_room(space, count))

        space.loop.call_soon_threadsafe(guarded(make, "room for spills"))
        try:
            return made.result(PATIENCE)
        except TimeoutError:
            # If it began just now, it will end soon.
            return not made.cancel() and made.result(PATIENCE)

    def _make_room(self, asking: Space, count: int) -> bool:
        with self.lock:
            while not asking.closed and (heaviest := self._too_much(asking, count)) is not None:
                if not self._have_give_way(heaviest, asking, count):
                    return False
            if not asking.closed:
                self.add(asking, count)
            return not asking.closed

    def _have_give_way(self, principal: str, asking: Space | None = None, count: int = 0) -> bool:
        def rank(space: Space) -> tuple[float, int]:
            stalled = space.spiller.stalled_since()
            size = space.held + (count if space is asking else 0)
            return (_NEVER if stalled is None else stalled), -size

        theirs = {space: None for space in self._spaces if space.principal == principal}
        to_own = asking is not None and asking.principal == principal
        if asking is not None and to_own:
            theirs[asking] = None
        return any(space.spiller.give_way(to_own=to_own) for space in sorted(theirs, key=rank))

    def relieve(self) -> bool:
        """Make the largest holder give way if others have filled the disk up to the reserve.

        Called on the loop, repeatedly: bytes leave the disk a moment later. Returns whether any gave way.
        """
        with self.lock:
            if not self._total or self.leaving or free(self._folder) >= self._reserve:
                return False
            by_size = sorted(self._held, key=self._held.__getitem__, reverse=True)
            return any(self._have_give_way(principal) for principal in by_size)


def on_loop() -> bool:
    """Return whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class SpillEnds:
    """Closes files in threads of `lane`, which frees their bytes. Await `finished` before the lane closes.

    The system takes long to free a large file, a third of a second for a gigabyte: on the loop, everybody
    would wait.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._tasks = Supervisor()

    def end(self, close: Callable[[], object] | None, space: Space) -> None:
        """Call the function that closes the file, if any, and release its space. From any thread."""
        if close is None:
            space.close()
        elif on_loop():
            space.leave(space.held)
            self._start(close, space, space.close)
        else:
            try:
                close()
            finally:
                space.close()

    def free(self, work: Callable[[], object], space: Space, count: int) -> None:
        """Call the function that frees so many bytes of the space. On the loop."""
        space.leave(count)
        self._start(work, space, partial(space.gone, count))

    def _start(self, work: Callable[[], object], space: Space, done: Callable[[], None]) -> None:
        self._tasks.start(self._run(work, space, done), "end of a spilled file")

    async def _run(self, work: Callable[[], object], space: Space, done: Callable[[], None]) -> None:
        # The principal of the file waits for this work, not the one that needs the room.
        work_for(space.principal)
        try:
            await self.lane.run(work)
        finally:
            done()

    async def finished(self) -> None:
        """Return when all files are closed."""
        await self._tasks.finished()


class SpillWatch:
    """Keeps the disk's reserve free of spills. `start` it, and `close` it before the spillers."""

    def __init__(self, ledger: SpillLedger) -> None:
        self._ledger = ledger
        self._tasks = Supervisor()

    def start(self) -> None:
        """Start watching the disk's reserve."""
        self._tasks.repeat(self._look, "reserve of the disk", pause=WATCH_SECONDS)

    async def _look(self) -> float:
        self._ledger.relieve()
        return WATCH_SECONDS

    async def close(self) -> None:
        """Stop watching the disk's reserve."""
        await self._tasks.cancel()
