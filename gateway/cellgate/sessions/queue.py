"""The current executions of a session: queued, running, running in subshells, and recently ended.

Plain data structures; ``worker`` works through the queue, and ``machine`` decides what runs next and keeps
the counts. Executions wait in order of arrival, and restarts precede them all. A cancelled execution is set
aside until its end is recorded, so every execution leaves a trace. Cells in Jupyter's subshells run beside
the current one. Recently ended executions are kept because their threads may still print.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from cellgate.errors import NotFound
from cellgate.execution.cell_record import Traffic
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun, RunContext
from cellgate.sessions.checkpoints import Checkpoint, RolledBack
from cellgate.sessions.machine import Occupant, SessionMachine
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.protocol.execution import Status

RECENT_EXECUTIONS = 32


@dataclass(frozen=True, slots=True)
class Restart:
    """A request for another kernel. `done` completes once there is one, or fails with the reason.

    `point`: the checkpoint to make it from, instead of a fresh one. `insists`: a cell was given up for it, so
    the present kernel can't be used any more.
    """

    cause: str
    done: asyncio.Future[RolledBack | None]
    point: Checkpoint | None = None
    insists: bool = False

    def grant(self, found: RolledBack | None = None) -> None:
        """Report that there is another kernel, and the result of a rollback."""
        if not self.done.done():
            self.done.set_result(found)

    def refuse(self, error: Exception) -> None:
        """Report the reason why there is no other kernel."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieved: nobody may be waiting


class ExecutionQueue:
    """A FIFO of executions; restarts and cancelled executions are apart."""

    def __init__(self) -> None:
        self._runs: deque[ExecutionRun] = deque()
        self._restarts: deque[Restart] = deque()
        self._cancelled: deque[ExecutionRun] = deque()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[ExecutionRun]:
        return iter(self._runs)

    @property
    def first(self) -> ExecutionRun | None:
        """The execution to run next."""
        return self._runs[0] if self._runs else None

    def put(self, run: ExecutionRun) -> None:
        """Add an execution at the end."""
        self._runs.append(run)
        self._wake.set()

    def put_restart(
        self, cause: str, point: Checkpoint | None = None, *, insists: bool = False
    ) -> asyncio.Future[RolledBack | None]:
        """Request a restart, or a rollback to a `point`; the future completes when it is done."""
        done: asyncio.Future[RolledBack | None] = asyncio.get_running_loop().create_future()
        self._restarts.append(Restart(cause, done, point, insists))
        self._wake.set()
        return done

    def remove(self, run: ExecutionRun, cause: str, status: Status = Status.CANCELLED) -> None:
        """Remove one execution, which the caller must finish immediately."""
        self._runs.remove(run)
        run.abandon(status, cause)

    def cancel_all(self, cause: str) -> None:
        """Cancel all queued executions."""
        while self._runs:
            self.end_first(Status.CANCELLED, cause)

    def end_first(self, status: Status, cause: str) -> None:
        """End the first queued execution, which was not run."""
        self._end(self._runs.popleft(), status, cause)

    def _end(self, run: ExecutionRun, status: Status, cause: str) -> None:
        run.abandon(status, cause)
        self._cancelled.append(run)
        self._wake.set()

    def refuse_restarts(self, error: Exception) -> None:
        """Answer all queued restarts with an error."""
        while self._restarts:
            self._restarts.popleft().refuse(error)

    def pop_first(self) -> ExecutionRun:
        """Take the first queued execution."""
        return self._runs.popleft()

    def pop_restart(self) -> Restart:
        """Take the first queued restart."""
        return self._restarts.popleft()

    def pop_cancelled(self) -> ExecutionRun:
        """Take the first execution that ended in the queue."""
        return self._cancelled.popleft()

    async def wait(self) -> None:
        """Return at the next change, or when `wake` is called. Call it only after finding the queue empty."""
        self._wake.clear()
        await self._wake.wait()

    def wake(self) -> None:
        """Wake the worker that waits in `wait`."""
        self._wake.set()


