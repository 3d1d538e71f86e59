"""A session: one principal's named, recorded conversation with one kernel at a time.

It owns the kernel, the FIFO of executions and the one task that works it off. It knows no HTTP and no other
session: ``manager`` makes, finds and ends sessions, ``executions`` runs a single cell, ``session_state``
keeps the row, ``channels.door`` serves Jupyter clients. A kernel that is gone is replaced by a fresh one from
the pool; the loss of its variables is an event of the record, and what waited for them is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from gateway.channels.door import Door
from gateway.errors import ShuttingDown
from gateway.executions import ExecutionRun
from gateway.models import ExecuteRequest, SessionLimits, session_model
from gateway.packages.cells import run_with_packages
from gateway.packages.session import SessionPackages
from gateway.queue import ExecutionQueue, Restart
from gateway.record.events import EventLog, MemoryStore
from gateway.record.journal import Journal
from gateway.record.rows import SessionRow
from gateway.runs import SessionRuns
from gateway.session_kernel import SessionKernel
from gateway.session_state import SessionRecord, SessionSettings, SessionState
from gateway.session_tasks import SessionTasks
from gateway.widgets import WidgetMessages
from gateway.workspace import WorkspaceStore
from kernels.errors import CellgateError
from kernels.execution import Status
from kernels.kernel import Kernel, KernelProfile
from kernels.messages import Message
from kernels.pool import KernelPool

logger = logging.getLogger(__name__)

END_PATIENCE, MOST_REVIVALS, MOST_COMMITS = 2.0, 5, 64


class Session:
    """A live session. Made by ``manager.SessionManager``, over when `end` returns."""

    def __init__(
        self,
        row: SessionRow,
        limits: SessionLimits,
        profile: KernelProfile,
        log: EventLog,
        store: Journal | MemoryStore,
        pool: KernelPool,
        workspaces: WorkspaceStore,
        settings: SessionSettings,
    ) -> None:
        self.log = log
        self.record = SessionRecord(row, limits, log, store, settings.gateway_version)
        self.started = time.monotonic()
        self.door = Door(self, settings.channels)
        heard, packages = WidgetMessages(log, self._receive), SessionPackages(row.id, settings.installer)
        self.slot = SessionKernel(profile, pool, workspaces, store, self.door, packages, heard, self._exited)
        self._settings = settings
        self._queue, self._tasks = ExecutionQueue(), SessionTasks()
        self._runs = SessionRuns(self._queue)
        self._revivals, self._replacing = 0, False
        self._quiet = asyncio.Event()
        self._end: asyncio.Task[None] | None = None

    @property
    def row(self) -> SessionRow:
        """The session's row in the record."""
        return self.record.row

    @property
    def limits(self) -> SessionLimits:
        """Its bounds."""
        return self.record.limits

    @property
    def state(self) -> SessionState:
        """What it does."""
        return self.record.state

    @property
    def kernel(self) -> Kernel | None:
        """The kernel of the moment."""
        return self.slot.current

    @property
    def ending(self) -> bool:
        """Whether the end has begun."""
        return self._end is not None

    @property
    def idle_since(self) -> float | None:
        """Since when nobody uses it, by the monotonic clock; None while somebody does."""
        used = self._runs.busy or self.slot.packages.busy or self.door.connections
        return None if used else self.record.idle_since

    def to_wire(self) -> dict[str, Any]:
        """The session model of the wire contract."""
        row, kernel_id = self.record.present(), self.kernel.id if self.kernel else None
        return session_model(row, kernel_id=kernel_id, queue_length=len(self._queue))

    async def quiet(self) -> None:
        """Return when nothing runs and nothing waits."""
        while self._runs.busy:
            self._quiet.clear()
            await self._quiet.wait()

    async def recorded(self) -> None:
        """Return when each end that the kernel has told is in the record, or could not be written in time."""
        if ending := self._runs.ending():
            await asyncio.wait(ending, timeout=self._settings.execution.settle)

    def find(self, execution: str) -> ExecutionRun | None:
        """The execution of this id, while it waits or runs."""
        return self._runs.find(execution)

    def waiting_messages(self) -> list[ExecutionRun]:
        """Cells of Jupyter clients that wait."""
        return [run for run in self._queue if run.request.message is not None]

    async def open(
        self, executions_made: int, adopted: Kernel | None = None, running: ExecutionRun | None = None
    ) -> None:
        """Claim the first kernel, or go on with an adopted one and its cell. Raises the pool's errors."""
        kernel = await (self.slot.claim() if adopted is None else self.slot.adopt(adopted))
        self.record.attached(kernel)
        self._runs.made = executions_made
        cause = "created" if self.log.last_seq == 0 else "resumed" if adopted is None else "adopted"
        self.record.change(SessionState.IDLE, cause, kernel)
        if running is not None:
            self._queue.put(running)
        self._tasks.work(self._work(), f"session {self.row.key}")
        self.touch()

    def _receive(self, message: Message) -> None:
        """Everything the kernel says comes by here, in order: to the clients, who wait, and to the record."""
        self.door.receive(message)
        run, ended = self._runs.of_message(message.parent.msg_id)
        if run is not None:
            run.receive(message)
            if ended:
                # A thread of an ended cell still prints: Jupyter shows it under that cell, so do we.
                self.record.save_execution(run)

    def _exited(self, kernel: Kernel) -> None:
        """A kernel that dies between cells is a death too; one that dies in a cell is the run's affair."""
        if kernel is self.kernel and self._runs.current is None and self._end is None:
            self.record.set(SessionState.DEAD, kernel.exited.result().cause, kernel)
            if self.door.connections:
                self.revive()

    def revive(self) -> None:
        """See to a fresh kernel if there is none, as Jupyter does; not for ever without a cell between."""
        coming = self._replacing or self._runs.current is not None or self._queue.restarting or self.ending
        if not self.slot.alive and not coming and self._revivals < MOST_REVIVALS:
            self._revivals += 1
            done = self._queue.put_restart(self.record.cause or "kernel_exit")
            done.add_done_callback(lambda future: future.exception())

    async def _replace_kernel(self, cause: str) -> None:
        """End the kernel, if any, and go on with a fresh one and the same files."""
        self._replacing = True
        self.door.kernel_gone(asked=cause == "kernel_restarted")
        try:
            await self.slot.drop()
            self.record.set(SessionState.DEAD, cause, None)
            kernel = await self.slot.claim()
        except CellgateError:
            self.door.tell("dead")
            raise
        finally:
            self._replacing = False
        self.record.attached(kernel)
        self.record.set(SessionState.IDLE, cause, kernel)
        self.door.kernel_ready(kernel)

    def submit(self, request: ExecuteRequest, *, idempotency: tuple[str, str] | None = None) -> ExecutionRun:
        """Queue a cell. Raises QueueFull or ShuttingDown; then nothing was changed."""
        timeout = request.timeout or self.limits.cell_timeout
        return self._begin_or_queue(self._make_run(request, timeout, idempotency, self._settings.max_queue))

    def submit_message(self, request: ExecuteRequest, *, beside: bool) -> ExecutionRun:
        """Queue a Jupyter client's cell, or run it at once in a subshell. Raises as `submit` does."""
        channels = self._settings.channels
        run = self._make_run(request, channels.cell_timeout, None, channels.max_queue)
        if not beside or self.kernel is None or not self.kernel.alive:
            return self._begin_or_queue(run)
        self._runs.begin_beside(run)
        self._tasks.begin(self._run_beside(run, self.kernel), f"subshell {run.id}")
        return run

    def _begin_or_queue(self, run: ExecutionRun) -> ExecutionRun:
        """Queue it; where nothing is before it, send it now, a turn of the loop before the worker would."""
        prepared = run.request.env or self.slot.packages.installer
        free = self.slot.alive and not self._replacing and not self._runs.busy
        if self.kernel is not None and free and not prepared:
            self._runs.current, self.record.state = run, SessionState.BUSY
            run.send(self.kernel)
            self._queue.wake()
        else:
            self._queue.put(run)
        return run

    def _check_open(self) -> None:
        if self._end is not None:
            raise ShuttingDown("The session is ending")

    def touch(self) -> None:
        """Let idleness begin anew."""
        self.record.idle_since = time.monotonic()

    def _make_run(
        self, request: ExecuteRequest, timeout: float | None, idempotency: tuple[str, str] | None, room: int
    ) -> ExecutionRun:
        self._check_open()
        self._queue.check_room(room)
        self.record.check_writable()
        run = self._runs.make(request, self.log, self._settings.execution, timeout, idempotency)
        self.record.save_execution(run)
        self.record.touch(run.created_at)
        return run

    async def known(self, key: str, request_hash: str) -> ExecutionRun | tuple[str, int] | None:
        """The execution that this idempotency key stands for; see `SessionRecord.known`."""
        return await self.record.known(key, request_hash, self._runs.known())

    def stop(self, execution: str, cause: str = "cancelled") -> None:
        """Take an execution out of the queue, or interrupt it; nothing when it has ended."""
        run = self.find(execution)
        if run is not None and run in self._runs.running:
            run.interrupt("interrupt_requested" if cause == "cancelled" else cause)
        elif run is not None:
            self._queue.remove(run, cause)
            self._tasks.begin(self._finish(run, replaced=False), f"finish {run.id}")

    def interrupt(self) -> None:
        """Interrupt the running cell, if there is one."""
        self.record.touch()
        if self._runs.current is not None:
            self._runs.current.interrupt()

    def interrupt_asked(self) -> None:
        """A client's own interrupt_request is on its way to the kernel."""
        if self._runs.current is not None:
            self._runs.current.interrupt_asked()

    def answer(self, execution: str, value: str) -> None:
        """Answer the input_request of a running execution. Raises NotFound or InvalidInput."""
        self._runs.answer(execution, value)

    def restart(self) -> asyncio.Future[None]:
        """Replace the kernel: the running cell ends as interrupted, those that wait are cancelled. The future
        is done when there is a fresh one with the session's files, or has the pool's errors.
        """
        self._check_open()
        self._queue.cancel_all("kernel_restarted")
        self._runs.lose("kernel_restarted")
        return asyncio.shield(self._queue.put_restart("kernel_restarted"))

    async def _work(self) -> None:
        while self._end is None:
            item = self._runs.current or self._queue.take()
            if isinstance(item, Restart):
                await self._do_restart(item)
            elif item is None:
                self._quiet.set()
                await self._queue.wait()
            elif item.machine.finished and item is not self._runs.current:
                await self._finish(item, replaced=False)
            else:
                await self._execute(item)

    async def _do_restart(self, wish: Restart) -> None:
        try:
            await self._replace_kernel(wish.cause)
        except CellgateError as error:
            wish.done.set_exception(error)
        else:
            wish.done.set_result(None)
        self.record.touch()

    async def _execute(self, run: ExecutionRun) -> None:
        begun, self._runs.current = self._runs.current is run, run
        self._revivals, replaced = 0, False
        try:
            if not begun:
                self.record.check_writable()
                if not self.slot.alive:
                    await self._replace_kernel(self.record.cause or "kernel_exit")
                    replaced = True
            assert self.kernel is not None
            self.record.state = SessionState.BUSY
            await run_with_packages(run, self.kernel, self.slot)
        except CellgateError as error:
            run.message = error.message
            run.lose(Status.DIED, error.reason)
        self.record.note_files(run, await self.slot.changed_files())
        if self._end is None:
            replaced |= await self._after_loss(run)
        await self._finish(run, replaced=replaced)
        self._runs.current = None
        if self.state is SessionState.BUSY:
            self.record.state, self.record.cause = SessionState.IDLE, None
        self.touch()
        if self.kernel is not None and self.kernel.exited.done():
            self._exited(self.kernel)
        elif self.kernel is None and self.door.connections:
            self.revive()

    async def _run_beside(self, run: ExecutionRun, kernel: Kernel) -> None:
        """Run a cell in a subshell while others run; it shares the kernel and its end with them."""
        await run.run(kernel)
        if run.gave_up and kernel is self.kernel:
            self.restart().add_done_callback(lambda future: future.exception())
        await self._finish(run, replaced=False)
        self._runs.end_beside(run)
        self.record.touch()
        self._quiet.set()

    async def _after_loss(self, run: ExecutionRun) -> bool:
        """Replace a kernel that was given up at a deadline; a dead one waits for the next execution.

        Returns whether the session has a fresh kernel now.
        """
        if self.kernel is None:
            return False
        if not run.gave_up:
            if self.kernel.exited.done():
                self._queue.cancel_all("kernel_died")
                self.record.set(SessionState.DEAD, self.kernel.exited.result().cause, self.kernel)
            return False
        self._queue.cancel_all("kernel_replaced")
        try:
            async with asyncio.timeout(self._settings.execution.interrupt_grace):
                await self._replace_kernel("cell_timeout")
        except (TimeoutError, CellgateError) as error:
            logger.warning("Session %s has no kernel for now: %s", self.row.key, error)
            return False
        return True

    async def _finish(self, run: ExecutionRun, *, replaced: bool) -> None:
        """Record the end; followers and `run.done` learn of it when it is durable.

        A Jupyter client has been told by then, as the protocol has it, so its next cell need not wait.
        """
        ends_it = self.state is SessionState.BUSY and run is self._runs.current
        event = run.finish(SessionState.IDLE if ends_it else self.state, replaced=replaced)
        self.record.finished(event)
        self.record.save_execution(run, status=event["status"])
        self._runs.remember(run)
        self.door.finished(run)
        if run.request.message is None or len(self._tasks) > MOST_COMMITS:
            await self.record.commit(run, event["seq"])
        else:
            self._tasks.begin(self.record.commit(run, event["seq"]), f"commit {run.id}")

    async def end(self, cause: str, *, keep_files: bool = True, keep_kernel: bool = False) -> None:
        """End the session and its kernel, unless that is kept; the record stays. All calls share one end."""
        if self._end is None:
            work = self._let_go() if keep_kernel else self._do_end(cause, keep_files)
            self._end = asyncio.create_task(work, name=f"end {self.row.key}")
        await asyncio.shield(self._end)

    async def _let_go(self) -> None:
        """Leave kernel and record as they are, to the gateway that adopts the kernel."""
        await self.slot.packages.close()
        await self._tasks.cancel()
        self._queue.refuse_restarts(ShuttingDown("The gateway is shutting down"))
        for run in self._runs.unfinished():
            run.fail(ShuttingDown("The gateway is shutting down; the cell's end will be in the record"))
        self._quiet.set()
        await self.slot.let_go()
        await self.door.close()
        self.log.close()

    async def _do_end(self, cause: str, keep_files: bool) -> None:
        self._queue.cancel_all(cause)
        self._queue.wake()
        self._runs.lose(cause)
        await self.slot.packages.close()
        await self._tasks.stop_worker(END_PATIENCE)
        self._queue.refuse_restarts(ShuttingDown("The session has ended"))
        if self._runs.current is not None:
            await self._finish(self._runs.current, replaced=False)
            self._runs.current = None
        while isinstance(run := self._queue.take(), ExecutionRun):
            await self._finish(run, replaced=False)
        self._quiet.set()
        await self.slot.end(keep_files=keep_files)
        await self._tasks.finished()
        self.record.change(SessionState.ENDED, cause, None)
        await self.door.close()
        try:
            await self.log.commit()
        finally:
            self.log.close()
