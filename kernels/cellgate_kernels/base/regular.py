"""Opens files without ever waiting, and reads small, regular files of the data folder.

Anyone who can write to that folder may have put something else in a file's place. Reading a pipe would block
the gateway before it can even be stopped, and a device has no end. A session's code may hold its files, too,
as by a lease: a usual open would wait for the holder. The caller interprets the bytes.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from cellgate_kernels.base.errors import InvalidInput, in_brief


class NoRegularFile(OSError):
    """The path has a folder, a pipe, a socket or a device instead of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is no regular file", str(path))


AT_ONCE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags of open(2) that never wait: they raise BlockingIOError instead."""


def open_at_once(name: str, flags: int, *, folder: int | None = None, follow: bool = False) -> int:
    """Return a descriptor, which the caller closes, of a possible session's file; the only way to open one.

    Raises OSError; BlockingIOError if the file is held, so that opening it would wait for its holder.
    """
    return os.open(name, flags | AT_ONCE | (0 if follow else os.O_NOFOLLOW), dir_fd=folder)


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """Return the first `most` bytes of the file at `path`; never blocks on a pipe. Raises OSError."""
    descriptor = open_regular(path, follow=follow)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)


def read_given(path: Path, most: int, content: str) -> bytes:
    """Return a file that the operator names, of at most `most` bytes. `content`: its kind, with an article.

    Raises InvalidInput with the path and the fault; an OSError is its cause.
    """
    try:
        found = read_regular(path, most + 1)
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {in_brief(error)}") from error
    if len(found) > most:
        raise InvalidInput(f"{path} is larger than {content} can be, {most:,} bytes")
    return found


def open_regular(path: Path, *, follow: bool = True) -> int:
    """Return a descriptor for reading the file at `path`. Raises OSError, NoRegularFile."""
    descriptor = open_at_once(os.fspath(path), os.O_RDONLY, follow=follow)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NoRegularFile(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
