"""A cgroup for each forked kernel: limits of memory, tasks and processors for all its processes together.

Cgroups are made below this process's own cgroup, so that the gateway's own limits also apply to its kernels
and their sum. With version 1 of cgroups each controller has its own hierarchy. With version 2 there is a
single hierarchy, in which only groups without processes may pass controllers on. If this process and its
descendants are alone in their group, they are moved to a group below. systemd's ``Delegate=yes`` and most
containers allow that. See cgroups(7).

Where version 1 has all controllers and version 2 is mounted as well, kernels that may be frozen get a group
in both: a process frozen by version 1 can't be killed, and would survive a gateway that crashes. Entering
the second group takes some ten milliseconds, because the system stops all forks meanwhile.

All calls block. A kernel enters its cgroup by descriptors that are opened here with this process's rights,
before any user code runs.
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
ACCOUNTING = ("cpuacct",)
"""The controller of version 1 that counts processor time; version 2 counts it in each group."""
GATEWAY = "cellgate-gateway"
"""The group below the gateway's own group to which its processes are moved, with version 2."""
FIRST = "first"
"""The group below a container's group to which the container's processes are moved."""

_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)

_PERIOD = 100_000  # microseconds: the kernel's default
_LEAST_QUOTA = 1_000  # microseconds: the kernel's least
_ATTEMPTS = 3  # to leave a group: a process that is just being started may still join the group
_PAUSES = (0.0, 0.01, 0.05, 0.2, 0.5)
_KILL_PAUSES = (0.001, 0.002, 0.005, *([0.01] * 100), *([0.1] * 30))


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The folder of a process's cgroup in one hierarchy, and the needed controllers of that hierarchy."""

    folder: Path
    version: int
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one kernel: a folder in each hierarchy. The maker of the cgroup owns `descriptors`."""

    folders: tuple[tuple[Path, int], ...]

    def open(self) -> list[int]:
        """Return descriptors; a process that writes ``0`` to each of them joins the cgroup."""
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
        """Count the cgroup's processes that the system killed because all together used too much memory."""
        return max((kills_in(folder, version) for folder, version in self.folders), default=0)

    def enter(self, process: int) -> None:
        """Move a process into the cgroup. Raises OSError."""
        for folder, _ in self.folders:
            _write(folder / "cgroup.procs", str(process))

    def kill(self) -> None:
        """Kill all processes of the cgroup and wait for their end. Raises OSError when some are left."""
        for pause in _KILL_PAUSES:
            there = self._processes()
            if not there:
                return
            opened: dict[int, int] = {}
            try:
                for process in there:
                    with suppress(ProcessLookupError):
                        opened[process] = os.pidfd_open(process)
                # A process that is still in the group is the opened one, and not another of its number.
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
        """Remove the cgroup, whose processes must have ended. Raises OSError when it can't be removed."""
        for folder, _ in self.folders:
            _remove(folder)


