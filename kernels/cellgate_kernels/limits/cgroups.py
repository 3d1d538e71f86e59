"""A cgroup for each forked kernel: what all its processes together may use of memory, tasks and processors.

They are made below the cgroup that this process is in, so that whatever limits the gateway limits its kernels
too, and their sum. With version 1 of cgroups a controller has a hierarchy of its own. With version 2 there is
one, in which only groups without processes may pass controllers on: if this process and its descendants are
alone in their group, they are moved to one below it, which is what systemd's ``Delegate=yes`` and most
containers allow. See cgroups(7).

Where version 1 has all controllers and there is version 2 as well, kernels that may be frozen have a group
there too, because what version 1 froze could not be killed, and would survive a gateway that crashes.
Entering it takes some ten milliseconds, because the system stops all forks for that.

All calls block. A kernel enters its cgroup by descriptors that are opened here with this process's rights,
before it runs anybody's code.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.base.errors import BackendUnavailable, in_words
from cellgate_kernels.base.resources import ResourceLimits

CONTROLLERS = ("memory", "pids", "cpu")
GATEWAY = "cellgate-gateway"
"""The group below its own that the gateway's processes move to, with version 2."""
FIRST = "first"
"""The group below a container's that its own processes are moved to."""

_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)

_PERIOD = 100_000  # microseconds: the kernel's default
_LEAST_QUOTA = 1_000  # microseconds: the kernel's least
_ATTEMPTS = 3  # to leave a group: a process that is just being started may still come to be in it
_PAUSES = (0.0, 0.01, 0.05, 0.2, 0.5)
_KILL_PAUSES = (0.001, 0.002, 0.005, *([0.01] * 100), *([0.1] * 30))


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The folder of a process's cgroup, and which of the controllers that matter are there."""

    folder: Path
    version: int
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one kernel: a folder in each hierarchy. `descriptors` belong to whoever made it."""

    folders: tuple[tuple[Path, int], ...]

    def open(self) -> list[int]:
        """Return descriptors; whoever writes ``0`` to them is in the cgroup from then on."""
        names = {1: "tasks", 2: "cgroup.procs"}
        opened: list[int] = []
        try:
            for folder, version in self.folders:
                opened.append(os.open(folder / names[version], os.O_WRONLY | os.O_CLOEXEC))
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return opened

    def memory_kills(self) -> int:
        """Count its processes that the system ended because all together used too much memory."""
        for folder, version in self.folders:
            with suppress(OSError):
                text = (folder / {1: "memory.oom_control", 2: "memory.events"}[version]).read_text()
                counts = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
        return 0

    def enter(self, process: int) -> None:
        """Move a process into it. Raises OSError."""
        for folder, _ in self.folders:
            _write(folder / "cgroup.procs", str(process))

    def kill(self) -> None:
        """Kill all its processes, and return when they have ended. Raises OSError when they have not."""
        for pause in _KILL_PAUSES:
            there = self._processes()
            if not there:
                return
            opened: dict[int, int] = {}
            try:
                for process in there:
                    with suppress(ProcessLookupError):
                        opened[process] = os.pidfd_open(process)
                # One that is still there is the process that was opened, and no other of its number.
                for process in self._processes() & opened.keys():
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(opened[process], signal.SIGKILL)
            finally:
                for descriptor in opened.values():
                    os.close(descriptor)
            time.sleep(pause)
        raise OSError(errno.EBUSY, "its processes did not end")

    def _processes(self) -> set[int]:
        return {process for folder, _ in self.folders for process in _processes(folder)}

    def remove(self) -> None:
        """Remove it. Its processes must have ended. Raises OSError when it can't be removed."""
        for folder, _ in self.folders:
            _remove(folder)


