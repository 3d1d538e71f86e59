"""The end of a session, step by step: each is taken even if others fail. A session must always end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cellgate.errors import NotRecorded, ShuttingDown
from cellgate.sessions.holds import SessionHolds
from cellgate.sessions.machine import Step
from cellgate.sessions.state import SessionCore, SessionState
from cellgate_kernels.base.errors import CellgateError, GatewayFault

logger = logging.getLogger(__name__)

END = "end"


class SessionEnding:
    """The end of one session. `task` takes the steps, once the end has begun, for this `cause`.

    `over`: done when the session has ended, whoever ended it. `stop_worker` gives the worker a moment.
    """

    def __init__(
        self, core: SessionCore, holds: SessionHolds, stop_worker: Callable[[], Awaitable[None]]
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.cause: str | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._core = core
        self._holds = holds
        self._stop_worker = stop_worker
        self._unfit: CellgateError | None = None

    def begin(self, cause: str, *, keep_files: bool, keep_kernel: bool) -> asyncio.Task[None]:
        """Begin the end: from this moment on the session is `ending`."""
        step = self._core.machine.ended(keep_kernel=keep_kernel)
        if self.task is None:
            self.cause = cause
            work = self._detach() if step is Step.DETACH else self._do_end(cause, keep_files=keep_files)
            self.task = self._core.tasks.share(work, END)
            self.task.add_done_callback(lambda _: self._is_over())
            self._holds.give_up(cause)
        return self.task

    def _is_over(self) -> None:
        # However the session ended, the key is free for another one, which continues this record.
        self._core.record.log.close()
        self.over.set_result(None)

    async def _detach(self) -> None:
        """Leave kernel and record as they are for the gateway that will adopt the kernel."""
        await self._step(self._core.slot.packages.close())
        await self._step(self._core.processes.close("gateway_shutdown"))
        await self._step(self._core.ports.close())
        await self._step(self._core.undo.close(self._core.slot.workspace))
        await self._step(self._core.tasks.cancel())
        self._core.report("A session is left to the next gateway")
        self._refuse_all(ShuttingDown("The gateway is shutting down; the cell's end will be in the record"))
        await self._step(self._core.slot.detach())
        await self._step(self._core.door.close())
        await self._step(self._core.record.log.chained())
        self._close_log()

    async def _do_end(self, cause: str, *, keep_files: bool) -> None:
        """Take each step even if an earlier one failed, because a session must always end."""
        kernel = self._core.ids()["kernel"]
        self._core.machine.cancelled()
        self._core.queue.cancel_all(cause)
        self._core.queue.wake()
        self._core.runs.abandon(cause)
        await self._step(self._core.slot.packages.close())
        await self._step(self._stop_worker())
        if self._core.runs.current is not None:
            await self._step(self._core.finish(self._core.runs.current))
        await self._step(self._drain())
        self._core.runs.quiet.set()
        await self._step(self._core.processes.close(cause))
        await self._step(self._core.ports.close())
        await self._step(self._core.undo.close(self._core.slot.workspace if keep_files else None))
        await self._step(self._core.slot.end(keep_files=keep_files))
        await self._step(self._finish_tasks())
        await self._step(self._record_end(cause))
        self._core.observer.session_ended(cause)
        self._core.report("A session has ended", cause=cause, kernel=kernel)
        self._refuse_all(ShuttingDown("The session has ended"))
        await self._step(self._core.door.close())
        self._close_log()

    async def _drain(self) -> None:
        """Refuse the restarts that are queued, and record the ends of cells that did not run."""
        while (step := self._core.machine.drained()) is not Step.NOTHING:
            if step is Step.RESTART:
                self._core.queue.pop_restart().refuse(ShuttingDown("The session has ended"))
            else:
                await self._step(self._core.finish_cancelled(self._core.queue.pop_cancelled()))

    async def _step(self, work: Awaitable[object]) -> None:
        """Take one step of the end. A failure is logged; the first one is raised after all steps."""
        try:
            await work
        except CellgateError as error:
            logger.error("A session could not end as it should: %s", error.message, extra=self._core.ids())
            self._unfit = self._unfit or error
        except Exception as error:  # whatever the error, the remaining steps must be taken
            logger.error("A session could not end as it should", exc_info=error, extra=self._core.ids())
            self._unfit = self._unfit or GatewayFault()

    async def _finish_tasks(self) -> None:
        """Let pending ends reach the record; tasks that do not finish in time are cancelled."""
        try:
            async with asyncio.timeout(self._core.settings.execution.settle):
                await self._core.tasks.finished()
        except TimeoutError:
            await self._core.tasks.cancel()

    async def _record_end(self, cause: str) -> None:
        self._core.record.change(SessionState.ENDED, cause, None)
        try:
            await self._core.record.log.commit()
        except NotRecorded as error:
            # Everybody concerned has been told already; the session ends anyway.
            logger.warning("A session's end is not recorded: %s", error.message, extra=self._core.ids())

    def _refuse_all(self, error: CellgateError) -> None:
        """Fail all waiters, even those whose request could not be recorded."""
        self._core.queue.refuse_restarts(error)
        for run in self._core.runs.known():
            run.end.fail(error)
        self._core.machine.closed()
        self._core.runs.current = None
        self._core.runs.quiet.set()

    def _close_log(self) -> None:
        self._core.record.log.close()
        if self._unfit is not None:
            raise self._unfit
