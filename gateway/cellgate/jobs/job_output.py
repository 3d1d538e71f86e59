"""Writes the result of a job from inside its process; imports only what every job needs.

``jobs`` starts the process and interprets its exit code.
"""

from __future__ import annotations

import os
import sys

from cellgate.errors import is_full


def give(made: bytes) -> int:
    """Write the result to stdout; returns the exit code, EX_IOERR if there is no room for it."""
    left = memoryview(made)
    try:
        # Not through sys.stdout, which would try again to flush it at exit.
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]
    except OSError as error:
        if not is_full(error):
            raise
        return os.EX_IOERR
    return 0
