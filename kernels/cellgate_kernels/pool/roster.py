"""The places of a pool: for kernels that start, are forked, are warm, in use, or end.

A place is taken before the first await of its taker, and freed when its kernel is gone. ``pool`` and
``forks`` assign places; this module counts them, and ends kernels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from cellgate_kernels.base.tasks import Supervisor

if TYPE_CHECKING:
    from cellgate_kernels.kernel.kernel import Kernel
    from cellgate_kernels.pool.claims import Start
    from cellgate_kernels.pool.warm import WarmKernels

Yielding = Callable[[int], "Collection[Kernel]"]


def yields_nothing(_count: int) -> Collection[Kernel]:
    """Return no kernels: none gives up its place."""
    return ()


class Roster:
    """The places of one pool. `forking`: forks in progress; `closed`: no more places are assigned.

    `replaced`: claimed kernels whose place another kernel has or takes. `changed`: called when a place is
    free. `yielding`: ends the users of at most so many kernels that sleep for long, and returns the kernels,
    which are then `leaving` until their release.
    """

    def __init__(self, most: int, warm: WarmKernels, tasks: Supervisor, changed: Callable[[], None]) -> None:
        self.most = most
        self.starting: dict[asyncio.Task[None], Start] = {}
        self.forking = 0
        self.in_use: set[Kernel] = set()
        self.replaced: set[Kernel] = set()
        self.yielding: Yielding = yields_nothing
        self.leaving: set[Kernel] = set()
        self.ending: set[asyncio.Task[None]] = set()
        self.closed = False
        self.changed = changed
        self._warm = warm
        self._tasks = tasks

    @property
    def free(self) -> int:
        """The number of free places."""
        used = len(self.starting) + self.forking + len(self.in_use) + len(self.ending)
        return self.most - used - len(self._warm)

    @property
    def soon_free(self) -> int:
        """The number of places that are free once the kernels that end now, or leave, are gone."""
        return self.free + len(self.ending) + len(self.leaving)

    def make_way(self, count: int) -> int:
        """Let sleeping kernels give up at most `count` places; return how many places become free soon."""
        found = self.yielding(count) if count > 0 and not self.closed else ()
        leaving = self.in_use.intersection(found)
        self.leaving |= leaving
        return len(leaving)

    def detach(self, kernel: Kernel) -> None:
        """Forget a claimed kernel, which goes on."""
        for kernels in (self.in_use, self.replaced, self.leaving):
            kernels.discard(kernel)

    def release(self, kernel: Kernel, spared: Collection[Path] = ()) -> None:
        """End a claimed kernel; does nothing for any other."""
        self.leaving.discard(kernel)
        if kernel in self.in_use:
            self.in_use.discard(kernel)
            self.end(kernel, spared)
        elif kernel in self.replaced:
            self.replaced.discard(kernel)
            self.end(kernel, spared, has_place=False)

    def end(
        self, kernel: Kernel, spared: Collection[Path] = (), *, has_place: bool = True
    ) -> asyncio.Task[None]:
        """End a kernel in the background; return the task, whose end frees the kernel's place."""
        ending = kernel.discard(spared=spared)
        task = self._tasks.start(ending, f"end {kernel.id}", kernel=kernel.id)
        if has_place:
            self.ending.add(task)
            task.add_done_callback(self._tasks.guard(self._ended, "count of kernels"))
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.ending.discard(task)
        self.changed()
