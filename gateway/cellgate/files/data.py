"""Opens and copies the data of single files that hostile code may be writing to at the same time.

``copying`` (branches) and ``snapshots`` (checkpoints) read a workspace's files only by these functions: they
follow no link, never wait for a pipe, a device or the holder of a file, keep holes, and share blocks between
files (reflinks) where the file system can. They know no folders; ``cellgate_kernels.base.trees`` walks them.
Blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest

from cellgate.errors import FileHeld, QuotaExceeded, ShuttingDown
from cellgate_kernels.base import trees
from cellgate_kernels.base.regular import open_at_once

MODES = 0o777
"""Permissions are copied, set-id bits are not."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to create a file and write to it."""
_VANISHED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
_NO_RANGES = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_CLONES = _NO_RANGES | {errno.ENOTTY, errno.EPERM}
_CLONE = 0x40049409
"""ioctl_ficlone(2)."""
_STEP = 16 * 1024 * 1024
_COMPARED = 1024 * 1024

Stop = Callable[[], bool]
"""Returns whether to give up; called between steps of at most 16 MiB."""


def never() -> bool:
    """Return False: a copy with this `stop` never gives up."""
    return False


def go_on(stop: Stop) -> None:
    """Raise ShuttingDown if `stop` returns True."""
    if stop():
        raise ShuttingDown("The gateway is shutting down, and the files are not copied yet")


@contextmanager
def opened(name: str, folder: int, path: str = "") -> Iterator[int | None]:
    """Return a descriptor for reading a regular file in a folder; None if it is missing or replaced.

    `path`: the file's name in errors. Raises OSError, FileHeld.
    """
    try:
        descriptor = open_at_once(name, os.O_RDONLY, folder=folder)
    except BlockingIOError as error:
        raise FileHeld(path or name) from error
    except OSError as error:
        if error.errno in _VANISHED:
            yield None
            return
        raise
    try:
        yield descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)


def link_text(name: str, folder: int) -> str | None:
    """Return the target of a symbolic link; None if it is missing, or no longer a link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in trees.NO_OPEN_FILES:
            raise
        return None


def parts(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that have data, up to `size`: first byte, and the one after the last."""
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            end = min(os.lseek(descriptor, at, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole up to the end
            raise
        if end <= at:
            return  # the file has grown meanwhile
        yield at, end
        at = end


def clone(source: int, target: int) -> bool:
    """Let an empty file share the blocks of another; return whether the file system can do that."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError as error:
        if error.errno not in _NO_CLONES:
            raise
        return False
    return True


def copy_data(source: int, target: int, size: int, left: int, stop: Stop) -> int:
    """Copy a file's data without its holes; return how many of the `left` bytes may still be copied."""
    os.ftruncate(target, size)
    for at, end in parts(source, size):
        left -= end - at
        if left < 0:
            raise QuotaExceeded("The files can't be copied: they take more than the session's limit `disk`")
        copy_range(source, target, at, end, stop)
    return left


def copy_range(source: int, target: int, at: int, end: int, stop: Stop) -> None:
    """Copy these bytes, or as many as are left if the file was cut meanwhile."""
    while at < end:
        go_on(stop)
        try:
            copied = os.copy_file_range(source, target, min(_STEP, end - at), at, at)
        except OSError as error:
            if error.errno not in _NO_RANGES:
                raise
            copied = os.pwrite(target, os.pread(source, min(_STEP, end - at), at), at)
        if not copied:
            return
        at += copied


def same(one: int, other: int, size: int, stop: Stop) -> bool:
    """Return whether two files of this size have the same bytes; False too if their holes lie elsewhere."""
    for part, twin in zip_longest(parts(one, size), parts(other, size)):
        if part is None or part != twin:
            return False
        at, end = part
        while at < end:
            go_on(stop)
            step = min(_COMPARED, end - at)
            if os.pread(one, step, at) != os.pread(other, step, at):
                return False
            at += step
    return True


def is_open(descriptor: int, *, for_writing: bool = False) -> bool:
    """Return whether a file is, or may be, open elsewhere; `descriptor` must be for reading only.

    Through a shared map data can change without a trace on the file, and a map keeps its file open. The
    kernel grants a lease only on a file that is not open elsewhere; a lease for reading, if not open for
    writing. An open during the lease's microseconds waits for its end, and this process gets a signal that it
    ignores.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK if for_writing else fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno in trees.NO_OPEN_FILES:
            raise
        return True
    return False
