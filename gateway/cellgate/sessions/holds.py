"""The holds on a session's kernel: branches and checkpoints being made, an exploration, questions.

While there is a hold, no cell begins, and new cells wait in the queue. A restart ends holds as it ends cells.
The purpose of a hold is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from cellgate.sessions.checkpoints import Checkpoint, RolledBack
from cellgate.sessions.machine import Occupant, Step
from cellgate.sessions.state import SessionCore, SessionState
from cellgate_kernels.base.errors import KernelBusy, KernelDied
from cellgate_kernels.base.tasks import outcome
from cellgate_kernels.kernel.kernel import Kernel

T = TypeVar("T")

QUESTION_PATIENCE = 10.0
"""Seconds that a question waits for other questions, or for files to be put into place."""


class SessionHolds:
    """All holds of one session: an exploration, each question, and the others."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._questions: set[asyncio.Task[Any]] = set()
        # Stops the exploration, if there is one.
        self._stop: Callable[[str], None] | None = None

    @asynccontextmanager
    async def held(self, *, explored: bool = False) -> AsyncGenerator[None, None]:
        """Let no cell begin, and leave the kernel in place, until the context ends; new cells wait.

        `explored`: the caller explores the session, so its cells wait already. Raises KernelBusy if a cell
        runs or waits or the session is being explored, KernelDied, StorageError, PrincipalQuotaExceeded, and
        ShuttingDown.
        """
        self._core.check_recordable()
        if not explored:
            self._check_at_rest()
        with self.counted():
            self._core.record.touch()
            async with self._core.slot.moving:
                yield

    @contextmanager
    def explored(self, stop: Callable[[str], None]) -> Iterator[None]:
        """Let no cell begin until the context ends, while the caller branches the session; new cells wait.

        `stop` is called with a cause when the session is interrupted, restarted or ended: finish soon then.
        Raises as `held`.
        """
        self._core.check_recordable()
        self._check_at_rest()
        record = self._core.record
        with self.counted():
            self._stop = stop
            self._core.machine.came(occupant=Occupant.EXPLORED)
            record.touch()
            record.state = SessionState.BUSY
            try:
                yield
            finally:
                self._stop = None
                self._core.machine.went(occupant=Occupant.EXPLORED)
                if record.state is SessionState.BUSY:
                    record.state = SessionState.IDLE
                record.touch()

    def _check_at_rest(self, *, asks: bool = False) -> None:
        """Check that the kernel can be branched or answer a question. Raises KernelBusy, KernelDied."""
        step = self._core.machine.hold_wanted(
            alive=self._core.slot.alive,
            packages=bool(self._core.slot.packages.busy),
            questions=len(self._questions) if asks else 0,
        )
        if step is Step.REFUSE_EXPLORED:
            raise KernelBusy("The session is being explored; wait for the end of that, or interrupt it")
        if step is Step.REFUSE_BUSY:
            raise KernelBusy("The session is in use; try again when no cell runs or waits")
        if step is Step.REFUSE_MANY:
            raise KernelBusy("Too many questions wait for the session's kernel; ask again later")
        if step is not Step.GO:
            raise KernelDied("The session's kernel has ended, with all variables; run a cell to get another")

    async def ask(self, question: Callable[[Kernel], Awaitable[T]]) -> T:
        """Return the idle kernel's answer to a question of ``cellgate_kernels.kernel.questions``.

        New cells wait meanwhile. Nothing is recorded. Raises KernelBusy at once if a cell runs or waits, and
        as `question`; KernelDied, and ShuttingDown.
        """
        self._core.check_open()
        self._check_at_rest(asks=True)
        self._core.machine.came(occupant=Occupant.HELD)
        self._core.record.touch()
        task = self._core.tasks.share(self._ask(question), "question")
        self._questions.add(task)
        task.add_done_callback(self._asked)
        return await outcome(task, lambda: KernelDied("The session's kernel was given up while it was asked"))

    async def _ask(self, question: Callable[[Kernel], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(QUESTION_PATIENCE):
                await self._core.slot.moving.acquire()
        except TimeoutError:
            raise KernelBusy("The session is in use; ask again later") from None
        try:
            if self._core.kernel is None or not self._core.kernel.alive:
                raise KernelDied("The session's kernel has ended; run a cell to get another")
            return await question(self._core.kernel)
        finally:
            self._core.slot.moving.release()

    def _asked(self, task: asyncio.Task[Any]) -> None:
        self._questions.discard(task)
        self._core.machine.went(occupant=Occupant.HELD)
        self._core.record.begin_idleness()
        self._core.queue.wake()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Let no cell begin until the context ends, whatever else occupies the session."""
        self._core.machine.came(occupant=Occupant.HELD)
        try:
            yield
        finally:
            self._core.machine.went(occupant=Occupant.HELD)
            self._core.queue.wake()

    def stop_exploring(self, cause: str) -> None:
        """End the exploration, if there is one."""
        if self._stop is not None:
            self._stop(cause)

    def give_up(self, cause: str) -> None:
        """End the exploration and all questions, because the kernel is given up."""
        self.stop_exploring(cause)
        for task in self._questions:
            task.cancel()

    def restart(self, cause: str, point: Checkpoint | None = None) -> asyncio.Future[RolledBack | None]:
        """Request another kernel, made of `point` if given; all work of the present one ends."""
        self.give_up(cause)
        step = self._core.machine.restart_wanted()
        self._core.queue.cancel_all(cause)
        self._core.runs.abandon(cause)
        return self._core.queue.put_restart(cause, point, insists=step is Step.INSIST)