class Cgroups:
    """Makes the cgroups of one gateway's kernels, in folders of one name. `close` removes those."""

    def __init__(self, hierarchies: Sequence[Hierarchy], name: str) -> None:
        self._parents = [(each.folder / name, each) for each in hierarchies]

    @classmethod
    def find(cls, name: str, root: Path = Path("/"), *, freezing: bool = False) -> Cgroups:
        """Return the cgroups below this process's own, after one was made for a try.

        Raises BackendUnavailable, saying why, where none can be made for memory, tasks and processors.
        `name` must be a gateway's own: what an earlier one of that name has left is removed. `root` is where
        the system's files are; `freezing`: whether kernels are to be frozen.
        """
        try:
            own = hierarchies(
                (root / "proc/self/cgroup").read_text(), (root / "proc/self/mountinfo").read_text()
            )
            limiting = [_below(each, root) for each in own if each.controllers]
            missing = set(CONTROLLERS) - {name for each in limiting for name in each.controllers}
            if missing:
                raise BackendUnavailable(f"the system offers no cgroups for {', '.join(sorted(missing))}")
            found = cls._tried(limiting, name)
        except OSError as error:
            raise BackendUnavailable(
                f"cgroups can't be made here: {in_words(error)}; with systemd, the gateway's unit needs"
                " Delegate=yes"
            ) from error
        further = [_below(each, root) for each in own if not each.controllers]
        with suppress(OSError):  # it limits nothing, so kernels do without it
            if freezing:
                return cls._tried([*limiting, *further], name)
            # An earlier gateway of this name may have had kernels there.
            cls(further, name).close()
        return found

    @classmethod
    def around(
        cls, process: int, name: str, limits: ResourceLimits, root: Path = Path("/")
    ) -> tuple[Cgroups, Cgroup]:
        """Return the cgroups below a container's, and the one of them that all its processes were moved to.

        `process` is the container's first, and `limits` are for all that are there now. With version 2 a
        group that has processes passes no controllers on, so they must be in one below. Raises
        BackendUnavailable, saying why, where it can't be done for any container, and OSError.
        """
        try:
            theirs = hierarchies(
                (root / f"proc/{process}/cgroup").read_text(), (root / "proc/self/mountinfo").read_text()
            )
            limiting = [_below(each, root) for each in theirs if each.controllers]
            missing = set(CONTROLLERS) - {name for each in limiting for name in each.controllers}
            if missing:
                raise BackendUnavailable(f"the system offers no cgroups for {', '.join(sorted(missing))}")
            for each in limiting:
                there = _processes(each.folder)
                if process not in there and not (root / f"proc/{process}").exists():
                    raise ProcessLookupError(errno.ESRCH, "the container has ended")
                if process not in there or os.getpid() in there:
                    raise BackendUnavailable("a container's cgroup is not seen from here")
            found = cls(limiting, name)
            return found, found._take_over(limits)
        except OSError as error:
            if error.errno not in _NO_RIGHT:
                raise
            raise BackendUnavailable(f"a container's cgroup can't be divided: {in_words(error)}") from error

    def _take_over(self, limits: ResourceLimits) -> Cgroup:
        """Move all processes of the groups above into one of ours. Raises OSError."""
        leaf = Cgroup(tuple((parent / FIRST, each.version) for parent, each in self._parents))
        for (parent, hierarchy), (folder, version) in zip(self._parents, leaf.folders, strict=True):
            # Not those above, or that of a container which has gone would be there again.
            parent.mkdir(exist_ok=True)
            folder.mkdir()
            for process in _processes(hierarchy.folder):
                with suppress(ProcessLookupError):
                    _write(folder / "cgroup.procs", str(process))
            if version == 2:
                for above in (hierarchy.folder, parent):
                    _write(above / "cgroup.subtree_control", _enabled(hierarchy.controllers))
            for file, value in _settings(hierarchy, limits, 0):
                _write(folder / file, value)
        return leaf

    @classmethod
    def _tried(cls, hierarchies: Sequence[Hierarchy], name: str) -> Cgroups:
        """Return the cgroups below these folders, after one was made. Raises OSError."""
        found = cls(hierarchies, name)
        found._open()
        cgroup = found.make("try", ResourceLimits())
        try:
            for descriptor in cgroup.open():
                os.close(descriptor)
        finally:
            cgroup.remove()
        return found

    def _open(self) -> None:
        for parent, hierarchy in self._parents:
            if hierarchy.version == 2:
                _pass_on(hierarchy.folder, hierarchy.controllers)
            self._sweep(parent)
            parent.mkdir(exist_ok=True)
            if hierarchy.version == 2:
                _pass_on(parent, hierarchy.controllers)

    @staticmethod
    def _sweep(parent: Path) -> None:
        if parent.is_dir():
            for folder in parent.iterdir():
                if folder.is_dir():
                    _remove(folder)

    def make(self, name: str, limits: ResourceLimits, *, reserved: int = 0) -> Cgroup:
        """Return a new cgroup with these limits; `reserved` is added to the memory. Raises OSError."""
        made: list[tuple[Path, int]] = []
        try:
            for parent, hierarchy in self._parents:
                folder = parent / name
                folder.mkdir()
                made.append((folder, hierarchy.version))
                for file, value in _settings(hierarchy, limits, reserved):
                    _write(folder / file, value)
        except BaseException:
            with suppress(OSError):
                Cgroup(tuple(made)).remove()
            raise
        return Cgroup(tuple(made))

    def limit_memory(self, memory: int) -> None:
        """Limit what all cgroups of these together have, with what ended ones have left.

        Raises OSError: EBUSY if that is more, and can't be reduced. Version 2 has then ended processes.
        """
        for parent, hierarchy in self._parents:
            if "memory" not in hierarchy.controllers:
                continue
            if hierarchy.version == 2:
                _write(parent / "memory.max", str(memory))
                if int((parent / "memory.current").read_text()) > memory:
                    raise OSError(errno.EBUSY, "more memory is in use", str(parent))
                continue
            files = [parent / "memory.limit_in_bytes", parent / "memory.memsw.limit_in_bytes"]
            try:
                _write(files[0], str(memory))
            except OSError as error:
                # The second one is never below the first.
                if error.errno != errno.EINVAL:
                    raise
                files.reverse()
            for file in files:
                _write(file, str(memory))

    def close(self) -> None:
        """Remove the folders of this gateway. Raises OSError while there are processes in them."""
        for parent, _ in self._parents:
            self._sweep(parent)
            _remove(parent)


