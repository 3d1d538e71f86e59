"""Leaves a process without open files, as one has none that serves too many clients."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_open_files(pid: int = 0) -> Iterator[None]:
    """The process (0: this one) can open nothing any more, whatever it closes; what it has open, it keeps.

    Numbers below three are those of its standard streams, and no others are allowed.
    """
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
