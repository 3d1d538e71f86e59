"""How much disk a kernel uses: the files in its writable folders, and deleted files that it keeps open.

A bind-mounted folder has no quota, so its use must be measured; ``disk_watch`` does so repeatedly, in a
thread. User code wrote the files: only folders are opened, no link is followed, and files that can't be
measured count as too much. A deleted file or folder is kept by a descriptor, a mapping, a process that runs
from it or is in it, or a message that waits in a socket. The filters of system calls refuse all other ways
to keep a file, such as a rule of Landlock. See proc(5) and unix(7).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.trees import NO_OPEN_FILES
from cellgate_kernels.walls.seccomp import SET_ID
from cellgate_kernels.walls.set_id import clear_set_id

ENTRY_BYTES = 4096
"""The fewest bytes that a name counts for: a million empty files are not free, nor a million names of one."""

MOST_LOOKED_AT = 500_000
"""The most descriptors and mappings of one kernel that can be examined in reasonable time."""

MOST_NAMES = 2_000_000
"""The most files and folders of one kernel; more would keep the watch from other kernels for too long."""

_PASSES = 3
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESRCH)
TIMES = slice(11, 15)
"""Where the fields of `state_of` have processor times: utime, stime, cutime, cstime."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Parents = Mapping[int, int]
"""All processes that this one can see, each with its parent's id."""


class Unmeasurable(CellgateError):
    """The kernel's disk use can't be measured."""

    reason = "unmeasurable"


@dataclass(frozen=True, slots=True)
class CountedFolder:
    """A folder that the kernel can write to. `free`: the bytes in the folder that are not counted.

    `is_workspace`: whether it is a workspace. `has_workspaces`: whether each folder in it is a workspace.
    """

    path: Path
    free: int = 0
    is_workspace: bool = False
    has_workspaces: bool = False


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """A kernel's disk use. `largest`: the bytes in the workspace that has most. `on_the_way`: whether files
    wait in a socket: until they are received no process has them open, and they can't be inspected.
    """

    used: int
    on_the_way: bool = False
    largest: int = 0


def usage(
    folders: Sequence[CountedFolder], process: int | None, *, enough: int, parents: Parents | None = None
) -> DiskUsage:
    """Return the bytes on disk of `folders` and of deleted files that `process` and its descendants keep.

    Stops soon after `enough` bytes, and returns more than `enough` if measuring fails. This user must be able
    to look into `process` (`may_look`). `parents`: a recent result of `all_parents`. Raises OSError when this
    process itself has too many open files.
    """
    total = largest = 0
    for folder in folders:
        tree = _measured(folder.path, enough + folder.free)
        total += max(0, tree.bytes - folder.free)
        if folder.is_workspace:
            largest = max(largest, tree.bytes)
        elif folder.has_workspaces:
            largest = max(largest, tree.largest)
    if process is None or total > enough:
        return DiskUsage(total, largest=largest)
    try:
        devices = {folder.path.lstat().st_dev for folder in folders}
        look = _look(process, devices, parents or all_parents())
    except FileNotFoundError:
        return DiskUsage(total, largest=largest)  # the kernel and its folders are gone
    except Unmeasurable:
        return DiskUsage(enough + 1, largest=largest)
    return DiskUsage(total + sum(look.found.values()), look.on_the_way, largest)


def may_look(process: int) -> bool:
    """Return whether this user may see a process's open files. Raises OSError if we have too many open."""
    try:
        os.listdir(f"/proc/{process}/fd")  # noqa: PTH208 - /proc has no tree to walk
    except OSError as error:
        if error.errno in NO_OPEN_FILES:
            raise
        return False
    return True


def all_parents() -> dict[int, int]:
    """Return each process's id with its parent's. Ids come in ascending order, so new forks are included."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError):
                found[int(name)] = int(state_of(f"/proc/{name}")[1])
    return found


def state_of(folder: str) -> list[str]:
    """Return the fields of a process or thread from its state on. The name before it may contain anything."""
    with open(f"{folder}/stat", "rb") as file:  # noqa: PTH123 - hundreds of times a second
        return file.read().rpartition(b")")[2].decode().split()


def ticks_of(state: Sequence[str]) -> int:
    """Return the processor time of a process and its reaped children, in `TICKS_PER_SECOND`."""
    return sum(map(int, state[TIMES]))


@dataclass(frozen=True, slots=True)
class _Tree:
    """The bytes in a folder. `largest`: the bytes of its largest subfolder."""

    bytes: int
    largest: int


def _measured(root: Path, enough: int) -> _Tree:
    """Measure a folder until soon after `enough` bytes; return more than `enough` if measuring fails."""
    total = names = 0
    linked: set[int] = set()
    # By the folder of `root` that has them. These folders themselves, and files beside them, are in none.
    found: dict[str, int] = {"": 0}
    folders = [(str(root), "")]
    too_much = _Tree(enough + 1, enough + 1)
    while folders:
        try:
            path, within = folders.pop()
            with os.scandir(path) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        folders.append((entry.path, within or entry.name))
                    elif status.st_mode & SET_ID:
                        clear_set_id(entry.path, root)
                    names += 1
                    size = _name_bytes(status, linked)
                    total += size
                    found[within] = found.get(within, 0) + size
                    if total > enough or names > MOST_NAMES:
                        return too_much
        except OSError as error:
            if error.errno in NO_OPEN_FILES:
                raise
            if error.errno not in _GONE:
                return too_much
    del found[""]
    return _Tree(total, max(found.values(), default=0))


def _name_bytes(status: os.stat_result, linked: set[int]) -> int:
    """Return a name's bytes. `linked` collects files with several names: only the first name has bytes."""
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        if status.st_ino in linked:
            return ENTRY_BYTES
        linked.add(status.st_ino)
    return entry_bytes(status)


