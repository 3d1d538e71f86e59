"""The executions of a session that matter now: the one that runs, those beside it, those that wait, the last.

A plain data structure without tasks or awaits; ``session`` decides what runs, ``queue`` is what waits.
Beside the running cell are those of Jupyter's subshells. The last that ended are kept for what their threads
still print.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun, ExecutionSettings
from cellgate.record.events import EventLog
from cellgate.sessions.queue import ExecutionQueue
from cellgate.wire.errors import NotFound
from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.execution import Status

RECENT_EXECUTIONS = 32


class SessionRuns:
    """`current` is the cell that runs; the session sets it. `made`: how many executions there have been."""

    def __init__(self, queue: ExecutionQueue) -> None:
        self.current: ExecutionRun | None = None
        self.made = 0
        self._queue = queue
        self._beside: dict[str, ExecutionRun] = {}
        self._recent: OrderedDict[str, ExecutionRun] = OrderedDict()

    def make(
        self,
        request: ExecuteRequest,
        log: EventLog,
        settings: ExecutionSettings,
        timeout: float | None,
        idempotency: tuple[str, str] | None,
    ) -> ExecutionRun:
        """A new execution, recorded as queued behind all others."""
        self.made += 1
        run = ExecutionRun(request, log, settings, number=self.made, timeout=timeout, idempotency=idempotency)
        run.queued(len(self._queue) + (self.current is not None))
        return run

    @property
    def running(self) -> Iterator[ExecutionRun]:
        """The cell that runs and those beside it."""
        if self.current is not None:
            yield self.current
        yield from self._beside.values()

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return self.current is not None or bool(self._beside) or not self._queue.empty

    def unfinished(self) -> Iterator[ExecutionRun]:
        """What runs and what waits."""
        yield from self.running
        yield from self._queue

    def known(self) -> Iterator[ExecutionRun]:
        """What runs, what waits and what has just ended."""
        yield from self.unfinished()
        yield from self._recent.values()

    def ending(self) -> list[asyncio.Future[None]]:
        """The `done` of those whose end the kernel has told and the record does not hold yet."""
        return [
            run.done
            for run in self.known()
            if run.machine.replied and run.machine.idle and not run.done.done()
        ]

    def find(self, execution: str) -> ExecutionRun | None:
        """The execution of this id, while it waits or runs."""
        return next((run for run in self.unfinished() if run.id == execution), None)

    def answer(self, execution: str, value: str) -> None:
        """Answer the input_request of a running execution. Raises NotFound or InvalidInput."""
        run = self.find(execution)
        if run is None:
            raise NotFound("No queued or running execution has this id")
        if not run.running:
            raise InvalidInput("This execution has not started yet")
        run.answer(value)

    def of_message(self, parent: str) -> tuple[ExecutionRun | None, bool]:
        """The execution that a kernel's message belongs to, and whether its end is recorded already."""
        if self.current is not None and self.current.msg_id == parent:
            return self.current, self.current.told
        if (run := self._beside.get(parent)) is not None:
            return run, run.told
        return self._recent.get(parent), True

    def begin_beside(self, run: ExecutionRun) -> None:
        """A subshell runs it."""
        self._beside[run.msg_id] = run

    def end_beside(self, run: ExecutionRun) -> None:
        """It has ended."""
        self._beside.pop(run.msg_id, None)

    def remember(self, run: ExecutionRun) -> None:
        """It has ended; keep it for a while."""
        self._recent[run.msg_id] = run
        if len(self._recent) > RECENT_EXECUTIONS:
            self._recent.popitem(last=False)

    def lose(self, cause: str) -> None:
        """Their kernel is taken away: all that run end as interrupted."""
        for run in self.running:
            run.lose(Status.INTERRUPTED, cause)