@dataclass(frozen=True, slots=True)
class AdoptedRuns:
    """The cells without a recorded end that an adopted kernel was sent, each in the order of its kind.

    `ended`: all that the kernel has completed, but for the last if none runs. `current`: the first that runs,
    or that last one. `beside`: others that run, in subshells.
    """

    ended: tuple[ExecutionRun, ...]
    current: ExecutionRun
    beside: tuple[ExecutionRun, ...]

    def __iter__(self) -> Iterator[ExecutionRun]:
        yield from (*self.ended, self.current, *self.beside)


class SessionRuns:
    """A session's executions. `current`: the running cell, set by the session; `made`: the count so far."""

    def __init__(self, queue: ExecutionQueue, context: RunContext, machine: SessionMachine) -> None:
        self.current: ExecutionRun | None = None
        self.made = 0
        self._queue = queue
        self._context = context
        self._machine = machine
        # By the gateway's ids: a client may send a msg_id again before the end of its cell is recorded.
        self._beside: dict[str, ExecutionRun] = {}
        self._recent: OrderedDict[str, ExecutionRun] = OrderedDict()
        self.quiet = asyncio.Event()
        """Set when no cell is running or queued any more."""

    @property
    def traffic(self) -> Traffic:
        """The bytes that the session's proxy has carried so far."""
        return self._context.traffic

    async def until_quiet(self) -> None:
        """Return when no cell is running or queued."""
        while self._machine.busy:
            self.quiet.clear()
            await self.quiet.wait()

    def take_number(self) -> int:
        """Return the number of an execution that is recorded here but ran in a branch."""
        self.made += 1
        return self.made

    def make(
        self, request: ExecuteRequest, timeout: float | None, idempotency: tuple[str, str] | None
    ) -> ExecutionRun:
        """Return a new execution, recorded as queued after all others."""
        self.made += 1
        run = ExecutionRun(request, self._context, number=self.made, timeout=timeout, idempotency=idempotency)
        run.record.queued(request, timeout, len(self._queue) + (self.current is not None))
        return run

    @property
    def running(self) -> Iterator[ExecutionRun]:
        """The current cell and those in subshells."""
        if self.current is not None:
            yield self.current
        yield from self._beside.values()

    @property
    def waiting(self) -> int:
        """The number of queued executions."""
        return len(self._queue)

    def unfinished(self) -> Iterator[ExecutionRun]:
        """Running and queued executions."""
        yield from self.running
        yield from self._queue

    def known(self) -> Iterator[ExecutionRun]:
        """Running, queued and recently ended executions."""
        yield from self.unfinished()
        yield from self._recent.values()

    def ending(self) -> list[asyncio.Future[None]]:
        """Return the `done` futures of executions whose reported end is not recorded yet."""
        return [
            run.end.done
            for run in self.known()
            if run.machine.replied and run.machine.idle and not run.end.done.done()
        ]

    def find(self, execution: str) -> ExecutionRun | None:
        """Return the queued or running execution with this id."""
        return next((run for run in self.unfinished() if run.id == execution), None)

    def answer(self, execution: str, value: str) -> None:
        """Answer the input_request of a running execution. Raises NotFound or InvalidInput."""
        run = self.find(execution)
        if run is None:
            raise NotFound("No queued or running execution has this id")
        if not run.running:
            raise InvalidInput("This execution has not started yet")
        run.answer(value)

    def begin_beside(self, run: ExecutionRun) -> None:
        """Add an execution that a subshell runs."""
        self._beside[run.id] = run

    def end_beside(self, run: ExecutionRun) -> None:
        """Remove an execution that has ended in its subshell."""
        if self._beside.pop(run.id, None) is not None:
            self._machine.went(occupant=Occupant.BESIDE)

    def remember(self, run: ExecutionRun) -> None:
        """Keep an ended execution for a while."""
        self._recent[run.msg_id] = run
        if len(self._recent) > RECENT_EXECUTIONS:
            _, oldest = self._recent.popitem(last=False)
            oldest.unfollow()

    def abandon(self, cause: str) -> None:
        """End all running executions as interrupted, because their kernel is taken away."""
        for run in self.running:
            run.abandon(Status.INTERRUPTED, cause)
