"""The memory and processor time that kernels use: the sums of their processes, as /proc shows them.

/proc is read once for all kernels; callers do so in a thread. Pages that several processes share count for
each process: to divide them (``smaps``) takes the system a thousand times as long. Limits are the backends'
business. See proc(5).
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cellgate_kernels.limits.disk import TICKS_PER_SECOND, family, state_of, ticks_of

MOST_PROCESSES = 20_000
"""The most processes that are examined, so that a machine with more of them costs no more time."""

_PARENT, _RESIDENT = 1, 21
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The use of a process and its descendants. `memory`: their bytes in memory.

    `seconds`: the processor time of the living ones, and of children that they have reaped.
    """

    memory: int = 0
    seconds: float = 0.0


def uses(roots: Sequence[int]) -> list[MemoryUse]:
    """Measure each process with its descendants; zero for a process that is gone."""
    children: dict[int, list[int]] = defaultdict(list)
    own: dict[int, tuple[int, int]] = {}
    processes = (name for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208
    for _, name in zip(range(MOST_PROCESSES), processes, strict=False):
        with suppress(OSError):
            fields = state_of(f"/proc/{name}")
            children[int(fields[_PARENT])].append(int(name))
            own[int(name)] = int(fields[_RESIDENT]), ticks_of(fields)
    return [_sum(own[pid] for pid in family(root, children) if pid in own) for root in roots]


def resident(roots: Sequence[int]) -> list[int]:
    """Return the bytes in memory of each process and its descendants; 0 for a process that is gone."""
    return [each.memory for each in uses(roots)]


def _sum(found: Iterator[tuple[int, int]]) -> MemoryUse:
    pages = ticks = 0
    for of_one in found:
        pages += of_one[0]
        ticks += of_one[1]
    return MemoryUse(_PAGE * pages, ticks / TICKS_PER_SECOND)
