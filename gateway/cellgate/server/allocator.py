"""How the C library keeps memory that was freed: a gateway gives large pieces back to the system at once.

It knows nothing of what is allocated; ``cli.serve`` calls it before anything else. On another C library
than glibc it does nothing.
"""

from __future__ import annotations

import ctypes

from cellgate_kernels.limits import MIB

M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
ARENAS = 2


def give_back_large_pieces() -> bool:
    """Keep pieces of 1 MiB and more apart from the heap, and threads in few heaps; whether that was possible.

    By default glibc raises that size up to 32 MiB with each such piece that is freed (mallopt(3)), so that
    after a flood of output the heap stays as large as the flood's messages were.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, MIB) and mallopt(M_ARENA_MAX, ARENAS))
