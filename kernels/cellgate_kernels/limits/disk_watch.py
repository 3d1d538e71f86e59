"""Checks the disk use of all kernels regularly, and ends kernels that use more than their limit.

A gateway has one watch, so that checks take a limited share of one processor however many kernels there
are. ``disk`` measures; the provisioners define the folders and end the kernel. It runs only while needed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.resources import MOST_BYTES, ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.limits.disk import CountedFolder, DiskUsage, Parents, all_parents, usage

logger = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL = 1.0
"""The seconds between two checks."""

PATIENCE = 20.0
"""The pause after a check, as a multiple of the time that it took."""

NEAR = 0.75
"""The share of its limit from which a kernel is checked more often."""

PATIENCE_WHEN_NEAR = 2.0
"""The same for a kernel that is near or over its limit: it may write too much until the next check."""

AGAIN = 0.25
"""The seconds until the next check of a kernel found full: the kernel may be ended only after a second."""

SHARE = 0.05
"""The seconds of one kernel's check that lengthen the pause for all kernels. Further seconds delay only that
kernel's next check: a kernel with many files does not keep the watch from the others."""

MOST_ON_THE_WAY = 5
"""The most checks in a row with files on their way through a socket: no program has to leave files there."""


@dataclass(slots=True, eq=False)
class Watched:
    """One watched kernel. `process`: its first one, None if we may not look into it; `end` ends the kernel.

    `passes_files`: whether only user code sends descriptors through its sockets: gVisor itself does, too.
    `given`: the bytes that its session brought along, None before they are counted; `given_to_one`: the bytes
    of them in one workspace. `workspaces`: their number in its sandbox now; for each a session has reserved
    the limit, so no workspace may use another's reservation.
    """

    limits: ResourceLimits
    folders: tuple[CountedFolder, ...]
    process: int | None
    end: Callable[[KernelExit], None]
    passes_files: bool = True
    workspaces: Callable[[], int] = lambda: 1
    given: int | None = 0
    given_to_one: int = 0
    last: DiskUsage = field(default_factory=lambda: DiskUsage(0))
    looks_on_the_way: int = 0
    was_full: bool = False
    due: float = 0.0

    @property
    def allowed(self) -> int:
        """The limit for all its workspaces, or the bytes that the session brought along, if more."""
        return max(self.limits.disk * max(1, self.workspaces()), self.given or 0)

    @property
    def allowed_to_one(self) -> int:
        """The limit for one of its workspaces, or the most bytes given to one of them, if more."""
        return max(self.limits.disk, self.given_to_one)

    def is_over(self, found: DiskUsage, share: float = 1.0) -> bool:
        """Return whether the use is above a share of the allowance, in all or in one workspace."""
        return found.used > share * self.allowed or found.largest > share * self.allowed_to_one

    @property
    def patience(self) -> float:
        """The pause after a check, as a multiple of the check's time; see `PATIENCE`."""
        return PATIENCE_WHEN_NEAR if self.is_over(self.last, NEAR) else PATIENCE

    def bring_along(self, found: DiskUsage) -> None:
        """Allow the measured use, unless measuring failed.

        If no workspace is above the limit, no allowance is needed: files in the workspaces of branches are
        gone when the branches have ended.
        """
        is_needed = not 0 < found.largest <= self.limits.disk
        measured = found.used <= MOST_BYTES
        self.given = found.used if measured and is_needed else 0
        self.given_to_one = found.largest if measured else 0

    def must_end_after(self, found: DiskUsage) -> bool:
        """Return whether the kernel must end after this check."""
        if found.on_the_way and self.passes_files:
            self.looks_on_the_way += 1
            # Files that were counted before may be hidden in a socket now.
            used, largest = max(found.used, self.last.used), max(found.largest, self.last.largest)
            found = replace(found, used=used, largest=largest)
        else:
            self.looks_on_the_way = 0
        self.last = found
        if self.given is None:
            self.bring_along(found)
        full = self.is_over(found) or self.looks_on_the_way >= MOST_ON_THE_WAY
        # Twice in a row, because a session's files are there shortly before `files_given` is called.
        must_end = full and self.was_full
        self.was_full = full
        return must_end


