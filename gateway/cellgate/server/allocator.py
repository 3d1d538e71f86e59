"""Tuning of the C library's allocator: memory that the gateway has freed goes back to the system.

``cli.serve`` sets it up before anything else, and ``assembly`` starts the `Trimmer`. On a C library other
than glibc both do nothing.
"""

from __future__ import annotations

import ctypes

from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
ARENAS = 2
TRIM_SECONDS = 60.0


def give_back_large_pieces() -> bool:
    """Allocate blocks of 1 MiB and more outside the heap, and limit the arenas; returns whether it worked.

    By default glibc raises that threshold, up to 32 MiB, each time such a block is freed (mallopt(3)), so
    that after a flood of output the heap stays as large as the flood's messages were.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MIB) and mallopt(M_ARENA_MAX, ARENAS))


class Trimmer:
    """`start` it with the gateway, `close` it before the loop ends. It works in a thread of `lane`."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._tasks = Supervisor()

    def start(self) -> None:
        """Give free pages back to the system, now and once a minute."""
        self._tasks.repeat(self.trim, "give memory back", pause=TRIM_SECONDS)

    async def close(self) -> None:
        """Stop giving pages back."""
        await self._tasks.cancel()

    async def trim(self) -> float:
        """Give free pages back once; return the seconds until the next time."""
        await self._lane.run(_give_back_free_pages)
        return TRIM_SECONDS


def _give_back_free_pages() -> None:
    """Give back all whole pages that are free inside the heap.

    By itself glibc gives back those at its end only (malloc_trim(3)). Outputs of cells that are freed between
    others that stay leave holes, which under load become some ten megabytes more every minute.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
