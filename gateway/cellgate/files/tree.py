"""Safe access to files in a folder that hostile code may be writing to at the same time.

Every path is walked name by name through descriptors that follow no symbolic links, so no name can lead out
of the folder, whatever is swapped meanwhile. Only regular files are ever opened for reading, so no FIFO or
device can answer, and the holder of a file never makes the gateway wait. All functions block and belong in a
thread. They know no session. Source: openat(2).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cellgate.errors import Conflict, FileHeld, NotFound, TooLarge, not_written
from cellgate.files.precondition import Precondition
from cellgate.wire.paths import UNFIT_PATH, in_workspace
from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.regular import open_at_once
from cellgate_kernels.limits.disk import entry_bytes

Parts = tuple[str, ...]

MAX_PATH = 4096
MAX_NAME = 255
MAX_DEPTH = trees.DEEPEST
MAX_ENTRIES = trees.MOST
MOST_MOVED = 1000
"""Files whose new paths one request records."""
MOST_SHOWN = 10_000
"""Entries of a folder that one request shows."""
MOST_REMOVED = 10_000
"""Entries of a folder that one request removes with it."""
LOOKS = 256
"""A scan checks whether to stop once in this many entries."""
CHUNK = 1024 * 1024
TICK = 20_000_000
"""Nanoseconds that the clock of a file's times takes at most for a step."""
LOOK_AGAIN = 0.001
MOST_LOOKS = 40
"""Looks, and the seconds between two of them, at a file that was written in this tick."""

_CLOCK_OF_FILES = 5
"""Linux's CLOCK_REALTIME_COARSE, by which it sets the times of files; `time` has no name for it."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parse_path(text: str) -> Parts:
    """Return the names of a path in the workspace, which may begin with a name of it, such as /workspace.

    Raises InvalidInput for anything that could lead outside, and for the workspace itself.
    """
    # A name in JSON may have millions of slashes: its length is checked before it is split.
    fits = len(text) <= MAX_PATH
    try:
        fits = fits and len(text.encode()) <= MAX_PATH
    except UnicodeEncodeError as error:
        raise InvalidInput("A path is UTF-8") from error
    parts = tuple(in_workspace(text).split("/")) if fits else ()
    if not fits or any(len(os.fsencode(name)) > MAX_NAME for name in parts):
        raise InvalidInput(f"A path has at most {MAX_PATH} bytes, each of its names at most {MAX_NAME}")
    if len(parts) > MAX_DEPTH:
        raise InvalidInput(f"A path has at most {MAX_DEPTH} names")
    if "\0" in text or any(name in {"", ".", ".."} for name in parts):
        raise InvalidInput(UNFIT_PATH)
    return parts


def parse_folder(text: str) -> Parts:
    """Return the names of a folder's path, as `parse_path` does; none for the workspace itself."""
    # A longer one is refused by its length, before it is looked at letter by letter.
    return () if len(text) <= MAX_PATH and not in_workspace(text) else parse_path(text)


FileIdentity = tuple[int, int, int, int, int]
"""Changes whenever a file's content may have changed: its device, inode, size, mtime and ctime."""


class FileState(msgspec.Struct, frozen=True, gc=False):
    """The state of a regular file. `size` in bytes, `modified` in nanoseconds since 1970."""

    path: str
    size: int
    modified: int
    identity: FileIdentity

    @property
    def tag(self) -> str:
        """The file's ETag: the one that is told and that a condition compares."""
        return '"' + "-".join(f"{number:x}" for number in self.identity) + '"'


def _state(path: str, found: os.stat_result) -> FileState:
    identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return FileState(path, found.st_size, found.st_mtime_ns, identity)


def state_of(path: str, descriptor: int) -> FileState:
    """Return the current state of an open file. Raises OSError."""
    return _state(path, os.fstat(descriptor))


@contextmanager
def _explained(parts: Parts) -> Iterator[None]:
    """Turn an OSError for the path into one of our own errors."""
    try:
        yield
    except OSError as error:
        raise _explain("/".join(parts)[:200], error) from error


