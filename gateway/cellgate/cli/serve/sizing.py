"""How many kernels a machine has memory for: the default of ``--max-kernels``, and a warning. Pure."""

from __future__ import annotations

from cellgate_kernels.base.resources import GIB, MIB

MEMORY_OF_KERNEL = 256 * MIB
"""Bytes of the machine's memory for each kernel: most are idle, and share what they have loaded."""
LEAST_KERNELS = 4
MOST_KERNELS = 512
"""More than that need more open files and processors than one gateway mostly has; who has them says so."""
MANY_TIMES = 8
"""How many times the machine's memory kernels may use at their limits before the start warns of it."""


def kernels_for(memory: int) -> int:
    """Return the most kernels of a machine with these bytes of memory, if the operator names no number."""
    return min(max(memory // MEMORY_OF_KERNEL, LEAST_KERNELS), MOST_KERNELS)


def too_many(kernels: int, limit: int, memory: int) -> str | None:
    """Say that kernels, each at its `limit`, would use many times the memory; None if not so. Bytes."""
    times = kernels * limit / memory
    if times <= MANY_TIMES:
        return None
    return (
        f"{kernels} kernels (max_kernels) of {limit / GIB:.3g} GiB each (memory) would use {times:.0f} times"
        f" the {memory / GIB:.3g} GiB of memory here. Busy ones may be killed then, though none is at its"
        " limit: lower max_kernels or memory, or give users quotas of memory"
    )