def groups_of(text: str) -> dict[str, str]:
    """Return a process's cgroup paths by controller, from /proc/PID/cgroup; version 2's name is empty."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            found[name] = path
    return found


def hierarchies(own: str, mounts: str, controllers: Sequence[str] = CONTROLLERS) -> list[Hierarchy]:
    """Return the hierarchies with these controllers, and that of version 2 in any case, which is the last.

    `own`: the text of the process's /proc/PID/cgroup; `mounts`: that of our mountinfo. With version 2 the
    controllers are not known from these files: all are named that version 1 does not have.
    """
    paths = groups_of(own)
    found: list[Hierarchy] = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split()
        # What is mounted may have an empty name, between two spaces.
        kind, _, options = after.split(" ", 2)
        mounted = options.split(",")
        if kind == "cgroup":
            here = tuple(name for name in controllers if name in mounted and name in paths)
            if here and not any(set(here) & set(each.controllers) for each in found):
                found.append(Hierarchy(_folder(point, root, paths[here[0]]), 1, here))
        elif kind == "cgroup2" and "" in paths and not any(each.version == 2 for each in found):
            found.append(Hierarchy(_folder(point, root, paths[""]), 2, ()))
    taken = {name for each in found for name in each.controllers}
    left = tuple(name for name in controllers if name not in taken)
    of_two = [Hierarchy(each.folder, 2, left) for each in found if each.version == 2]
    return [each for each in found if each.version == 1] + of_two


def _folder(point: str, root: str, path: str) -> Path:
    """Return a cgroup's folder below the mount at `point`, which shows the hierarchy from `root` on."""
    inside = path.removeprefix(root) if root != "/" and path.startswith(root) else path
    return Path(point) / inside.lstrip("/")


def _below(hierarchy: Hierarchy, root: Path) -> Hierarchy:
    """Return hierarchy as it is found below `root`; with version 2, with the controllers that there are."""
    folder = root / hierarchy.folder.relative_to("/")
    names = hierarchy.controllers
    if hierarchy.version == 2 and names:
        there = (folder / "cgroup.controllers").read_text().split()
        names = tuple(name for name in names if name in there)
    return Hierarchy(folder, hierarchy.version, names)


def _settings(hierarchy: Hierarchy, limits: ResourceLimits, reserved: int) -> Iterator[tuple[str, str]]:
    """Yield the files of one cgroup with what is written to them, in order."""
    memory = str(limits.memory + reserved)
    quota = str(max(_LEAST_QUOTA, int(limits.cpus * _PERIOD)))
    one: Mapping[str, Sequence[tuple[str, str]]] = {
        "memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
        "pids": [("pids.max", str(limits.pids))],
        "cpu": [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", quota)],
    }
    two: Mapping[str, Sequence[tuple[str, str]]] = {
        "memory": [("memory.max", memory), ("memory.swap.max", "0")],
        "pids": [("pids.max", str(limits.pids))],
        "cpu": [("cpu.max", f"{quota} {_PERIOD}")],
    }
    for name in hierarchy.controllers:
        yield from (one if hierarchy.version == 1 else two)[name]


_WITHOUT_SWAP = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""Files that a system which does not count swap does not have."""


def _write(file: Path, value: str) -> None:
    if file.name in _WITHOUT_SWAP and not file.exists():
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _pass_on(folder: Path, controllers: Sequence[str]) -> None:
    """Let the groups below `folder` have these controllers; it must have no process itself, or lose it."""
    file = folder / "cgroup.subtree_control"
    missing = [name for name in controllers if name not in file.read_text().split()]
    if not missing:
        return
    wanted = _enabled(missing)
    for _ in range(_ATTEMPTS):
        try:
            _write(file, wanted)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _vacate(folder)
        else:
            return
    _write(file, wanted)


def _enabled(controllers: Sequence[str]) -> str:
    return " ".join(f"+{name}" for name in controllers)


def _processes(folder: Path) -> list[int]:
    """Return the ids of a group's processes; none if it is gone."""
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise


def _vacate(folder: Path) -> None:
    """Move this process and its descendants to a group below `folder`, if nobody else is there."""
    there = _processes(folder)
    if any(not _is_ours(pid) for pid in there):
        raise PermissionError(errno.EPERM, "other programs are in the gateway's cgroup", str(folder))
    leaf = folder / GATEWAY
    leaf.mkdir(exist_ok=True)
    for pid in there:
        with suppress(ProcessLookupError):
            _write(leaf / "cgroup.procs", str(pid))


def _is_ours(pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return True  # it has ended
    return pid == os.getpid()


def _remove(folder: Path) -> None:
    """Remove a cgroup's folder; processes that have just ended are in it for a moment more."""
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return
    folder.rmdir()
