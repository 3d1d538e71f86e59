"""How much memory and processor time the sessions' kernels use now, for whoever asks.

All kernels are looked at together, in a thread, and what was found is good for a second; where a look takes
long, for as much longer that looking never takes more than a small share of a processor. It keeps no history
and limits nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from cellgate_kernels.base.errors import GatewayFault
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.limits.memory import MemoryUse, uses

GOOD_FOR = 1.0
"""Seconds."""
SHARE = 0.02
"""Of a processor."""

Look = Callable[[Sequence[int]], Sequence[MemoryUse]]


class KernelMeter:
    """`processes` returns the kernels' first processes; `lane`: threads for looking at them."""

    def __init__(self, processes: Callable[[], Sequence[int]], lane: Lane, look: Look = uses) -> None:
        self._processes = processes
        self._lane = lane
        self._look = look
        self._time = asyncio.get_running_loop().time
        self._tasks = Supervisor()
        self._looking: asyncio.Task[None] | None = None
        self._found: Mapping[int, MemoryUse] = {}
        self._good_until = 0.0

    async def look(self) -> None:
        """Return when `of` says what was so at most a moment ago. All who call at once share one look."""
        if self._time() < self._good_until:
            return
        if self._looking is None:
            self._looking = self._tasks.share(self._renew(), "memory of kernels")
            self._looking.add_done_callback(self._looked)
        await outcome(self._looking, GatewayFault)

    def _looked(self, _: object) -> None:
        self._looking = None

    async def _renew(self) -> None:
        begun = self._time()
        processes = list(self._processes())
        found = await self._lane.run(self._look, processes)
        self._found = dict(zip(processes, found, strict=True))
        ended = self._time()
        self._good_until = ended + max(GOOD_FOR, (ended - begun) / SHARE)

    def of(self, kernel: Kernel | None) -> MemoryUse | None:
        """Return the kernel's use at the last look; None if that is not known.

        Kernels that share a sandbox because of branches have the same, that of all of them.
        """
        process = None if kernel is None else kernel.process
        return None if process is None else self._found.get(process)