def entry_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file or folder with one name counts for."""
    return max(status.st_blocks * 512, ENTRY_BYTES)


def new_bytes(size: int) -> int:
    """Return the bytes that a new file of this size counts for: whole blocks, and the least for an empty one.

    The file system's own figure is not used: it comes late, and may include space reserved in advance.
    """
    return max(-(-size // ENTRY_BYTES), 1) * ENTRY_BYTES


def _look(process: int, devices: set[int], parents: Parents) -> _Look:
    """Look at all processes' files, again if one ends meanwhile: its files may have gone to another."""
    look = _Look(devices)
    for _ in range(_PASSES):
        if look.all_of(family(process, children_of(parents))):
            break
        parents = all_parents()
    return look


def children_of(parents: Parents) -> dict[int, list[int]]:
    """Return the children of each process that has some."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    return children


def family(process: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """Yield a process and its descendants: the first process of a pid namespace inherits every orphan."""
    waiting = [process]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


class _Look:
    """The files that one kernel's processes keep. `found`: the bytes of deleted files by device and inode."""

    def __init__(self, devices: set[int]) -> None:
        self.found: dict[tuple[int, int], int] = {}
        self.on_the_way = False
        self._devices = devices
        self._looked_at = 0

    def all_of(self, pids: Iterator[int]) -> bool:
        """Return whether all processes were still there. Raises Unmeasurable."""
        all_there = True
        tables: list[str] = []
        for pid in pids:
            try:
                # A leader that has ended has released the resources its threads share.
                ended = state_of(f"/proc/{pid}")[0] in "ZX"
                tables += _living_threads(pid) if ended else [f"/proc/{pid}"]
            except OSError:
                all_there = False
        # Mappings last: a mapped file that is also open has been measured by then.
        for look in (self._descriptors, self._places, self._mappings):
            for table in tables:
                try:
                    look(table)
                except PermissionError as error:
                    raise Unmeasurable(f"{table} can't be looked into") from error
                except OSError as error:
                    if error.errno in NO_OPEN_FILES:
                        raise
                    all_there = False
        return all_there

    def _count(self, number: int) -> None:
        self._looked_at += number
        if self._looked_at > MOST_LOOKED_AT:
            raise Unmeasurable("The kernel has too many files open")

    def _descriptors(self, table: str) -> None:
        with os.scandir(f"{table}/fd") as descriptors:
            for descriptor in descriptors:
                self._count(1)
                with suppress(FileNotFoundError):
                    status = descriptor.stat()
                    if status.st_nlink == 0 and status.st_dev in self._devices:
                        self.found[status.st_dev, status.st_ino] = status.st_blocks * 512
                    elif stat.S_ISSOCK(status.st_mode) and not self.on_the_way:
                        self.on_the_way = _holds_descriptors(f"{table}/fdinfo/{descriptor.name}")

    def _places(self, table: str) -> None:
        """Count the process's program and folders, equal for all threads: see ``seccomp``."""
        for place in ("exe", "cwd", "root"):
            self._count(1)
            with suppress(FileNotFoundError):
                status = os.stat(f"{table}/{place}")  # noqa: PTH116
                if status.st_nlink == 0 and status.st_dev in self._devices:
                    self.found[status.st_dev, status.st_ino] = status.st_blocks * 512

    def _mappings(self, table: str) -> None:
        with open(f"{table}/maps", "rb") as file:  # noqa: PTH123
            for line in file:
                self._count(1)
                if line.endswith(b" (deleted)\n"):
                    place, _, _, device, inode, *_ = line.split(maxsplit=5)
                    self._mapping(table, place.decode(), device.decode(), int(inode))

    def _mapping(self, table: str, place: str, device: str, inode: int) -> None:
        try:
            # map_files uses no leading zeros, unlike maps.
            begin, end = (int(part, 16) for part in place.split("-"))
            status = os.stat(f"{table.partition('/task/')[0]}/map_files/{begin:x}-{end:x}")  # noqa: PTH116
        except FileNotFoundError:
            return
        except PermissionError:
            # Only root may read the folder. The size of the mapped part says nothing about the file's size.
            major, minor = (int(part, 16) for part in device.split(":"))
            known = any(inode == found for _, found in self.found)
            if not known and os.makedev(major, minor) in self._devices:
                raise Unmeasurable("A deleted file is mapped and not open") from None
            return
        if status.st_nlink == 0 and status.st_dev in self._devices:
            self.found[status.st_dev, status.st_ino] = status.st_blocks * 512


def _living_threads(pid: int) -> list[str]:
    living = []
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
        folder = f"/proc/{pid}/task/{name}"
        with suppress(OSError):
            if state_of(folder)[0] not in "ZX":
                living.append(folder)
    return living


def _holds_descriptors(path: str) -> bool:
    """Return whether descriptors wait in a socket to be received."""
    with suppress(FileNotFoundError), open(path, "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"scm_fds:"):
                return int(line.split()[1]) > 0
    return False
