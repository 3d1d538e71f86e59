"""Tuning of the C library's allocator: the gateway returns large freed blocks to the system at once.

``cli.serve`` calls it before anything else. On a C library other than glibc it does nothing.
"""

from __future__ import annotations

import ctypes

from cellgate_kernels.limits import MIB

M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
ARENAS = 2


def give_back_large_pieces() -> bool:
    """Allocate blocks of 1 MiB and more outside the heap, and limit the arenas; returns whether it worked.

    By default glibc raises that threshold, up to 32 MiB, each time such a block is freed (mallopt(3)), so
    that after a flood of output the heap stays as large as the flood's messages were.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MIB) and mallopt(M_ARENA_MAX, ARENAS))
