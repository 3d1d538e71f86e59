"""Places for forks of claimed kernels: branches, checkpoints, and kernels made from those.

A fork needs a place like every kernel, but does not wait in line for one, because its caller keeps a kernel
idle. Claims in line come first. A checkpoint needs no place: it is not a kernel. ``pool`` has the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cellgate_kernels.base.errors import InvalidInput, PoolExhausted
from cellgate_kernels.base.tasks import Supervisor, until

if TYPE_CHECKING:
    from cellgate_kernels.kernel.held import HeldFork
    from cellgate_kernels.kernel.kernel import Kernel
    from cellgate_kernels.pool.claims import Claims
    from cellgate_kernels.pool.roster import Roster
    from cellgate_kernels.pool.warm import WarmKernels


class ForkPlaces:
    """The forks of one pool. `held`: checkpoints; `changed`: set when there may be room."""

    def __init__(self, roster: Roster, warm: WarmKernels, claims: Claims, tasks: Supervisor) -> None:
        self.held: set[HeldFork] = set()
        self.changed = asyncio.Event()
        self._roster = roster
        self._warm = warm
        self._claims = claims
        self._tasks = tasks

    async def fill(self, fork: Callable[[], Awaitable[Kernel]], instead_of: Kernel | None = None) -> Kernel:
        """Return the kernel that `fork` makes, in a new place or in that of `instead_of`.

        Raises PoolExhausted without a place, InvalidInput if `instead_of` has none, and as `fork`.
        """
        roster = self._roster
        making_room: asyncio.Task[None] | None = None
        if instead_of is None:
            making_room = self._make_room()
        else:
            self._displace(instead_of)
        # No await separates this from the check for a place.
        roster.forking += 1
        try:
            if making_room is not None:
                await asyncio.wait([making_room])
            kernel = await fork()
            roster.in_use.add(kernel)
        except BaseException:
            if instead_of in roster.replaced:
                roster.replaced.discard(instead_of)
                roster.in_use.add(instead_of)
            raise
        finally:
            roster.forking -= 1
            roster.changed()
        if roster.closed:
            roster.release(kernel)
            raise self._claims.closed()
        return kernel

    def _make_room(self) -> asyncio.Task[None] | None:
        """Return the task that ends once there is a place for a fork, None if there is room.

        Kernels that end already make it; else a warm kernel ends, or one that sleeps for long gives way.
        Raises PoolExhausted.
        """
        roster, waiting = self._roster, self._claims.in_line
        if roster.closed:
            raise self._no_room()
        if roster.free > waiting:
            return None
        if roster.soon_free <= waiting:
            warm = None if waiting else self._warm.take_other()
            if warm is not None:
                return roster.end(warm)
            if not roster.make_way(1):
                raise self._no_room()
        return self._tasks.start(until(self._is_in_bounds, self.changed), "room for a fork")

    def _is_in_bounds(self) -> bool:
        """Return whether no more places are taken than there are."""
        return self._roster.closed or self._roster.free >= 0

    def _displace(self, kernel: Kernel) -> None:
        """Take a claimed kernel's place from it, whatever happens to it meanwhile. Raises InvalidInput."""
        if kernel not in self._roster.in_use:
            raise InvalidInput("This kernel is not in use, or another takes its place already")
        self._roster.in_use.discard(kernel)
        self._roster.replaced.add(kernel)

    def _no_room(self) -> PoolExhausted:
        return self._claims.exhausted(
            f"All {self._roster.most} kernels are in use, and a branch is one more. Try again"
            " later, or end sessions you don't need."
        )

    async def wait_for_room(self, patience: float) -> None:
        """Do what ``KernelPool.room_for_branch`` says."""

        def is_over() -> bool:
            waiting, free = self._claims.in_line, self._roster.free
            return self._roster.closed or free > waiting or (not waiting and len(self._warm) > 0)

        if not is_over():
            self._roster.make_way(1 + self._claims.in_line - self._roster.soon_free)
        try:
            async with asyncio.timeout(patience):
                await until(is_over, self.changed)
        except TimeoutError:
            raise self._no_room() from None
        if self._roster.closed:
            raise self._claims.closed()

    def hold(self, held: HeldFork) -> HeldFork:
        """Count a held fork until it ends. Raises PoolExhausted, and ends it, when the pool is closed."""
        if self._roster.closed:
            held.close()
            raise self._claims.closed()
        self.held.add(held)
        forget = self._tasks.guard(lambda _: self.held.discard(held), "end of a held fork")
        held.ended.add_done_callback(forget)
        return held
