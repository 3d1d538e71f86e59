"""How much memory kernels use: the resident memory of their processes, as /proc shows it.

One read of /proc for all kernels, however many there are; whoever asks calls it in a thread. Pages that
several processes share count for each of them: what belongs to whom (``smaps``) takes the system a
thousand times as long. It limits nothing: that is the backends' business. See proc(5).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import suppress

from cellgate_kernels.provisioners.disk import family, state_of

MOST_PROCESSES = 20_000
"""Processes that are looked at, so that a machine with more of them costs no more time."""

_PARENT, _RESIDENT = 1, 21
_PAGE = resource.getpagesize()


def resident(roots: Sequence[int]) -> list[int]:
    """Bytes that each of these processes and its descendants have in memory; 0 for one that is gone."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    processes = (name for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208
    for _, name in zip(range(MOST_PROCESSES), processes, strict=False):
        with suppress(OSError):
            fields = state_of(f"/proc/{name}")
            parents[int(name)] = int(fields[_PARENT])
            pages[int(name)] = int(fields[_RESIDENT])
    return [_PAGE * sum(pages.get(pid, 0) for pid in family(root, parents)) for root in roots]
