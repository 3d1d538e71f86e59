"""Restores a workspace to a snapshot's manifest, while hostile code may still write to it.

First everything is prepared beside the workspace: the differing files are found, and their data is copied
from the blobs. Only then the workspace is changed, by renames: additional entries are moved out whole,
however large, and each differing file is replaced in one step. A file that is open, such as a database or a
log, is overwritten instead, so that it stays the same file for a process that had it open at the snapshot;
but a held file (a lease) is replaced like the others, so that nobody waits for its holder. Folders are walked
by descriptors, and links are never followed. A restore can be repeated: entries that are already right are
left alone. It knows no other snapshot; ``snapshots`` has them. Blocks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import astuple

from cellgate.errors import FileHeld
from cellgate.files import data, tree
from cellgate.files.data import MODES, Stop
from cellgate.files.manifest import ROOT, Blob, Identity, Record, SnapshotManifest
from cellgate.files.tree import FileIdentity
from cellgate_kernels.base import trees
from cellgate_kernels.base.regular import open_at_once

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: files with other data, entries taken out, and bytes written.

    `anew`: files that were replaced or overwritten, by their numbers in the manifest, in their new state.
    `files`: all files in their present state, by path, except those whose names are not UTF-8.
    """

    files_changed: int
    removed: int
    bytes_written: int
    anew: dict[int, Identity] = field(default_factory=dict)
    files: dict[str, FileIdentity] = field(default_factory=dict)


