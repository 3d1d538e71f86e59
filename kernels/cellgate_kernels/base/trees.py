"""Walks, moves and removes folders that hostile code may have filled with anything, and measures their disks.

Nothing here recurses, follows a link or builds a long path: folders are opened by descriptors (openat(2),
O_NOFOLLOW), so neither depth nor PATH_MAX matters and no name leads outside, even while code swaps folders
for links. Permissions that the owner removed are restored where they are needed. All functions block; call
them in a thread. They know no kernel and no session; errors of the file system are raised as OSError.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec

DEEPEST = 64
"""Most names in a path below the walked folder; each level holds a descriptor."""
MOST = 100_000
"""Most entries that one walk visits."""

NO_OPEN_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""The process or the system has too many open files: a temporary fault that says nothing about a folder."""

_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS = stat.S_IRWXU
_PASSES = 3
"""Most repeats for a folder to which code still writes."""
_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)
_GONE = (errno.ENOENT, *_NO_FOLDER)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
_UNKNOWN = 1 << 62
"""Stands for a size that a file system does not report; some have 0 blocks in all."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry found by a walk. `folder` is the descriptor of its folder, open until the walk continues."""

    path: str
    name: str
    folder: int
    found: os.stat_result

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, not a link to one."""
        return stat.S_ISDIR(self.found.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.found.st_mode)


class Walk:
    """All entries below a folder, each folder before its contents, as far as the limits allow.

    `complete` is false once something was left out: entries deeper than `deepest` names or after the first
    `most`, and folders that can't be read. Entries that vanish during the walk don't count. `hindered` is the
    first error from too many open files, if any: another walk may see more. With `ordered` the entries of a
    folder are sorted by name. With `inside`, a descriptor of a folder, `root` is a path in it.
    """

    def __init__(
        self,
        root: Path,
        *,
        deepest: int = DEEPEST,
        most: int = MOST,
        ordered: bool = False,
        inside: int | None = None,
    ) -> None:
        self.complete = True
        self.hindered: OSError | None = None
        self._root = root
        self._inside = inside
        self._ordered = ordered
        self._deepest = deepest
        self._left = most

    def __iter__(self) -> Iterator[Entry]:
        # One open folder per level: its descriptor, its path with a slash, and its folders still to visit.
        levels: list[tuple[int, str, list[str]]] = []
        try:
            self._enter(levels, self._inside, str(self._root), "")
            if levels:
                yield from self._entries(levels)
            while levels:
                folder, path, waiting = levels[-1]
                if not waiting:
                    levels.pop()
                    os.close(folder)
                elif len(levels) >= self._deepest or self._left <= 0:
                    self.complete = False
                    waiting.clear()
                else:
                    name = waiting.pop()
                    if self._enter(levels, folder, name, f"{path}{name}/"):
                        yield from self._entries(levels)
        finally:
            for folder, _, _ in levels:
                os.close(folder)

    def _enter(
        self, levels: list[tuple[int, str, list[str]]], folder: int | None, name: str, path: str
    ) -> bool:
        try:
            levels.append((os.open(name, _READ, dir_fd=folder), path, []))
        except OSError as error:
            self._note(error)
            return False
        return True

    def _note(self, error: OSError) -> None:
        self.complete &= error.errno in _GONE
        if error.errno in NO_OPEN_FILES and self.hindered is None:
            self.hindered = error

    def _entries(self, levels: list[tuple[int, str, list[str]]]) -> Iterator[Entry]:
        folder, path, waiting = levels[-1]
        try:
            with os.scandir(folder) as found:
                # One more than the limit, to notice further entries.
                entries = sorted(islice(found, self._left + 1), key=_name) if self._ordered else found
                for each in entries:
                    if self._left <= 0:
                        self.complete = False
                        break
                    self._left -= 1
                    try:
                        entry = Entry(path + each.name, each.name, folder, each.stat(follow_symlinks=False))
                    except OSError as error:
                        self._note(error)
                        continue
                    if stat.S_ISDIR(entry.found.st_mode):
                        waiting.append(each.name)
                    yield entry
        except OSError as error:
            self._note(error)
        if self._ordered:
            waiting.reverse()


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Return a descriptor of a folder to read and change, restoring its owner's permissions if needed."""
    descriptor = open_folder(None, str(folder))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_folder(parent: int | None, name: str) -> int:
    """Return a descriptor as of `opened`, which the caller closes."""
    handle = os.open(name, _HANDLE, dir_fd=parent)
    try:
        _unlock(handle)
        return os.open(".", _READ, dir_fd=handle)
    finally:
        os.close(handle)


def _unlock(handle: int) -> int:
    """Let the owner of a folder read and change it; return its former mode."""
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    if mode & _OURS != _OURS:
        # If the mode can't be changed, the caller's next operation raises its own error.
        with suppress(PermissionError):
            _set_mode(handle, mode | _OURS)
    return mode


def _set_mode(handle: int, mode: int) -> None:
    os.chmod(f"/proc/self/fd/{handle}", mode)  # noqa: PTH101 - fchmod takes no O_PATH descriptor