def _explain(path: str, error: OSError) -> CellgateError:
    match error.errno:
        case errno.ENOENT:
            return NotFound(f"There is no file {path!r} in the workspace")
        case errno.ENOTDIR | errno.ELOOP:
            return InvalidInput(f"{path!r} leads through something that is no folder; links are not followed")
        case errno.EISDIR:
            return Conflict(f"{path!r} is a folder")
        case errno.ENOTEMPTY | errno.EEXIST:
            return Conflict(f"{path!r} is a folder, and not an empty one")
        case errno.EACCES | errno.EPERM:
            return Conflict(f"{path!r} can't be reached: the session's code took the permission away")
        case errno.EWOULDBLOCK:
            return FileHeld(path)
        case errno.ENAMETOOLONG:
            return InvalidInput("The path is too long")
    return not_written(error, "There is no room on the gateway's disk", f"{path!r} can't be used")


@contextmanager
def _folder(root: Path, parts: Parts, *, make: bool = False) -> Iterator[int]:
    """Return a descriptor (O_PATH) of the folder `parts` below `root`; `make` creates missing folders."""
    descriptor = os.open(root, _FOLDER)
    try:
        owner = os.fstat(descriptor)
        for name in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=descriptor)
                    _give(
                        owner,
                        lambda uid, gid, name=name, at=descriptor: os.chown(  # type: ignore[misc]
                            name, uid, gid, dir_fd=at, follow_symlinks=False
                        ),
                    )
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _give(owner: os.stat_result, chown: Callable[[int, int], None]) -> None:
    """Give a created file to the kernel's user, if the gateway runs as root."""
    if owner.st_uid != os.geteuid() and os.geteuid() == 0:
        chown(owner.st_uid, owner.st_gid)


