"""Measures what the processes of one kernel's sandbox or container use while a cell runs.

Everything is read from outside, from the system's own counts: a kernel is never asked, because user code
could answer. Where processes have a control group of their own, its counts of processor time and memory are
read; they have the time of all processes, however they ended. Elsewhere the time is that of the processes
below the first one, and nobody knows their memory. Bytes written are each process's own count. What can't be
known is None, and no figure says more than was used.

A look is made on the loop, because a thread would cost more: files that are read again stay open, so that it
takes some 25 us. It limits nothing. See cgroups(7), proc(5), the kernel's cgroup-v1/memory,
cgroup-v1/cpuacct and cgroup-v2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.launch.base import CellgateProvisioner
from cellgate_kernels.limits.cgroups import Hierarchy, hierarchies, is_apart
from cellgate_kernels.limits.disk import TICKS_PER_SECOND, TIMES

N = TypeVar("N", int, float)

MOST_PROCESSES = 100
"""The most processes of a kernel that a look counts one by one."""
MOST_THREADS = 1_000
"""The most threads that are asked for their children."""
KEPT = 2
"""The most processes whose files stay open: the first, and the kernel."""
CONTROLLERS = ("memory", "cpuacct")

_PAGE = 4096
_PASSES = 3
_WRITTEN = b"write_bytes: "
_SECONDS = {1: "cpuacct.usage", 2: "cpu.stat"}
_PEAK = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_PRESENT = {1: "memory.usage_in_bytes", 2: "memory.current"}


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What was used between two looks; None for what is not known.

    `cpu_seconds`: processor time. `memory_peak`: the most bytes of memory that were known to be in use, with
    cached files. `disk_written`: bytes that were written to file systems on disks.
    """

    cpu_seconds: float | None = None
    memory_peak: int | None = None
    disk_written: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The counts at one moment. `peak`: the most memory so far, `memory`: at this moment, in bytes.

    `afresh`: the peak begins with this look, so that neither has been read.
    """

    seconds: float | None = None
    peak: int | None = None
    memory: int | None = None
    written: int | None = None
    afresh: bool = False


class _OpenFiles:
    """Files of the system that stay open between reads."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def keep(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor of the file, which stays open. Raises OSError."""
        found = self._descriptors.get(path)
        if found is None:
            found = self._descriptors[path] = os.open(path, flags | os.O_CLOEXEC)
        return found

    def read(self, path: str, *, keep: bool = True) -> bytes:
        """Return the first page of a file. Raises OSError."""
        if keep or path in self._descriptors:
            try:
                return os.pread(self.keep(path), _PAGE, 0)
            except OSError:
                self._drop(path)
                raise
        return _read(path)

    def _drop(self, path: str) -> None:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all open files."""
        for path in tuple(self._descriptors):
            self._drop(path)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The control groups that only one kernel's processes are in, by what they count, if there are any."""

    memory: Hierarchy | None = None
    seconds: Hierarchy | None = None

    @property
    def processes(self) -> str | None:
        """The path of the file with the ids of all processes."""
        found = self.memory or self.seconds
        return None if found is None else str(found.folder / "cgroup.procs")

    @classmethod
    def of(cls, process: int, root: Path) -> _Groups:
        """Return the groups of a process that are not this program's own. `root`: of the system's files."""
        proc = root / "proc"
        try:
            mounts = (proc / "self/mountinfo").read_text()
            theirs = hierarchies((proc / f"{process}/cgroup").read_text(), mounts, CONTROLLERS)
            ours = hierarchies((proc / "self/cgroup").read_text(), mounts, CONTROLLERS)
        except OSError:
            return cls()
        own = [
            Hierarchy(root / each.folder.relative_to("/"), each.version, each.controllers)
            for each in theirs
            if is_apart(each, ours)
        ]
        memory = next((each for each in own if "memory" in each.controllers), None)
        if memory is not None and not (memory.folder / _PRESENT[memory.version]).exists():
            memory = None
        # Version 2 counts processor time in each group, whatever its controllers are.
        counting = [each for each in own if each.version == 2 or "cpuacct" in each.controllers]
        return cls(memory, min(counting, key=lambda each: each.version, default=None))