class Restoring:
    """One restore. Call `prepare`, which changes nothing in the workspace, then `apply`.

    `draft`: an empty or half-filled folder on the workspace's disk, which keeps everything that is moved out
    of the workspace.
    """

    def __init__(
        self, manifest: SnapshotManifest, workspace: Path, draft: Path, blobs: Path, stop: Stop
    ) -> None:
        self._records = manifest.records
        self._inside = manifest.names()
        self._workspace = workspace
        self._blobs = blobs
        self._stop = stop
        self._names: dict[int, int] = {}
        for each in self._records:
            if each.blob is not None:
                self._names[each.first] = self._names.get(each.first, 0) + 1
        self._untouched: set[int] = set()
        self._differs: set[int] = set()
        self._overwritten: set[int] = set()
        self._inodes: dict[int, tuple[int, int]] = {}
        self._anew: dict[int, Identity] = {}
        self._refused: OSError | None = None
        self._removed = 0
        self._written = 0
        self._draft = os.open(draft, _FOLDER)
        with suppress(FileExistsError):
            os.mkdir(_REMOVED, 0o700, dir_fd=self._draft)
        self._out = os.open(_REMOVED, _FOLDER, dir_fd=self._draft)
        self._next = max((int(name) for name in os.listdir(self._out)), default=0)  # noqa: PTH208 - a descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        os.close(self._draft)

    def prepare(self) -> None:
        """Find the differing files, and copy their data beside the workspace. Raises OSError."""
        self._look()
        for number in sorted(self._differs - self._overwritten):
            self._stage(number)

    def needed(self) -> int:
        """Return the approximate bytes that `prepare` and `apply` need in addition. Raises OSError."""
        self._look()
        blobs = [self._records[number].blob for number in self._differs - self._overwritten]
        return sum(blob.bytes for blob in blobs if blob is not None)

    def apply(self) -> Restored:
        """Change the workspace. Raises the first OSError after everything else is done."""
        files: dict[str, FileIdentity] = {}
        root = trees.open_folder(None, str(self._workspace))
        try:
            self._bring(root, ROOT)
            self._settle(root, self._records[ROOT])
            for number in self._differs - self._overwritten:
                with suppress(FileNotFoundError):
                    os.unlink(str(number), dir_fd=self._draft)
            if self._refused is not None:
                raise self._refused
            self._see(root, ROOT, "", files)
        finally:
            os.close(root)
        return Restored(len(self._differs), self._removed, self._written, self._anew, files)

    # What differs

    def _look(self) -> None:
        try:
            root: int | None = os.open(self._workspace, _FOLDER)
        except PermissionError:
            root = None
        self._compare(root, ROOT)

    def _compare(self, folder: int | None, number: int) -> None:
        """Compare a folder's files with the manifest's; `folder` is closed, None stands for a missing one."""
        try:
            for each in self._inside[number]:
                data.go_on(self._stop)
                entry = self._records[each]
                if entry.blob is not None:
                    found = None if folder is None else _found(entry.name, folder)
                    if found is not None and entry.is_untouched(found) and self._names[entry.first] == 1:
                        # Nearly all files are, so they cost little.
                        self._untouched.add(each)
                    else:
                        self._compare_file(folder, each, entry, entry.blob, found)
                elif entry.is_folder:
                    self._compare(_inner(folder, entry), each)
        finally:
            if folder is not None:
                os.close(folder)

    def _compare_file(
        self, folder: int | None, number: int, entry: Record, blob: Blob, found: os.stat_result | None
    ) -> None:
        first = entry.first
        if folder is None or found is None or not stat.S_ISREG(found.st_mode):
            self._differs.add(first)
            self._overwritten.discard(first)
            return
        inode = found.st_dev, found.st_ino
        if self._inodes.setdefault(first, inode) != inode:
            self._differs.add(first)
            self._overwritten.discard(first)
        elif entry.is_untouched(found):
            self._untouched.add(number)
        elif number == first and not self._has_data(folder, entry, found, blob):
            self._differs.add(first)
            if self._can_be_overwritten(folder, entry, found, blob):
                self._overwritten.add(first)

    def _has_data(self, folder: int, entry: Record, found: os.stat_result, blob: Blob) -> bool:
        if entry.identity is None or found.st_size != entry.identity.size:
            return False
        try:
            with data.opened(os.fsdecode(entry.name), folder) as current, self._opened(blob) as kept:
                return current is not None and data.same(current, kept, found.st_size, self._stop)
        except (PermissionError, FileHeld):
            return False

    def _can_be_overwritten(self, folder: int, entry: Record, found: os.stat_result, blob: Blob) -> bool:
        """Return whether the entry is the snapshot's file, is open, and has no name outside the snapshot."""
        identity = entry.identity
        if (
            identity is None
            or (found.st_dev, found.st_ino) != (identity.device, identity.inode)
            or found.st_nlink != self._names[entry.first]
        ):
            return False
        with self._opened(blob) as kept:
            if list(_few(data.parts(kept, identity.size))) != ([(0, identity.size)] if identity.size else []):
                return False
        try:
            with data.opened(os.fsdecode(entry.name), folder) as current:
                return current is not None and data.is_open(current)
        except (PermissionError, FileHeld):
            return False

    @contextmanager
    def _opened(self, blob: Blob) -> Iterator[int]:
        descriptor = os.open(self._blobs / str(blob.number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _stage(self, number: int) -> None:
        """Copy a file's data beside the workspace, with its permissions and times."""
        entry = self._records[number]
        if entry.blob is None or entry.identity is None:
            return
        with suppress(FileNotFoundError):
            os.unlink(str(number), dir_fd=self._draft)
        with self._opened(entry.blob) as kept:
            target = os.open(str(number), data.NEW, 0o600, dir_fd=self._draft)
            try:
                if not data.clone(kept, target):
                    size = entry.identity.size
                    self._written += size - data.copy_data(kept, target, size, size, self._stop)
                self._settle(target, entry)
                self._anew[number] = Identity.of(os.fstat(target))
            finally:
                os.close(target)

    def _is_untouched(self, number: int, entry: Record) -> bool:
        """Return whether a file is unchanged, and stays so."""
        return number in self._untouched and entry.first not in self._differs

    # The changes

    def _bring(self, folder: int, number: int) -> None:
        """Restore a folder's content."""
        inside = {self._records[each].name: each for each in self._inside[number]}
        for current in os.listdir(folder):
            if os.fsencode(current) not in inside:
                self._take_out(folder, current)
        for name, each in inside.items():
            data.go_on(self._stop)
            entry = self._records[each]
            if self._is_untouched(each, entry):
                continue
            try:
                if entry.is_folder:
                    self._bring_folder(folder, os.fsdecode(name), each)
                elif entry.is_link:
                    self._bring_link(folder, os.fsdecode(name), entry)
                elif entry.blob is not None:
                    self._bring_file(folder, os.fsdecode(name), each, entry)
            except OSError as error:
                if error.errno in trees.NO_OPEN_FILES:
                    raise
                self._refused = self._refused or error

    def _bring_folder(self, folder: int, name: str, number: int) -> None:
        entry = self._records[number]
        found = _found(entry.name, folder)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            self._take_out(folder, name)
            found = None
        if found is None:
            os.mkdir(name, 0o700, dir_fd=folder)
        inner = trees.open_folder(folder, name)
        try:
            self._bring(inner, number)
            self._settle(inner, entry)
        finally:
            os.close(inner)

    def _bring_link(self, folder: int, name: str, entry: Record) -> None:
        leads_to = os.fsdecode(entry.leads_to)
        if data.link_text(name, folder) != leads_to:
            with suppress(FileNotFoundError):
                os.unlink("link", dir_fd=self._draft)
            os.symlink(leads_to, "link", dir_fd=self._draft)
            self._put(folder, name, "link")
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode) and found.st_mtime_ns != entry.modified:
            times = found.st_atime_ns, entry.modified
            os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)

    def _bring_file(self, folder: int, name: str, number: int, entry: Record) -> None:
        if entry.first in self._overwritten:
            if number == entry.first:
                self._overwrite(folder, name, entry)
        elif entry.first in self._differs:
            with suppress(FileNotFoundError):
                os.unlink("name", dir_fd=self._draft)
            os.link(str(entry.first), "name", src_dir_fd=self._draft, dst_dir_fd=self._draft)
            self._put(folder, name, "name")
            return
        handle = os.open(name, _HANDLE, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                self._settle(handle, entry)
        finally:
            os.close(handle)

    def _see(self, folder: int | None, number: int, path: str, files: dict[str, FileIdentity]) -> None:
        """Note the present state of a folder's files; only changed ones have to be looked at."""
        for each in self._inside[number]:
            entry = self._records[each]
            name = path + os.fsdecode(entry.name)
            if entry.is_folder:
                inner = _inner(folder, entry)
                try:
                    self._see(inner, each, f"{name}/", files)
                finally:
                    if inner is not None:
                        os.close(inner)
            elif entry.blob is not None and tree.is_text(name):
                identity = entry.identity
                if not self._is_untouched(each, entry):
                    found = None if folder is None else _found(entry.name, folder)
                    is_there = found is not None and stat.S_ISREG(found.st_mode)
                    identity = Identity.of(found) if found is not None and is_there else None
                if identity is not None:
                    files[name] = astuple(identity)

    def _overwrite(self, folder: int, name: str, entry: Record) -> None:
        """Write the snapshot's data over the file's, after a check that there is room for it."""
        handle = os.open(name, _HANDLE, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EBUSY, "The file is still exchanged")
            if not os.fstat(handle).st_mode & stat.S_IWUSR:
                os.chmod(f"/proc/self/fd/{handle}", 0o600)  # noqa: PTH101 - it has no path
        finally:
            os.close(handle)
        target = open_at_once(name, os.O_RDWR, folder=folder)
        try:
            found = os.fstat(target)
            identity, blob = entry.identity, entry.blob
            if (
                identity is None
                or blob is None
                or found.st_ino != identity.inode
                or found.st_nlink != self._names[entry.first]
            ):
                raise OSError(errno.EBUSY, "The file is still exchanged")
            if identity.size:
                try:
                    os.posix_fallocate(target, 0, identity.size)
                except OSError:
                    os.ftruncate(target, found.st_size)
                    raise
            with self._opened(blob) as kept:
                data.copy_range(kept, target, 0, identity.size, data.never)
            os.ftruncate(target, identity.size)
            self._written += identity.size
            self._settle(target, entry)
            self._anew[entry.first] = Identity.of(os.fstat(target))
        finally:
            os.close(target)

    def _put(self, folder: int, name: str, staged: str) -> None:
        """Replace an entry in one step by its copy from beside the workspace."""
        found = _found(os.fsencode(name), folder)
        if found is not None and stat.S_ISDIR(found.st_mode):
            self._take_out(folder, name)
        os.rename(staged, name, src_dir_fd=self._draft, dst_dir_fd=folder)

    def _take_out(self, folder: int, name: str) -> None:
        self._next += 1
        refused = trees.move_entry(folder, name, self._out, str(self._next))
        if refused is not None and refused.errno in trees.NO_OPEN_FILES:
            raise refused
        self._refused = self._refused or refused
        self._removed += 1

    def _settle(self, descriptor: int, entry: Record) -> None:
        """Restore a file's or folder's owner, permissions and time."""
        path = f"/proc/self/fd/{descriptor}"  # works for O_PATH too
        found = os.fstat(descriptor)
        if (found.st_uid, found.st_gid) != (entry.owner, entry.group):
            # Only root may; without root, no entry has another owner for long.
            with suppress(PermissionError):
                os.chown(path, entry.owner, entry.group)
        if stat.S_IMODE(found.st_mode) != stat.S_IMODE(entry.mode):
            os.chmod(path, stat.S_IMODE(entry.mode) & MODES)  # noqa: PTH101 - it has no path
        if os.fstat(descriptor).st_mtime_ns != entry.modified:
            os.utime(path, ns=(found.st_atime_ns, entry.modified))


def _inner(folder: int | None, entry: Record) -> int | None:
    if folder is None:
        return None
    try:
        return os.open(os.fsdecode(entry.name), _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno in trees.NO_OPEN_FILES:
            raise
        return None


def _found(name: bytes, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def _few(found: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first two of possibly many."""
    for _, each in zip(range(2), found, strict=False):
        yield each