def open_file(root: Path, parts: Parts) -> tuple[int, FileState]:
    """Return an open regular file's descriptor and state. Raises NotFound, InvalidInput, FileHeld."""
    with _explained(parts), _folder(root, parts[:-1]) as folder:
        # Check the type before opening: opening a device may do anything.
        handle = os.open(parts[-1], os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(handle)
            if stat.S_ISDIR(found.st_mode):
                raise InvalidInput(
                    f"{'/'.join(parts)[:200]!r} is a folder; the list of files has what is in it"
                )
            if not stat.S_ISREG(found.st_mode):
                raise InvalidInput(f"{'/'.join(parts)[:200]!r} is no regular file")
            state = _state("/".join(parts), found)
            return open_at_once(f"/proc/self/fd/{handle}", os.O_RDONLY, follow=True), state
        finally:
            os.close(handle)


def read_file(root: Path, parts: Parts, most: int) -> bytes:
    """Return the content of a regular file. Raises TooLarge above `most` bytes, else as `open_file`."""
    descriptor, state = open_file(root, parts)
    read: list[bytes] = []
    size = 0
    try:
        while size <= most and (chunk := os.read(descriptor, min(CHUNK, most + 1 - size))):
            read.append(chunk)
            size += len(chunk)
    finally:
        os.close(descriptor)
    if size > most:
        raise TooLarge(f"{state.path[:200]!r} has more than {most} bytes: that is too much to be read here")
    return b"".join(read)


def open_settled(root: Path, parts: Parts) -> tuple[int, FileState]:
    """Return an open file's descriptor, and a state that no later content of it has. Raises as `open_file`.

    A file's times go on in ticks of the system, 1 to 10 ms, so what was written in this tick may change again
    without another time. That is waited for, but not for ever: a program may write on and on.
    """
    descriptor, state = open_file(root, parts)
    try:
        for _ in range(MOST_LOOKS):
            if not 0 <= state.identity[-1] - time.clock_gettime_ns(_CLOCK_OF_FILES) < TICK:
                break
            time.sleep(LOOK_AGAIN)
            state = state_of(state.path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, state


def check(root: Path, parts: Parts, condition: Precondition) -> None:
    """Check the file that is there now; anything but a regular file is none. Raises FileChanged."""
    path = "/".join(parts)[:200]
    with _explained(parts):
        tag = None
        with suppress(FileNotFoundError), _folder(root, parts[:-1]) as folder:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                tag = _state(path, found).tag
    condition.check(path, tag)


def place(staged: Path, root: Path, parts: Parts) -> tuple[FileState, bool]:
    """Move a finished file into place atomically; return its state and whether it is new. Raises Conflict."""
    with _explained(parts), _folder(root, parts[:-1], make=True) as folder:
        created = False
        try:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            created = True
        else:
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder")
            if not stat.S_ISREG(found.st_mode):
                raise InvalidInput(f"{'/'.join(parts)[:200]!r} is no regular file; delete it first")
        _give(os.fstat(folder), lambda uid, gid: os.chown(staged, uid, gid))
        os.rename(staged, parts[-1], dst_dir_fd=folder)
        found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        return _state("/".join(parts), found), created


def remove(root: Path, parts: Parts, condition: Precondition | None = None) -> None:
    """Remove a file, a link or an empty folder. Raises NotFound, Conflict, FileChanged."""
    if condition is not None:
        check(root, parts, condition)
    with _explained(parts), _folder(root, parts[:-1]) as folder:
        found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            os.rmdir(parts[-1], dir_fd=folder)
        else:
            os.unlink(parts[-1], dir_fd=folder)


def make_folder(root: Path, parts: Parts) -> bool:
    """Make a folder and its parents; return whether it is new. Raises Conflict, InvalidInput."""
    with _explained(parts), _folder(root, parts[:-1], make=True) as folder:
        try:
            os.mkdir(parts[-1], 0o755, dir_fd=folder)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                return False
            raise Conflict(f"{'/'.join(parts)[:200]!r} is there already, and is no folder") from None
        _give(
            os.fstat(folder),
            lambda uid, gid: os.chown(parts[-1], uid, gid, dir_fd=folder, follow_symlinks=False),
        )
        return True


def move(root: Path, old: Parts, new: Parts) -> list[FileState]:
    """Rename a file or a folder; return the state of each file whose path has changed.

    Folders above the new path are made. Raises NotFound, Conflict if the new path is taken or a folder has
    too many files, InvalidInput.
    """
    if new[: len(old)] == old:
        raise InvalidInput("A file or folder can't be moved to itself or below itself")
    with _explained(old), _folder(root, old[:-1]) as source:
        found = os.stat(old[-1], dir_fd=source, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{'/'.join(old)[:200]!r} is no regular file and no folder")
        is_folder = stat.S_ISDIR(found.st_mode)
        below = _files_below(root, old) if is_folder else []
        with _explained(new), _folder(root, new[:-1], make=True) as target:
            with suppress(FileNotFoundError):
                os.stat(new[-1], dir_fd=target, follow_symlinks=False)
                raise Conflict(f"{'/'.join(new)[:200]!r} is there already; delete it first")
            os.rename(old[-1], new[-1], src_dir_fd=source, dst_dir_fd=target)
            if not is_folder:
                # A renamed file has another identity, files in a renamed folder do not.
                moved = os.stat(new[-1], dir_fd=target, follow_symlinks=False)
                return [_state("/".join(new), moved)] if stat.S_ISREG(moved.st_mode) else []
    return [msgspec.structs.replace(state, path="/".join((*new, state.path))) for state in below]


def _files_below(root: Path, parts: Parts) -> list[FileState]:
    """Return all files in this folder, by their paths in it. Raises Conflict for too many."""
    with _below(root, parts, MAX_DEPTH - len(parts), most=MAX_ENTRIES) as walk:
        files = [entry for entry in walk if entry.is_file and is_text(entry.path)]
    if len(files) > MOST_MOVED or not walk.complete:
        raise Conflict(f"At most {MOST_MOVED} files are moved at once; move them by a cell")
    return [_state(entry.path, entry.found) for entry in files]


def freed_by(root: Path, parts: Parts) -> int:
    """Return the bytes on disk freed by replacing this file: 0 without one, or if it has another name."""
    try:
        with _folder(root, parts[:-1]) as folder:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError:
        return 0
    return entry_bytes(found) if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0


def missing(root: Path, folder: Parts) -> int:
    """Count the folders of this path that are missing, from its end."""
    try:
        descriptor = os.open(root, _FOLDER)
    except OSError:
        return len(folder)
    try:
        for number, name in enumerate(folder):
            try:
                inner = os.open(name, _FOLDER, dir_fd=descriptor)
            except OSError:
                return len(folder) - number
            os.close(descriptor)
            descriptor = inner
    finally:
        os.close(descriptor)
    return 0


def scan(
    root: Path, most: int = MAX_ENTRIES, stopped: Callable[[], bool] = lambda: False, *, folders: bool = False
) -> tuple[dict[str, FileState], bool]:
    """Return all regular files below `root` by path, and whether the result is complete.

    With `folders`, folders too, each with a slash at the end of its path.

    At most `most` entries are visited. Entries that can't be read or are too deep are left out, and the
    result is then incomplete. Files whose names are not UTF-8 are left out as well, because no request could
    name them. The scan ends early when `stopped` returns True.
    """
    files: dict[str, FileState] = {}
    walk = trees.Walk(root, deepest=MAX_DEPTH, most=most)
    for number, entry in enumerate(walk):
        if number % LOOKS == 0 and stopped():
            return files, False
        if entry.is_file and is_text(entry.path):
            files[entry.path] = _state(entry.path, entry.found)
        elif folders and entry.is_folder and is_text(entry.path):
            files[f"{entry.path}/"] = _state(f"{entry.path}/", entry.found)
    return files, walk.complete


@dataclass(frozen=True, slots=True)
class Item:
    """Anything in a workspace, seen without following links. `mode`: the system's.

    `path`: empty for the workspace itself. `size` in bytes, `modified` in nanoseconds since 1970. `inode`:
    stays the same when it is renamed.
    """

    path: str
    mode: int
    size: int
    modified: int
    inode: int

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)


def look(root: Path, parts: Parts) -> Item:
    """Return the item at this path; no parts mean the workspace itself. Raises NotFound, InvalidInput."""
    with _explained(parts), _folder(root, parts[:-1]) as folder:
        found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False) if parts else os.fstat(folder)
    return _item("/".join(parts), found)


def _item(path: str, found: os.stat_result) -> Item:
    return Item(path, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino)


def look_into(root: Path, parts: Parts, depth: int) -> list[Item]:
    """Return the items in a folder and, down to `depth`, in its subfolders, by path.

    Raises NotFound, InvalidInput for other items than folders, and Conflict for too many. Items that no
    request could name are left out.
    """
    found: list[Item] = []
    deepest = min(depth, MAX_DEPTH - len(parts))
    with _below(root, parts, deepest, most=MOST_SHOWN + 1) as walk:
        if deepest < 1:
            return found
        for number, entry in enumerate(walk):
            if number == MOST_SHOWN:
                raise Conflict(f"The folder has more than {MOST_SHOWN} entries; look into it by a cell")
            path = "/".join((*parts, entry.path))
            if is_text(path):
                found.append(_item(path, entry.found))
    return sorted(found, key=lambda item: item.path)


@contextmanager
def _below(root: Path, parts: Parts, deepest: int, most: int) -> Iterator[trees.Walk]:
    """Return a walk through this folder alone: the files beside it do not count."""
    with _explained(parts), _folder(root, parts) as folder:
        # The walk would just leave out a folder that can't be read.
        os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder))
        yield trees.Walk(Path(), deepest=deepest, most=most, inside=folder)