class UseMeter:
    """Measures one sandbox. `process` returns its first process, None at its end.

    `shared`: whether kernels of others may be in its control group. Kernels that share the sandbox itself
    share a meter: nobody can say which of them uses what. `offline`: whether no byte leaves it but by the way
    that its owner serves.
    """

    def __init__(
        self,
        process: Callable[[], int | None],
        *,
        shared: bool = False,
        offline: bool = False,
        root: Path = Path("/"),
    ) -> None:
        self.offline = offline
        self._process = process
        self._shared = shared
        self._root = root
        self._proc = str(root / "proc")
        self._files = _OpenFiles()
        self._first: int | None = None
        self._groups = _Groups()
        self._lasting: frozenset[int] = frozenset()
        self._seconds = ""
        self._peak = self._present = ""
        self._known: Sequence[int] | None = None
        self._born = b""
        self._of_first: int | None = None
        self._running = 0
        self._last: Look | None = None

    @classmethod
    def of(cls, backend: CellgateProvisioner) -> UseMeter:
        """Return a meter of a kernel that was just launched, or taken over."""
        _, view = backend.place
        meter = cls(lambda: backend.process, shared=backend.has_neighbours, offline=bool(view.egress))
        backend.last_look = meter.note_end
        backend.gone.add_done_callback(guarded(lambda _: meter.close(), "end of a meter"))
        return meter

    def begin(self) -> Look:
        """Return the counts at the beginning of a cell; pass them to `end`."""
        if self._first is None:
            self._open()
        self._running += 1
        if self._running == 1 and self._forget_peak():
            return self._look(peak=False, memory=False)
        return self._look()

    def end(self, before: Look) -> KernelUse:
        """Return what was used since `begin`, which returned `before`."""
        self._running -= 1
        after = self._last or self._look(memory=not before.afresh)
        seconds = _growth(before.seconds, after.seconds)
        return KernelUse(
            None if seconds is None else round(seconds, 6),
            _peak_between(before, after),
            _growth(before.written, after.written),
        )

    def note_end(self) -> None:
        """Look for the last time: the first process has ended, and its control group is about to go.

        What processes wrote is lost with them, or not, as it happens.
        """
        if self._running and self._last is None:
            self._last = replace(self._look(), written=None)

    def close(self) -> None:
        """Close the files; the next `begin` opens them again."""
        self._files.close()
        self._first = None

    def _open(self) -> None:
        """Find the files that have the counts."""
        self._files.close()
        self._first = process = self._process()
        self._known, self._born, self._groups, self._of_first = None, b"", _Groups(), None
        self._seconds = self._peak = self._present = ""
        if process is None:
            return
        groups = _Groups.of(process, self._root)
        if groups.processes is not None and self._shared:
            inside = self._listed(groups.processes)
            below = self._family(process)
            if inside is None or below is None or not set(inside) <= set(below):
                groups = _Groups()
        self._groups = groups
        if groups.seconds is not None:
            self._seconds = str(groups.seconds.folder / _SECONDS[groups.seconds.version])
        if groups.memory is not None:
            self._peak = str(groups.memory.folder / _PEAK[groups.memory.version])
            self._present = str(groups.memory.folder / _PRESENT[groups.memory.version])
        self._lasting = frozenset((self._processes() or ())[:KEPT])

    def _look(self, *, peak: bool = True, memory: bool = True) -> Look:
        """Return the counts now. Without `peak` it begins with this look."""
        if self._first is None:
            return Look()
        seconds = self._seconds_of_group()
        written, ticks = self._of_processes(with_ticks=seconds is None)
        if seconds is None and ticks is not None:
            seconds = ticks / TICKS_PER_SECOND
        return Look(
            seconds,
            self._memory(self._peak) if peak else None,
            self._memory(self._present) if memory else None,
            written,
            not peak,
        )

    def _seconds_of_group(self) -> float | None:
        group = self._groups.seconds
        if group is not None:
            with suppress(OSError, ValueError, IndexError):
                told = self._files.read(self._seconds)
                return int(told) / 1e9 if group.version == 1 else int(told.split(None, 2)[1]) / 1e6
        return None

    def _memory(self, path: str) -> int | None:
        if path:
            with suppress(OSError, ValueError):
                return int(self._files.read(path))
        return None

    def _forget_peak(self) -> bool:
        """Let the peak begin anew, and return whether it does: not in version 2 before Linux 6.12."""
        if self._peak:
            with suppress(OSError):
                return os.pwrite(self._files.keep(self._peak, os.O_RDWR), b"0", 0) > 0
        return False

    def _of_processes(self, *, with_ticks: bool) -> tuple[int | None, int | None]:
        """Return the bytes that all processes have written, and their ticks; each with reaped children."""
        processes = self._processes()
        if processes is None:
            return None, None
        written: int | None = 0
        ticks = seen = 0
        for process in processes:
            folder, keep = f"{self._proc}/{process}", process in self._lasting
            try:
                if with_ticks:
                    state = self._files.read(f"{folder}/stat", keep=keep).rpartition(b")")[2]
                    ticks += sum(map(int, state.split()[TIMES]))
                if written is not None:
                    written += self._written_by(process, f"{folder}/io", keep=keep)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended, and its parent has its counts
            except (OSError, ValueError):
                written = None
            seen += 1
        if not seen:
            return None, None
        return written, ticks if with_ticks else None

    def _written_by(self, process: int, path: str, *, keep: bool) -> int:
        """Return what a process has written. Raises OSError, ValueError."""
        if process != self._first or self._known is None or len(self._known) > KEPT:
            return _written_in(self._files.read(path, keep=keep))
        if self._of_first is None:
            # It only waits for the kernel, and as long as no process is born there is none to be reaped.
            self._of_first = _written_in(self._files.read(path, keep=keep))
        return self._of_first

    def _processes(self) -> Sequence[int] | None:
        """Return the ids of the processes; None if there are too many to look at, or nobody knows."""
        assert self._first is not None
        try:
            # The id of the youngest process or thread of the machine, in its last field.
            born = self._files.read(f"{self._proc}/loadavg").rpartition(b" ")[2]
        except OSError:
            born = b""
        if self._known is None or not born or born != self._born:
            listed = self._groups.processes
            self._known = self._family(self._first) if listed is None else self._listed(listed)
            self._born, self._of_first = born, None
        return self._known

    def _listed(self, path: str) -> Sequence[int] | None:
        with suppress(OSError):
            found = self._files.read(path)
            if len(found) < _PAGE:
                processes = [int(each) for each in found.split()]
                return processes if len(processes) <= MOST_PROCESSES else None
        return None

    def _family(self, first: int) -> Sequence[int] | None:
        """Return a process and its descendants, again if one ends: its children get another parent."""
        for _ in range(_PASSES):
            try:
                return _descendants(self._proc, first)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                break
        return None


