"""The control group that a kernel has to itself: freezing it, and giving its memory back to the system.

It works on groups that somebody else made, such as a container engine, and limits nothing. A kernel whose
processes are in a group with others has none: they would be frozen too. Both versions of control groups are
known (cgroups(7); the kernel's cgroup-v1/freezer-subsystem, cgroup-v1/memory and cgroup-v2). Writes to these
files need root, or the owner of a delegated group.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.provisioners.cgroups import groups_of
from cellgate_kernels.provisioners.disk import state_of

HIERARCHIES = Path("/sys/fs/cgroup")

PASSES = 4
"""How often version 1 is asked to give memory back: the first passes spare pages that were used lately."""
STEP = 64 * 1024 * 1024
"""Bytes that version 2 is asked to give back at once, so that a kernel that is woken need not wait."""
MOST_STEPS = 4096

_TIMES = slice(11, 15)  # utime, stime, cutime, cstime
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The folders of one group: `freezer` and `memory`, which are the same in version 2 (`unified`).

    All methods raise OSError when the group is gone, or the caller has no right to it.
    """

    freezer: Path
    memory: Path
    unified: bool

    @classmethod
    def of(
        cls, process: int, hierarchies: Path = HIERARCHIES, proc: Path = Path("/proc")
    ) -> ControlGroup | None:
        """The group of a process, if we are in another one and see its files; None otherwise."""
        try:
            theirs = groups_of((proc / str(process) / "cgroup").read_text())
            ours = groups_of((proc / "self" / "cgroup").read_text())
        except OSError:
            return None
        unified = not {"freezer", "memory"} <= theirs.keys()
        needed = (
            {"": "cgroup.freeze"} if unified else {"freezer": "freezer.state", "memory": "memory.force_empty"}
        )
        folders = []
        for hierarchy, file in needed.items():
            path = Path(theirs.get(hierarchy, "/"))
            # Of ours, and of the root, others are members too.
            if Path(ours.get(hierarchy, "/")).is_relative_to(path) or ".." in path.parts:
                return None
            folder = hierarchies / hierarchy / path.relative_to("/")
            if not (folder / file).exists():
                return None
            folders.append(folder)
        return cls(folders[0], folders[-1], unified)

    def freeze(self) -> None:
        """Begin to stop all processes of the group; `frozen` says when they have stopped."""
        self._set("1" if self.unified else "FROZEN")

    def thaw(self) -> None:
        """Let all processes of the group go on."""
        self._set("0" if self.unified else "THAWED")

    def _set(self, word: str) -> None:
        (self.freezer / ("cgroup.freeze" if self.unified else "freezer.state")).write_text(word)

    @property
    def frozen(self) -> bool:
        """Whether all its processes have stopped."""
        if self.unified:
            return "frozen 1" in (self.freezer / "cgroup.events").read_text().splitlines()
        return (self.freezer / "freezer.state").read_text().strip() == "FROZEN"

    def memory_used(self) -> int:
        """Bytes of memory that the group uses, its cache included; what is in swap does not count."""
        name = "memory.current" if self.unified else "memory.usage_in_bytes"
        return int((self.memory / name).read_text())

    def processes(self) -> list[int]:
        """The ids of its processes."""
        return [int(line) for line in (self.memory / "cgroup.procs").read_text().split()]

    def processor_seconds(self) -> float:
        """The processor time that its living processes, and children that they have reaped, have used."""
        ticks = 0
        for process in self.processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += sum(int(field) for field in state_of(f"/proc/{process}")[_TIMES])
        return ticks / _TICKS_PER_SECOND

    def give_memory_back(self, stop: Callable[[], bool]) -> None:
        """Move its memory to swap and drop its cache, as far as the system can. Blocks for up to seconds.

        `stop` is asked between the steps. Without swap only the cache is dropped.
        """
        if self.unified:
            # An engine that allows no more memory with swap than without forbids swap altogether.
            with suppress(OSError):
                (self.memory / "memory.swap.max").write_text("max")
        file, word = ("memory.reclaim", str(STEP)) if self.unified else ("memory.force_empty", "0")
        # Version 2 says when there is no more to give. Version 1 never does.
        for _ in range(MOST_STEPS if self.unified else PASSES):
            if stop():
                return
            try:
                (self.memory / file).write_text(word)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EBUSY):
                    raise
                if self.unified:
                    return