def remove_all(root: Path, parts: Parts) -> list[str]:
    """Remove the item at this path with everything in it; return the paths of removed files.

    Raises NotFound, and Conflict if a folder has too many items; then nothing is removed.
    """
    there = look(root, parts)
    below: list[Item] = []
    if there.is_folder:
        # One deeper than any path that a request could name: a folder at that depth may be empty.
        with _below(root, parts, MAX_DEPTH - len(parts) + 1, most=MOST_REMOVED) as walk:
            below = [_item("/".join((*parts, entry.path)), entry.found) for entry in walk]
        if not walk.complete:
            raise Conflict(
                f"At most {MOST_REMOVED} entries are removed at once, none deeper than {MAX_DEPTH} names, and"
                " none in folders that can't be read; remove these by a cell"
            )
    gone = []
    # A folder's items come after it in this order, so they go first.
    for item in sorted(below, key=lambda item: item.path, reverse=True):
        # Code may remove items at the same time.
        with suppress(NotFound):
            remove(root, tuple(item.path.split("/")))
        if stat.S_ISREG(item.mode) and is_text(item.path):
            gone.append(item.path)
    remove(root, parts)
    if stat.S_ISREG(there.mode):
        gone.append(there.path)
    return gone


def is_text(path: str) -> bool:
    """Return whether a request can name this path, because it is UTF-8."""
    if path.isascii():
        # Nearly all are, so they cost little.
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest(root: Path, parts: Parts) -> tuple[FileState, str]:
    """Return a regular file's state and the SHA-256 of its content, in hexadecimal. Raises as `open_file`."""
    descriptor, state = open_file(root, parts)
    try:
        hashed = hashlib.sha256()
        while chunk := os.read(descriptor, CHUNK):
            hashed.update(chunk)
    finally:
        os.close(descriptor)
    return state, hashed.hexdigest()
