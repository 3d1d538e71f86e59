"""Measures the memory and processor time that kernels use now, for models of sessions and for metrics.

All kernels are measured together, in a thread, and a measurement is valid for a second. After a slow one it
stays valid for longer, so that measuring never takes more than a small share of a processor. It keeps no
history and limits nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from cellgate_kernels.base.errors import GatewayFault, in_words
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.limits.memory import MemoryUse, uses

logger = logging.getLogger(__name__)

GOOD_FOR = 1.0
"""Seconds that a measurement is valid."""
SHARE = 0.02
"""Most of a processor that measuring takes."""

Look = Callable[[Sequence[int]], Sequence[MemoryUse]]


class KernelMeter:
    """Measures kernels. `processes` returns the kernels' first processes; `lane`: threads to read them."""

    def __init__(self, processes: Callable[[], Sequence[int]], lane: Lane, look: Look = uses) -> None:
        self._processes = processes
        self._lane = lane
        self._look = look
        self._time = asyncio.get_running_loop().time
        self._tasks = Supervisor()
        self._looking: asyncio.Task[None] | None = None
        self._found: Mapping[int, MemoryUse] = {}
        self._good_until = 0.0
        self._fails = False
        self.measured_at = -math.inf
        """When the last measurement began, by the loop's clock."""

    async def look(self, kernels: Iterable[Kernel | None] = ()) -> None:
        """Return when the values of `of` are at most a moment old. Concurrent calls share one measurement.

        Those of `kernels` that have begun since the last measurement are measured by themselves.
        """
        if self._time() >= self._good_until:
            if self._looking is None:
                self._looking = self._tasks.share(self._renew(), "memory of kernels")
                self._looking.add_done_callback(self._looked)
            await outcome(self._looking, GatewayFault)
        await self._add(kernels)

    async def look_later(self, moment: float) -> None:
        """Return when there is a measurement that began after this moment of the loop's clock."""
        while self.measured_at <= moment:
            await asyncio.sleep(max(0.0, self._good_until - self._time()))
            await self.look()

    async def _add(self, kernels: Iterable[Kernel | None]) -> None:
        """Measure those kernels that the last measurement does not have."""
        asked = {each.process for each in kernels if each is not None and each.process is not None}
        new = [each for each in self._processes() if each in asked and each not in self._found]
        if new:
            try:
                found = await self._lane.run(self._look, new)
            except OSError:
                return  # the next measurement of all will say so, or have them
            self._found = {**self._found, **dict(zip(new, found, strict=True))}

    def _looked(self, _: object) -> None:
        self._looking = None

    async def _renew(self) -> None:
        begun = self._time()
        processes = list(self._processes())
        try:
            found = await self._lane.run(self._look, processes)
        except OSError as error:
            # What was known stays, as while too many files are open.
            if not self._fails:
                logger.warning("The use of kernels can't be measured for now: %s", in_words(error))
            self._fails = True
            self._good_until = self._time() + GOOD_FOR
            return
        self._fails = False
        self._found = dict(zip(processes, found, strict=True))
        self.measured_at = begun
        ended = self._time()
        self._good_until = ended + max(GOOD_FOR, (ended - begun) / SHARE)

    @property
    def all(self) -> Sequence[MemoryUse]:
        """The use of each sandbox, container or kernel's process at the last measurement."""
        return tuple(self._found.values())

    def of(self, kernel: Kernel | None) -> MemoryUse | None:
        """Return the kernel's use at the last measurement; None if unknown.

        Kernels that share a sandbox because of branches all have the same value: the sum of all.
        """
        process = None if kernel is None else kernel.process
        return None if process is None else self._found.get(process)