class DiskWatch:
    """The watch of all kernels on one loop."""

    def __init__(self) -> None:
        self._kernels: set[Watched] = set()
        self._tasks = Supervisor(dict, self._failed)
        self._threads: ThreadPoolExecutor | None = None
        self._told = False

    def add(self, kernel: Watched) -> None:
        """Watch a kernel until `discard` is called."""
        self._kernels.add(kernel)
        self._begin()

    def discard(self, kernel: Watched | None) -> None:
        """Stop watching a kernel. Idempotent."""
        if kernel in self._kernels:
            self._kernels.remove(kernel)
        if not self._kernels:
            for task in self._tasks:
                task.cancel()
            self._close_threads()

    async def files_given(self, kernel: Watched) -> None:
        """Allow the kernel's present use, even if it is over the limit."""
        kernel.given = None
        if (found := await self._usage(kernel, None)) is not None:
            kernel.bring_along(found)

    def _begin(self) -> None:
        if self._kernels and not any(not task.cancelling() for task in self._tasks):
            self._tasks.start(self._watch(), "disk watch")

    def _failed(self, name: str, error: Exception) -> None:
        """Continue after an internal error, which is already logged, with the pause before each round."""
        self._begin()

    async def _watch(self) -> None:
        pause = INTERVAL
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                parents = await self._in_thread(all_parents)
            except OSError as error:
                self._tell(error)
                continue
            owed = PATIENCE * (time.monotonic() - began)
            for kernel in [kernel for kernel in self._kernels if kernel.due <= began]:
                if kernel in self._kernels:
                    taken = await self._look(kernel, parents)
                    owed += kernel.patience * min(SHARE, taken)
            pause = self._pause(owed)

    def _pause(self, owed: float) -> float:
        """Return the seconds until the next round, after checks that deserve a pause of `owed` seconds."""
        return AGAIN if any(kernel.was_full for kernel in self._kernels) else max(INTERVAL, owed)

    async def _look(self, kernel: Watched, parents: Parents) -> float:
        """Check a kernel and end it if required; return the seconds that the check took."""
        began = time.monotonic()
        found = await self._usage(kernel, parents)
        now = time.monotonic()
        if found is not None and kernel in self._kernels and kernel.must_end_after(found):
            self.discard(kernel)
            kernel.end(disk_full(kernel.limits.disk))
        kernel.due = now + kernel.patience * (now - began)
        return now - began

    async def _usage(self, kernel: Watched, parents: Parents | None) -> DiskUsage | None:
        """Return the kernel's disk use; None when measuring must wait, because no file can be opened now."""

        # All files that the session brought along count, however many.
        enough = MOST_BYTES if kernel.given is None else 2 * kernel.allowed

        def look() -> DiskUsage:
            return usage(kernel.folders, kernel.process, enough=enough, parents=parents)

        try:
            found = await self._in_thread(look)
        except OSError as error:
            self._tell(error)
            return None
        self._told = False
        return found

    def _tell(self, error: OSError) -> None:
        if not self._told:
            logger.warning("The disks of kernels can't be looked at for now: %s", in_words(error))
        self._told = True

    async def _in_thread(self, look: Callable[[], T]) -> T:
        if self._threads is None:
            # A thread of its own: a slow check blocks no other work, and waits for none.
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="disk")
        return await asyncio.get_running_loop().run_in_executor(self._threads, look)

    def _close_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None


def disk_full(disk: int) -> KernelExit:
    """Return the exit of a kernel that used more than `disk` bytes."""
    said = f"The kernel's files took more than its {disk / 2**20:.4g} MiB of disk, and it was ended."
    return KernelExit("disk_full", None, 9, f"{said} Its variables are lost, its files are kept.")
