"""The control group of a single kernel: freezing the kernel, and giving its memory back to the system.

The groups were made by another program, such as a container engine; nothing is limited here. A kernel whose
processes share a group with others has no `ControlGroup`: the others would be frozen too. See cgroups(7) and
the kernel's cgroup-v1/freezer-subsystem, cgroup-v1/memory, cgroup-v2. Writing needs root or the owner.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.limits.cgroups import Hierarchy, hierarchies, is_apart
from cellgate_kernels.limits.disk import TICKS_PER_SECOND, state_of, ticks_of

PASSES = 4
"""The least number of requests to version 1 to give memory back: the first ones spare recently used pages."""
WORTH_A_PASS = 1024 * 1024
"""The bytes given back that justify one more request: requests end early while a slow disk still writes."""
STEP = 64 * 1024 * 1024
"""The bytes that version 2 gives back in one step, so that a kernel that is woken need not wait."""
MOST_STEPS = 4096


CONTROLLERS = ("freezer", "memory")
"""The controllers needed of version 1; version 2 freezes without a controller."""


def mounts_here(root: Path = Path("/")) -> str:
    """Return the file systems that this process sees, as proc_pid_mountinfo(5) has them. Raises OSError."""
    return (root / "proc/self/mountinfo").read_text()


# By version: the file, the value that stops the group's processes, and the value that resumes them.
_FREEZING = {1: ("freezer.state", "FROZEN", "THAWED"), 2: ("cgroup.freeze", "1", "0")}


@dataclass(frozen=True, slots=True)
class Part:
    """A folder of a group, and its version of control groups."""

    folder: Path
    version: int


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The part that can freeze a group, and the part that has its memory; equal with version 2 alone.

    All methods raise OSError when the group is gone, or the caller may not use it.
    """

    freezer: Part
    memory: Part

    @classmethod
    def of(cls, process: int, root: Path = Path("/"), mounts: str | None = None) -> ControlGroup | None:
        """Return the group of a process; None if it is this process's group or its files are not writable.

        Where both versions can freeze the group, version 2 does: its frozen processes can be killed.
        `root`: the folder of the system's files; `mounts`: what `mounts_here` returned, for many processes.
        """
        proc = root / "proc"
        try:
            mounts = mounts_here(root) if mounts is None else mounts
            theirs = hierarchies((proc / str(process) / "cgroup").read_text(), mounts, CONTROLLERS)
            ours = hierarchies((proc / "self/cgroup").read_text(), mounts, CONTROLLERS)
        except OSError:
            return None
        own = [
            Hierarchy(root / each.folder.relative_to("/"), each.version, each.controllers)
            for each in theirs
            if is_apart(each, ours)
        ]
        memory = next((each for each in own if "memory" in each.controllers), None)
        freezers = (each for each in own if each.version == 2 or "freezer" in each.controllers)
        if memory is None or not os.access(memory.folder, os.W_OK):
            return None
        for each in sorted(freezers, key=lambda each: -each.version):
            if os.access(each.folder / _FREEZING[each.version][0], os.W_OK):
                return cls(Part(each.folder, each.version), Part(memory.folder, memory.version))
        return None

    def freeze(self) -> None:
        """Begin to stop all processes of the group; `frozen` becomes true when all have stopped."""
        file, word, _ = _FREEZING[self.freezer.version]
        (self.freezer.folder / file).write_text(word)

    def thaw(self) -> None:
        """Resume all processes of the group."""
        file, _, word = _FREEZING[self.freezer.version]
        (self.freezer.folder / file).write_text(word)

    @property
    def frozen(self) -> bool:
        """Whether all processes of the group have stopped."""
        if self.freezer.version == 2:
            return "frozen 1" in (self.freezer.folder / "cgroup.events").read_text().splitlines()
        return (self.freezer.folder / "freezer.state").read_text().strip() == "FROZEN"

    def memory_used(self) -> int:
        """Return the bytes of memory that the group uses, with its cache, without swap."""
        return int(self._of_memory({1: "memory.usage_in_bytes", 2: "memory.current"}).read_text())

    def _of_memory(self, names: Mapping[int, str]) -> Path:
        return self.memory.folder / names[self.memory.version]

    def processes(self) -> list[int]:
        """Return the ids of the group's processes."""
        return [int(line) for line in (self.memory.folder / "cgroup.procs").read_text().split()]

    def processor_seconds(self) -> float:
        """Return the processor time in seconds of the living processes and the children they have reaped."""
        ticks = 0
        for process in self.processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += ticks_of(state_of(f"/proc/{process}"))
        return ticks / TICKS_PER_SECOND

    def allow_swap(self) -> str | None:
        """Allow the group as much swap as memory; return the limit before, None if unknown.

        With version 1 one limit is for both, and nothing has to be done. With version 2 a group that may not
        use more with swap than without has no swap at all, and could give nothing back.
        """
        limit = self.memory.folder / "memory.swap.max"
        if self.memory.version != 2 or not limit.exists():
            return None
        before = limit.read_text().strip()
        if before == "0":
            limit.write_text((self.memory.folder / "memory.max").read_text().strip())
        return before

    def limit_swap(self, most: str) -> None:
        """Set the limit that `allow_swap` returned. Pages already in swap stay there until needed."""
        (self.memory.folder / "memory.swap.max").write_text(most)

    def give_memory_back(self, stop: Callable[[], bool]) -> None:
        """Move the group's memory to swap and drop its cache, as far as possible. Blocks for up to seconds.

        `stop` is called between the steps. Without swap only the cache is dropped. Systems without such a
        call, such as Linux before 5.19 with version 2, give nothing back.
        """
        unified = self.memory.version == 2
        file = self._of_memory({1: "memory.force_empty", 2: "memory.reclaim"})
        if not file.exists():
            return
        used = self.memory_used()
        for done in range(MOST_STEPS):
            # Version 2 reports when there is no more to give. Version 1 never does.
            if not unified and done >= PASSES:
                before, used = used, self.memory_used()
                if before - used < WORTH_A_PASS:
                    return
            if stop():
                return
            try:
                file.write_text(str(STEP) if unified else "0")
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EBUSY):
                    raise
                if unified:
                    return
