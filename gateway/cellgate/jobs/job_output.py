"""What a job's process does with what it has made; imports nothing that a job does not need anyway.

``jobs`` starts the process and knows what its exit code means.
"""

from __future__ import annotations

import os
import sys

from cellgate.wire.errors import is_full


def give(made: bytes) -> int:
    """Write it to stdout; the exit code, EX_IOERR where there is no room for it."""
    left = memoryview(made)
    try:
        # Not by sys.stdout, which would try it once more at the end.
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]
    except OSError as error:
        if not is_full(error):
            raise
        return os.EX_IOERR
    return 0
