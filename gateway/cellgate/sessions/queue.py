"""What waits in a session: executions in order of arrival, and restarts before them all.

A plain data structure without tasks or awaits; ``session`` works it off. An execution that is taken out
waits in `cancelled` for its recorded end, so nothing leaves the queue without a trace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from cellgate.execution.run import ExecutionRun
from cellgate.wire.errors import QueueFull
from cellgate_kernels.execution import Status


@dataclass(frozen=True, slots=True)
class Restart:
    """A wish for a fresh kernel. `done` completes when there is one, or with why there is none."""

    cause: str
    done: asyncio.Future[None]

    def grant(self) -> None:
        """There is a fresh kernel."""
        if not self.done.done():
            self.done.set_result(None)

    def refuse(self, error: Exception) -> None:
        """There is none."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieved: nobody may be waiting


class ExecutionQueue:
    """A FIFO, bounded by `check_room`: what waits counts, not what runs."""

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
    def empty(self) -> bool:
        """Whether there is nothing to do, cancelled executions and restarts included."""
        return not (self._runs or self._restarts or self._cancelled)

    @property
    def restarting(self) -> bool:
        """Whether a restart waits."""
        return bool(self._restarts)

    def check_room(self, bound: int) -> None:
        """Raises QueueFull when `bound` executions wait."""
        if len(self._runs) >= bound:
            raise QueueFull(
                f"{len(self._runs)} executions wait in this session; send the next when one has finished",
                retry_after=1.0,
            )

    def put(self, run: ExecutionRun) -> None:
        """Add an execution at the end."""
        self._runs.append(run)
        self._wake.set()

    def put_restart(self, cause: str) -> asyncio.Future[None]:
        """Ask for a restart; the future completes when it is done."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._restarts.append(Restart(cause, done))
        self._wake.set()
        return done

    def remove(self, run: ExecutionRun, cause: str) -> None:
        """Take one execution out, to be ended by the caller at once."""
        self._runs.remove(run)
        run.lose(Status.CANCELLED, cause)

    def cancel_all(self, cause: str) -> None:
        """Take all executions out."""
        while self._runs:
            self._set_aside(self._runs.popleft(), cause)

    def _set_aside(self, run: ExecutionRun, cause: str) -> None:
        run.lose(Status.CANCELLED, cause)
        self._cancelled.append(run)
        self._wake.set()

    def refuse_restarts(self, error: Exception) -> None:
        """Answer all restarts that wait with an error."""
        while self._restarts:
            self._restarts.popleft().refuse(error)

    def take(self) -> ExecutionRun | Restart | None:
        """The next thing to do: what was cancelled (it is over already), then restarts, then executions."""
        if self._cancelled:
            return self._cancelled.popleft()
        if self._restarts:
            return self._restarts.popleft()
        return self._runs.popleft() if self._runs else None

    async def wait(self) -> None:
        """Return when there may be something to do, or when `wake` was called."""
        if self.empty:
            self._wake.clear()
            await self._wake.wait()

    def wake(self) -> None:
        """End a `wait`."""
        self._wake.set()