def is_folder(path: Path) -> bool:
    """Return whether it exists and is a folder, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def is_empty(path: Path) -> bool:
    """Return whether the folder is empty; False if it can't be read, or is a link."""
    try:
        folder = os.open(path, _READ)
    except OSError:
        return False
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False
    finally:
        os.close(folder)


def move_entries(source: Path, target: Path) -> None:
    """Move everything in one folder to another on the same file system, keeping modes.

    Entries that can't be moved stay where they are; the first error is raised after the rest has been moved.
    """
    with opened(source) as old, opened(target) as new:
        for _ in range(_PASSES):
            names = os.listdir(old)  # noqa: PTH208 - a descriptor
            refused = [error for name in names if (error := move_entry(old, name, new, name)) is not None]
            if refused:
                raise refused[0]
            if not names:
                return
    raise OSError(errno.EBUSY, "The folder is still written to")


def rename(source: Path, target: Path) -> None:
    """Rename a folder, even if its owner removed the permission to change it or its parent.

    It has the same mode afterwards. Opens a file only where permissions are restored.
    """
    try:
        source.rename(target)
    except PermissionError as refusal:
        with opened(source.parent) as old, opened(target.parent) as new:
            refused = move_entry(old, source.name, new, target.name)
        if refused is not None:
            raise refused from refusal


def names_in(folder: Path) -> list[str]:
    """List the names in a folder, even if its owner removed the permission to read it."""
    with opened(folder) as descriptor:
        return os.listdir(descriptor)  # noqa: PTH208 - a descriptor


def move_entry(old: int, name: str, new: int, new_name: str) -> OSError | None:
    """Move an entry of an open folder to another; return the error, if any. A missing one is no error."""
    try:
        os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        return _move_unlocked(old, name, new, new_name, error)
    except OSError as error:
        return error
    return None


def _move_unlocked(old: int, name: str, new: int, new_name: str, refusal: OSError) -> OSError | None:
    """Move a folder that is not writable: it must be made writable first, because its `..` changes."""
    try:
        handle = os.open(name, _HANDLE, dir_fd=old)
    except OSError:
        return refusal
    try:
        mode = _unlock(handle)
        try:
            os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)
        finally:
            if mode & _OURS != _OURS:
                with suppress(PermissionError):
                    _set_mode(handle, mode)
    except OSError as error:
        return error
    finally:
        os.close(handle)
    return None


def remove(path: Path) -> None:
    """Remove a folder and everything below it, or any other entry; a missing path is not an error.

    Everything that can be removed is removed before the first error is raised.
    """
    try:
        folder = open_folder(None, str(path))
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        path.unlink(missing_ok=True)
        return
    try:
        refused = _empty(folder)
    finally:
        os.close(folder)
    try:
        path.rmdir()
    except FileNotFoundError:
        return  # removed by someone else at the same time
    except OSError as error:
        raise (refused or error) from error


def _empty(root: int) -> OSError | None:
    """Remove everything in a folder. Folders below are moved up into it first, so none is ever deep."""
    unique = f".removed-{secrets.token_hex(8)}-"
    number = 0
    refused: OSError | None = None
    for _ in range(_PASSES):
        folders, kept = _unlink_files(root)
        refused = refused or kept
        while folders:
            name = folders.pop()
            try:
                folder = open_folder(root, name)
            except OSError as error:
                if error.errno not in _GONE:
                    refused = refused or error
                continue
            try:
                inner, kept = _unlink_files(folder)
                refused = refused or kept
                for each in inner:
                    number += 1
                    kept = _lift(folder, root, each, f"{unique}{number}")
                    if kept is None:
                        folders.append(f"{unique}{number}")
                    elif kept.errno not in _GONE:
                        refused = refused or kept
            finally:
                os.close(folder)
            with suppress(OSError):
                os.rmdir(name, dir_fd=root)
        if not os.listdir(root):
            return None
    return refused


def _lift(folder: int, root: int, name: str, fresh: str) -> OSError | None:
    """Move a folder up; an empty one is removed instead, which takes no disk space."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in _TAKEN and not isinstance(error, PermissionError):
            return error
    else:
        return FileNotFoundError(errno.ENOENT, "It was empty and is gone")
    try:
        handle = os.open(name, _HANDLE, dir_fd=folder)
    except OSError as error:
        return error
    try:
        _unlock(handle)
        os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=root)
    except OSError as error:
        return error
    finally:
        os.close(handle)
    return None


def _unlink_files(folder: int) -> tuple[list[str], OSError | None]:
    """Remove everything but folders from a folder. Return the names of these, and the first error."""
    folders: list[str] = []
    refused: OSError | None = None
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                refused = refused or error
    return folders, refused


def free(folder: Path | int) -> int:
    """Return the bytes that can be written to the disk of a folder or an open file."""
    found = os.statvfs(folder)
    if not found.f_blocks:
        return _UNKNOWN
    return found.f_bavail * found.f_frsize


def half_of_disk(folder: Path) -> int:
    """Return half of the size of a folder's disk, in bytes."""
    found = os.statvfs(folder)
    half = found.f_blocks * found.f_frsize // 2
    return half or _UNKNOWN
