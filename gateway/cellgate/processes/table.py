"""The programs of one session: their limit, their list, and their end with the kernel or session.

``run`` follows each. The programs of a kernel end with it, with a cause from the session.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

from cellgate.errors import NotFound, QueueFull
from cellgate.processes.outputs import MOST_OF_PROGRAM
from cellgate.processes.request import ProcessRequest
from cellgate.processes.run import ProcessHost, ProcessRun
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.kernel.kernel import Kernel

MOST_OF_SESSION: Final = 16
"""Most programs of one session that run at once."""
MOST_OF_PRINCIPAL: Final = 64
MOST_ENDED: Final = 64
"""Most ended programs that are still listed; the record has all."""
MOST_KEPT: Final = MOST_OF_SESSION * MOST_OF_PROGRAM
"""Most characters of their output that are still in memory.

All running programs may end at once, and waiting clients must still get each.
"""
MOST_ARGUMENTS: Final = MOST_KEPT
"""Most characters of their arguments in memory, beside those of their output."""
RETRY_AFTER: Final = 5.0
KILLED_WITHIN: Final = 2.0
"""Seconds within which the keeper reports the end of a killed program."""


class ProcessCounts:
    """The number of each principal's running programs, in all of its sessions."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    def enter(self, principal: str) -> None:
        """Count one program more. Raises QueueFull when there are too many."""
        if self._running[principal] >= MOST_OF_PRINCIPAL:
            raise QueueFull(
                f"{MOST_OF_PRINCIPAL} processes of {principal} are running already; end one first",
                retry_after=RETRY_AFTER,
            )
        self._running[principal] += 1

    def leave(self, principal: str) -> None:
        """Count one program less for a principal."""
        self._running[principal] -= 1
        if not self._running[principal]:
            del self._running[principal]


class SessionProcesses:
    """All running programs of a session, and the last ended ones."""

    def __init__(
        self,
        host: ProcessHost,
        counts: ProcessCounts,
        principal: str,
        ids: Callable[[], Mapping[str, object]],
    ) -> None:
        self._host = host
        self._counts = counts
        self._principal = principal
        self._starting = 0
        self._runs: dict[str, ProcessRun] = {}
        # The ended ones, in the order of their ends.
        self._ended: deque[ProcessRun] = deque()
        self._tasks = Supervisor(ids)

    @property
    def running(self) -> list[ProcessRun]:
        """The runs that have not ended."""
        return [run for run in self._runs.values() if run.running]

    @property
    def busy(self) -> bool:
        """Whether any program runs or is being started."""
        return bool(self._starting or self.running)

    @property
    def all(self) -> list[ProcessRun]:
        """The runs that are listed, oldest first."""
        return list(self._runs.values())

    def find(self, process: str) -> ProcessRun:
        """Return the program with this id. Raises NotFound."""
        run = self._runs.get(process)
        if run is None:
            raise NotFound(f"No process {process[:40]!r} in this session")
        return run

    async def start(self, kernel: Kernel, request: ProcessRequest) -> ProcessRun:
        """Start a program beside the kernel.

        Raises QueueFull when too many run, InvalidInput if the program can't be started, KernelDied and
        StorageError; then there is none.
        """
        if len(self.running) + self._starting >= MOST_OF_SESSION:
            raise QueueFull(
                f"{MOST_OF_SESSION} processes of this session are running already; end one first",
                retry_after=RETRY_AFTER,
            )
        self._counts.enter(self._principal)
        self._starting += 1
        try:
            program = await kernel.start_program(request.spec())
            run = ProcessRun(self._host, kernel, program, request)
            try:
                run.begin(self._tasks.guard)
            except BaseException:
                program.close()
                raise
        except BaseException:
            self._counts.leave(self._principal)
            raise
        finally:
            self._starting -= 1
        run.ended.add_done_callback(lambda _: self._counts.leave(self._principal))
        run.ended.add_done_callback(lambda _: self._note_end(run))
        self._runs[run.id] = run
        self._tasks.start(run.follow(), f"process {run.id}", lambda _: run.break_off())
        return run

    def _note_end(self, run: ProcessRun) -> None:
        """Drop the oldest ended programs, or at least their long texts, above the limits."""
        self._ended.append(run)
        if len(self._ended) > MOST_ENDED:
            del self._runs[self._ended.popleft().id]
        self._forget(ProcessRun.forget_output, lambda each: each.kept, MOST_KEPT)
        self._forget(ProcessRun.forget_arguments, lambda each: each.arguments, MOST_ARGUMENTS)

    def _forget(
        self, forget: Callable[[ProcessRun], None], size: Callable[[ProcessRun], int], most: int
    ) -> None:
        """Call `forget` with the oldest ended programs until at most `most` characters are kept."""
        kept = sum(map(size, self._ended))
        for each in self._ended:
            if kept <= most:
                break
            kept -= size(each)
            forget(each)
            kept += size(each)

    def lose(self, cause: str) -> None:
        """End all programs, and their record, with the kernel or the session."""
        for run in self.running:
            run.lose(cause)

    async def kill(self, cause: str) -> None:
        """End all programs like `lose`, and return when they are gone, or at least were asked to end."""
        running = self.running
        for run in running:
            run.signal(signal.SIGKILL)
        if running:
            await asyncio.wait([run.ended for run in running], timeout=KILLED_WITHIN)
        self.lose(cause)

    async def close(self, cause: str) -> None:
        """End all programs like `lose`, and return when none of them is followed any more."""
        self.lose(cause)
        await self._tasks.finished()