class Cgroups:
    """Makes the cgroups of one gateway's kernels, in folders of one name. `close` removes these folders."""

    def __init__(self, hierarchies: Sequence[Hierarchy], name: str) -> None:
        self._parents = [(each.folder / name, each) for each in hierarchies]

    @classmethod
    def find(cls, name: str, root: Path = Path("/"), *, freezing: bool = False) -> Cgroups:
        """Return the cgroups below this process's own, after a trial cgroup was made.

        Raises BackendUnavailable with the cause where memory, tasks and processors can't be limited. `name`
        must be the gateway's own: leftovers of an earlier gateway of that name are removed. `root`: the
        folder of the system's files; `freezing`: whether kernels are to be frozen.
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
            found, limiting = cls._tried_counting(found, limiting, name, root)
        except OSError as error:
            raise BackendUnavailable(
                f"cgroups can't be made here: {in_words(error)}; with systemd, the gateway's unit needs"
                " Delegate=yes"
            ) from error
        further = [_below(each, root) for each in own if not each.controllers]
        with suppress(OSError):  # version 2 limits nothing here, so kernels do without it
            if freezing:
                return cls._tried([*limiting, *further], name)
            # An earlier gateway of this name may have had kernels there.
            cls(further, name).close()
        return found

    @classmethod
    def around(
        cls, process: int, name: str, limits: ResourceLimits, root: Path = Path("/")
    ) -> tuple[Cgroups, Cgroup]:
        """Return the cgroups below a container's group, and the cgroup that has its present processes.

        `process` is the container's first, and `limits` apply to all its present processes. With version 2 a
        group with processes passes no controllers on, so the processes are moved to a group below. Raises
        BackendUnavailable with the cause where no container allows that, and OSError.
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
            with suppress(OSError):  # what kernels use is then counted otherwise
                for each in _counting(root / f"proc/{process}", root, limiting):
                    # An engine may have left the container in a group that others are in.
                    there = _processes(each.folder)
                    if process in there and os.getpid() not in there:
                        (each.folder / name).mkdir(exist_ok=True)
                        limiting.append(each)
            found = cls(limiting, name)
            return found, found._take_over(limits)
        except OSError as error:
            if error.errno not in _NO_RIGHT:
                raise
            raise BackendUnavailable(f"a container's cgroup can't be divided: {in_words(error)}") from error

    @classmethod
    def _tried_counting(
        cls, found: Cgroups, limiting: list[Hierarchy], name: str, root: Path
    ) -> tuple[Cgroups, list[Hierarchy]]:
        """Return cgroups that also count processor time, and their hierarchies; as given if they can't."""
        counting: list[Hierarchy] = []
        try:
            counting = _counting(root / "proc/self", root, limiting)
            return cls._tried([*limiting, *counting], name), [*limiting, *counting]
        except OSError:
            with suppress(OSError):
                cls(counting, name).close()
            return found, limiting

    def _take_over(self, limits: ResourceLimits) -> Cgroup:
        """Move all processes of the groups above into a new group of the gateway. Raises OSError."""
        leaf = Cgroup(tuple((parent / FIRST, each.version) for parent, each in self._parents))
        for (parent, hierarchy), (folder, version) in zip(self._parents, leaf.folders, strict=True):
            # Groups above are not made, or the group of a container that is gone would be there again.
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
        """Return the cgroups below these folders, after a trial cgroup was made. Raises OSError."""
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
        """Limit the memory of all cgroups together, including memory left by ended ones.

        Raises OSError: EBUSY if more is in use and can't be reduced. Version 2 has then killed processes.
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
                # The second limit is never below the first.
                if error.errno != errno.EINVAL:
                    raise
                files.reverse()
            for file in files:
                _write(file, str(memory))

    def close(self) -> None:
        """Remove the folders of this gateway. Raises OSError while processes are in them."""
        for parent, _ in self._parents:
            self._sweep(parent)
            _remove(parent)


def kills_in(folder: Path, version: int) -> int:
    """Count a group's processes that the system killed at the limit of memory; 0 if the group is gone."""
    with suppress(OSError):
        text = (folder / {1: "memory.oom_control", 2: "memory.events"}[version]).read_text()
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def is_apart(group: Hierarchy, ours: Sequence[Hierarchy]) -> bool:
    """Return whether the group is visible here, and neither this process's own group nor one above."""
    if ".." in group.folder.parts:
        return False
    return not any(
        each.folder.is_relative_to(group.folder)
        for each in ours
        if (each.version, each.controllers) == (group.version, group.controllers)
    )


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
    """Return the hierarchies with these controllers, then version 2's hierarchy in any case.

    `own`: the text of the process's /proc/PID/cgroup; `mounts`: this process's mountinfo. These files don't
    name the controllers of version 2: it gets all controllers that version 1 does not have.
    """
    paths = groups_of(own)
    found: list[Hierarchy] = []
    for line in mounts.splitlines():
        # A machine with hundreds of containers has a thousand other mounts.
        if " - cgroup" not in line:
            continue
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split()
        # A mount's source may be an empty name, between two spaces.
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


def _counting(process: Path, root: Path, known: Sequence[Hierarchy]) -> list[Hierarchy]:
    """Return version 1's hierarchy that counts processor time, if it is mounted by itself. Raises OSError.

    `process`: the process's folder in /proc; `known`: the hierarchies that its kernels are in anyway.
    """
    folders = {each.folder for each in known}
    mounts = (root / "proc/self/mountinfo").read_text()
    found = hierarchies((process / "cgroup").read_text(), mounts, ACCOUNTING)
    below = [_below(each, root) for each in found if each.version == 1]
    return [each for each in below if each.folder not in folders]


def _below(hierarchy: Hierarchy, root: Path) -> Hierarchy:
    """Return the hierarchy by its path below `root`; with version 2, with its existing controllers."""
    folder = root / hierarchy.folder.relative_to("/")
    names = hierarchy.controllers
    if hierarchy.version == 2 and names:
        there = (folder / "cgroup.controllers").read_text().split()
        names = tuple(name for name in names if name in there)
    return Hierarchy(folder, hierarchy.version, names)


def _settings(hierarchy: Hierarchy, limits: ResourceLimits, reserved: int) -> Iterator[tuple[str, str]]:
    """Yield the files of one cgroup with the values to write, in order."""
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
        yield from (one if hierarchy.version == 1 else two).get(name, ())


_WITHOUT_SWAP = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""The files that are missing on systems which do not count swap."""


def _write(file: Path, value: str) -> None:
    if file.name in _WITHOUT_SWAP and not file.exists():
        return
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _pass_on(folder: Path, controllers: Sequence[str]) -> None:
    """Pass these controllers on to the groups below `folder`, after moving the gateway's processes out."""
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
    """Return the ids of a group's processes; empty if the group is gone."""
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise


def _vacate(folder: Path) -> None:
    """Move this process and its descendants to a group below `folder`, if it has no other processes."""
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
            return True  # the process has ended
    return pid == os.getpid()


def _remove(folder: Path) -> None:
    """Remove a cgroup's folder, where processes that have just ended stay for a moment."""
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