def _descendants(proc: str, first: int) -> Sequence[int] | None:
    """Return a process and its descendants, None if there are too many. Raises OSError if one has ended."""
    found: list[int] = []
    waiting = [first]
    threads = 0
    while waiting:
        process = waiting.pop()
        found.append(process)
        names = os.listdir(f"{proc}/{process}/task")  # noqa: PTH208 - /proc has no tree to walk
        threads += len(names)
        if len(found) > MOST_PROCESSES or threads > MOST_THREADS:
            return None
        for name in names:
            children = _read(f"{proc}/{process}/task/{name}/children")
            if len(children) >= _PAGE:
                return None
            waiting += map(int, children.split())
    return found


def _read(path: str) -> bytes:
    """Return the first page of a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _PAGE)
    finally:
        os.close(descriptor)


def _written_in(text: bytes) -> int:
    """Return the bytes written from a process's /proc/PID/io. Raises ValueError."""
    begin = text.index(_WRITTEN) + len(_WRITTEN)
    return int(text[begin : text.index(b"\n", begin)])


def _growth(before: N | None, after: N | None) -> N | None:
    """Return by how much a count has grown; None if unknown, or if a process was lost with its counts."""
    if before is None or after is None or after < before:
        return None
    return after - before


def _peak_between(before: Look, after: Look) -> int | None:
    """Return the most memory that is known to have been in use between two looks."""
    if before.afresh:
        return after.peak
    if before.peak is not None and after.peak is not None and after.peak > before.peak:
        # The mark has risen since, so it was reached since.
        return after.peak
    return max((each.memory for each in (before, after) if each.memory is not None), default=None)
