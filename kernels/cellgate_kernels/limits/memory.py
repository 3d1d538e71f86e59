"""The memory and processor time that kernels use, as their limits count them.

A kernel whose processes have a control group of their own uses what that group is charged with, without files
that the system would drop first: pages that it shares with the process that it was forked from are charged to
that one. Other kernels use the proportional share (Pss) of their processes, in which a page of several
processes is divided among them. /proc is read once for all kernels; callers do so in a thread, because a
process's share takes the system milliseconds for each gigabyte. Limits are the backends' business. See
proc(5), and the kernel's cgroup-v1/memory and cgroup-v2.
"""

from __future__ import annotations

import os
import resource
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.limits.cgroups import hierarchies, is_apart, kills_in
from cellgate_kernels.limits.disk import TICKS_PER_SECOND, family, state_of, ticks_of

MOST_PROCESSES = 20_000
"""The most processes that are examined, so that a machine with more of them costs no more time."""

_PARENT, _RESIDENT = 1, 21
_PAGE = resource.getpagesize()
_KIB = 1024
_CHARGE = {1: ("memory.usage_in_bytes", "total_inactive_file"), 2: ("memory.current", "inactive_file")}
"""By version of control groups: the file with the charge, and the line of memory.stat about unused files."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The use of a process and its descendants. `memory`: bytes.

    `seconds`: the processor time of the living ones, and of children that they have reaped.
    """

    memory: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The folder of a control group that limits memory, and its version of control groups."""

    folder: Path
    version: int

    @classmethod
    def of(cls, process: int | None) -> MemoryGroup | None:
        """Return the group of a process; None if it is this process's own, or nobody knows or sees it."""
        return None if process is None else cls.of_all([process]).get(process)

    @classmethod
    def of_all(cls, processes: Iterable[int], proc: Path = Path("/proc")) -> dict[int, MemoryGroup]:
        """Return the groups of processes, without those that `of` returns None for. `proc`: the folder."""
        found: dict[int, MemoryGroup] = {}
        try:
            mounts = (proc / "self/mountinfo").read_text()
            ours = hierarchies((proc / "self/cgroup").read_text(), mounts, ("memory",))
        except OSError:
            return found
        for process in processes:
            with suppress(OSError):
                theirs = hierarchies((proc / f"{process}/cgroup").read_text(), mounts, ("memory",))
                for each in theirs:
                    if "memory" in each.controllers and is_apart(each, ours):
                        found[process] = cls(each.folder, each.version)
        return found

    def charge(self) -> int:
        """Return the bytes that count for its limit, without files that nobody has read for a while.

        Raises OSError when the group is gone, or has no limits of memory.
        """
        return charge_of(self.folder, self.version)

    def kills(self) -> int:
        """Count its processes that the system killed at the limit; 0 when the group is gone."""
        return kills_in(self.folder, self.version)


def charge_of(folder: Path, version: int) -> int:
    """Return the bytes that count for the limit of a control group, without unused files. Raises OSError."""
    file, unused = _CHARGE[version]
    used = int((folder / file).read_text())
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == unused:
            return max(0, used - int(value))
    return used


def uses(roots: Sequence[int]) -> list[MemoryUse]:
    """Measure each process with its descendants; zero for a process that is gone."""
    children: dict[int, list[int]] = defaultdict(list)
    own: dict[int, tuple[int, int]] = {}
    processes = (name for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208
    for _, name in zip(range(MOST_PROCESSES), processes, strict=False):
        with suppress(OSError):
            fields = state_of(f"/proc/{name}")
            children[int(fields[_PARENT])].append(int(name))
            own[int(name)] = int(fields[_RESIDENT]), ticks_of(fields)
    groups = MemoryGroup.of_all(set(roots) & own.keys())
    # Of kernels that have one group together, nobody could say which of them uses what.
    sharers = Counter(groups.values())
    alone = {root: group for root, group in groups.items() if sharers[group] == 1}
    return [
        _use({pid: own[pid] for pid in family(root, children) if pid in own}, alone.get(root))
        for root in roots
    ]


def _use(found: Mapping[int, tuple[int, int]], group: MemoryGroup | None) -> MemoryUse:
    """Return the use of these processes, each with its resident pages and its ticks."""
    seconds = sum(ticks for _, ticks in found.values()) / TICKS_PER_SECOND
    if group is not None:
        with suppress(OSError, ValueError):
            return MemoryUse(group.charge(), seconds)
    return MemoryUse(sum(_share(pid, pages) for pid, (pages, _) in found.items()), seconds)


def _share(pid: int, resident: int) -> int:
    """Return the bytes of a process's proportional share; all of its `resident` pages if it is not told."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except ProcessLookupError:
        return 0
    except OSError:
        return _PAGE * resident
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * _KIB
    return 0
