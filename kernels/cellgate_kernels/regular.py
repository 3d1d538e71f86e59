"""Reads small files of the data folder, and only regular files.

Anyone who can write to that folder may have put something else in a file's place. Reading a pipe would block
the gateway before it can even be stopped, and a device has no end. The caller interprets the bytes.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NoRegularFile(OSError):
    """There is a folder, a pipe, a socket or a device in place of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is no regular file", str(path))


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """The first `most` bytes of the file at `path`; never blocks on a pipe. Raises OSError."""
    descriptor = open_regular(path, follow=follow)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)


def open_regular(path: Path, *, follow: bool = True) -> int:
    """A descriptor of the file at `path`, for reading. Raises OSError, NoRegularFile for anything else."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if not follow:
        flags |= os.O_NOFOLLOW
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NoRegularFile(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
