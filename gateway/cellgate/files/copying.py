"""Copies the files of a workspace into another, empty folder, while code may still write to both.

Both folders are walked by descriptors, and links are never followed, neither in the source nor in the target,
which the code in a sandbox may see too. Regular files, folders and links are copied; sockets, pipes and
devices are not. Several names of one file remain names of one file in the copy, so they take no more room.
``data`` copies files' content. Blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from cellgate.errors import FileHeld, QuotaExceeded
from cellgate.files import data
from cellgate.files.data import MODES, Stop, go_on, never
from cellgate_kernels.base import trees

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKED = 1 << 16
"""Most files with several names that are remembered. Names of others become separate files."""


class _Target:
    """The target folder, and the folder in it that got the last entry."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER)
        self._path = ""
        self._folder = self._root

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        os.close(self._root)

    def folder(self, path: str) -> int:
        """Return the descriptor of a folder in it, open until the next call."""
        if path != self._path:
            self._leave()
            for name in path.split("/") if path else ():
                inner = os.open(name, _FOLDER, dir_fd=self._folder)
                self._leave()
                self._folder = inner
            self._path = path
        return self._folder

    def _leave(self) -> None:
        if self._folder != self._root:
            os.close(self._folder)
        self._folder = self._root
        self._path = ""


class _Linked:
    """Files with several names, each with the path of its first copy."""

    def __init__(self, target: Path) -> None:
        self._first: dict[tuple[int, ...], str] = {}
        self._made = _Target(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._made.__exit__(kind, error, trace)

    def add(self, entry: trees.Entry) -> None:
        """Store the path of a copied file that has several names."""
        if entry.found.st_nlink > 1 and len(self._first) < _MOST_LINKED:
            self._first[_identity(entry)] = entry.path

    def link(self, entry: trees.Entry, folder: int) -> bool:
        """Add the entry as a further name of its first copy; return whether that was possible."""
        first = self._first.get(_identity(entry))
        if first is None:
            return False
        around, _, name = first.rpartition("/")
        try:
            source = self._made.folder(around)
            os.link(name, entry.name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in trees.NO_OPEN_FILES or error.errno == errno.ENOSPC:
                raise
            return False
        return True


def _identity(entry: trees.Entry) -> tuple[int, ...]:
    """Return a file's present identity: it may change during the copy, and its inode may be reused."""
    found = entry.found
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def copy_tree(
    source: Path,
    target: Path,
    most_bytes: int,
    *,
    deepest: int = trees.DEEPEST,
    most: int = trees.MOST,
    stop: Stop = never,
) -> bool:
    """Copy everything below `source` into the empty folder `target`; return whether there was anything.

    Raises QuotaExceeded above `most_bytes`, `most` entries or `deepest` nested folders, FileHeld,
    ShuttingDown once `stop` returns True, and OSError.
    """
    left = most_bytes
    copied = False
    walk = trees.Walk(source, deepest=deepest, most=most)
    with _Target(target) as made, _Linked(target) as linked:
        for entry in walk:
            go_on(stop)
            folder = made.folder(entry.path[: -len(entry.name)].rstrip("/"))
            copied = True
            if entry.is_folder:
                os.mkdir(entry.name, stat.S_IMODE(entry.found.st_mode) & MODES | stat.S_IRWXU, dir_fd=folder)
            elif stat.S_ISLNK(entry.found.st_mode):
                _copy_link(entry, folder)
            elif entry.is_file and not linked.link(entry, folder):
                left = _copy_file(entry, folder, left, stop)
                linked.add(entry)
    if walk.hindered is not None:
        raise walk.hindered
    if not walk.complete:
        raise QuotaExceeded(
            f"The files can't be copied: there are more than {most:,}, or they lie deeper than {deepest}"
            " folders, or their permissions forbid it"
        )
    return copied


def data_bytes(source: Path, *, deepest: int, most: int, stop: Stop = never) -> int:
    """Count the bytes that a copy of everything below `source` would have now, without holes.

    Raises ShuttingDown once `stop` returns True, and OSError on too many open files.
    """
    total = 0
    linked: set[tuple[int, int]] = set()
    for entry in trees.Walk(source, deepest=deepest, most=most):
        go_on(stop)
        inode = entry.found.st_dev, entry.found.st_ino
        if not entry.is_file or inode in linked:
            continue
        if entry.found.st_nlink > 1 and len(linked) < _MOST_LINKED:
            linked.add(inode)
        total += _data_bytes(entry)
    return total


def _data_bytes(entry: trees.Entry) -> int:
    size = entry.found.st_size
    if entry.found.st_blocks * 512 >= size:
        return size
    # It has holes, or is compressed.
    try:
        with data.opened(entry.name, entry.folder) as descriptor:
            return 0 if descriptor is None else _without_holes(descriptor, size)
    except FileHeld:
        return entry.found.st_blocks * 512
    except OSError as error:
        if error.errno in trees.NO_OPEN_FILES:
            raise
        return 0


def _without_holes(descriptor: int, size: int) -> int:
    try:
        return sum(end - at for at, end in data.parts(descriptor, size))
    except OSError:
        return size


def _copy_link(entry: trees.Entry, folder: int) -> None:
    leads_to = data.link_text(entry.name, entry.folder)
    if leads_to is not None:
        os.symlink(leads_to, entry.name, dir_fd=folder)


def _copy_file(entry: trees.Entry, folder: int, left: int, stop: Stop) -> int:
    """Copy a file's data without its holes; return how many bytes may still be copied."""
    with data.opened(entry.name, entry.folder, entry.path) as source:
        if source is None:
            return left
        found = os.fstat(source)
        target = os.open(entry.name, data.NEW, found.st_mode & MODES | stat.S_IWUSR, dir_fd=folder)
        try:
            left = data.copy_data(source, target, found.st_size, left, stop)
            os.fchmod(target, stat.S_IMODE(found.st_mode) & MODES)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(target)
    return left
