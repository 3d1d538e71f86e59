"""A session: one principal's named, recorded conversation with one kernel at a time.

It owns the kernel, the FIFO of executions and the one task that works it off. It knows no HTTP and no other
session: ``manager`` makes, finds and ends sessions, ``executions`` runs a single cell, ``record.events``
keeps what happened. A kernel that died, was killed or restarted is replaced by a fresh one from the pool;
the loss of its variables is an event of the record, and what waited for them in the queue is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gateway.errors import Conflict, NotFound, ShuttingDown
from gateway.executions import ExecutionRun, ExecutionSettings
from gateway.models import ExecuteRequest, SessionLimits, now, session_model
from gateway.queue import ExecutionQueue
from gateway.record.errors import StorageError
from gateway.record.events import EventLog, MemoryStore
from gateway.record.journal import Journal
from gateway.record.rows import SessionRow
from gateway.session_kernel import SessionKernel, environment_of
from gateway.workspace import WorkspaceStore
from kernels.errors import CellgateError, InvalidInput
from kernels.execution import Status
from kernels.kernel import Kernel, KernelProfile
from kernels.messages import Message
from kernels.pool import KernelPool

logger = logging.getLogger(__name__)

RECENT_EXECUTIONS, END_PATIENCE = 32, 2.0


class SessionState(StrEnum):
    """What a session does. `dead`: its kernel is gone, the next execution gets a fresh one."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    DEAD = "dead"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What all sessions share. Durations in seconds."""

    execution: ExecutionSettings
    max_queue: int = 64


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
        self.row = row
        self.limits = limits
        self.log = log
        self.state = SessionState.STARTING
        self.cause: str | None = None
        self.last_activity = row.last_activity
        self.idle_since = time.monotonic()
        self.started = time.monotonic()
        self._store = store
        self._slot = SessionKernel(
            row.id, profile, pool, workspaces, store, receive=self._receive, exited=self._exited
        )
        self._settings = settings
        self._executions_made = 0
        self._queue = ExecutionQueue(settings.max_queue)
        self._current: ExecutionRun | None = None
        self._recent: OrderedDict[str, ExecutionRun] = OrderedDict()
        self._quiet = asyncio.Event()
        self._finishing: set[asyncio.Task[None]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._end: asyncio.Task[None] | None = None

    @property
    def kernel(self) -> Kernel | None:
        """The kernel of the moment."""
        return self._slot.current

    @property
    def ending(self) -> bool:
        """Whether the end has begun."""
        return self._end is not None

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return self._current is not None or not self._queue.empty

    def to_wire(self) -> dict[str, Any]:
        """The session model of the wire contract."""
        kernel_id = self.kernel.id if self.kernel else None
        return session_model(self._present_row(), kernel_id=kernel_id, queue_length=len(self._queue))

    def _present_row(self) -> SessionRow:
        return replace(self.row, state=self.state, cause=self.cause, last_activity=self.last_activity)

    async def quiet(self) -> None:
        """Return when nothing runs and nothing waits."""
        while self.busy:
            self._quiet.clear()
            await self._quiet.wait()

    def find(self, execution: str) -> ExecutionRun | None:
        """The execution of this id, while it waits or runs."""
        runs = (self._current, *self._queue)
        return next((run for run in runs if run is not None and run.id == execution), None)

    async def open(self, executions_made: int) -> None:
        """Claim the first kernel and begin to work. Raises the pool's errors; then nothing was changed."""
        self._attached(await self._slot.claim())
        self._executions_made = executions_made
        self._record_state(SessionState.IDLE, "created" if self.log.last_seq == 0 else "resumed")
        self._worker = asyncio.create_task(self._work(), name=f"session {self.row.key}")
        self._mark_activity()

    def _attached(self, kernel: Kernel) -> None:
        self.row = replace(self.row, isolation=kernel.isolation, environment=environment_of(kernel))

    def _receive(self, message: Message) -> None:
        """Everything the kernel says comes by here, in order."""
        parent = message.parent.msg_id
        run = self._current
        if run is not None and run.msg_id == parent:
            run.receive(message)
        elif (run := self._recent.get(parent)) is not None:
            # A thread of an ended cell still prints: Jupyter shows it under that cell, so do we.
            run.receive(message)
            self._save_execution(run)

    def _exited(self, kernel: Kernel) -> None:
        """A kernel that dies between cells is a death too; one that dies in a cell is the run's affair."""
        if kernel is self.kernel and self._current is None and self._end is None:
            self._set_state(SessionState.DEAD, kernel.exited.result().cause)

    async def _replace_kernel(self, cause: str) -> None:
        """End the kernel, if any, and go on with a fresh one and the same files."""
        await self._slot.drop()
        self._set_state(SessionState.DEAD, cause)
        self._attached(await self._slot.claim())
        self._set_state(SessionState.IDLE, cause)

    def _set_state(self, state: SessionState, cause: str | None) -> None:
        if (state, cause) != (self.state, self.cause):
            self._record_state(state, cause)

    def _record_state(self, state: SessionState, cause: str | None) -> None:
        self.state, self.cause = state, cause
        fields: dict[str, Any] = {"state": state, "cause": cause, "kernel": self.row.kernel}
        if self.kernel is not None:
            fields["kernel_id"] = self.kernel.id
            fields["isolation"] = self.kernel.isolation
            fields["limits"] = self.limits.to_wire()
        self.log.append("session", None, fields)
        self._save()

    def submit(self, request: ExecuteRequest, *, idempotency: tuple[str, str] | None = None) -> ExecutionRun:
        """Queue a cell. Raises QueueFull or ShuttingDown; then nothing was changed."""
        if self._end is not None:
            raise ShuttingDown("The session is ending")
        self._queue.check_room()
        self._store.check_writable()
        self._executions_made += 1
        run = ExecutionRun(
            request,
            self.log,
            self._settings.execution,
            number=self._executions_made,
            timeout=request.timeout or self.limits.cell_timeout,
            idempotency=idempotency,
        )
        run.queued(len(self._queue) + (self._current is not None))
        self._save_execution(run)
        self._queue.put(run)
        self._mark_activity()
        return run

    async def known(self, key: str, request_hash: str) -> ExecutionRun | tuple[str, int] | None:
        """The execution that this idempotency key stands for: live, or recorded as (id, first seq).

        Raises Conflict when the key was used with another request.
        """
        store = self._store
        row = await store.execution_by_key(self.row.id, key) if isinstance(store, Journal) else None
        # No await from here on: the caller submits at once, so two requests of one key can't both be first.
        for run in (self._current, *self._queue, *self._recent.values()):
            if run is not None and run.idempotency is not None and run.idempotency[0] == key:
                _check_same(run.idempotency[1], request_hash)
                return run if run.builder is not None else (run.id, run.first_seq)
        if row is None:
            return None
        _check_same(row.request_hash, request_hash)
        return row.id, row.first_seq

    def stop(self, execution: str, cause: str = "cancelled") -> None:
        """Take an execution out of the queue, or interrupt it; nothing when it has ended."""
        run = self.find(execution)
        if run is not None and run is self._current:
            run.interrupt("interrupt_requested" if cause == "cancelled" else cause)
        elif run is not None:
            # Its client is answered now, and not when the running cell has ended.
            self._queue.remove(run, cause)
            task = asyncio.create_task(self._finish(run, replaced=False), name=f"finish {run.id}")
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)

    def interrupt(self) -> None:
        """Interrupt the running cell, if there is one."""
        self._mark_activity()
        if self._current is not None:
            self._current.interrupt()

    def answer(self, execution: str, value: str) -> None:
        """Answer the input_request of a running execution. Raises NotFound or InvalidInput."""
        run = self.find(execution)
        if run is None:
            raise NotFound("No queued or running execution has this id")
        if run is not self._current:
            raise InvalidInput("This execution has not started yet")
        run.answer(value)

    async def restart(self) -> None:
        """Give the session a fresh kernel. Its variables are lost, its files stay.

        The running cell ends as interrupted, those that wait are cancelled. Raises the pool's errors.
        """
        if self._end is not None:
            raise ShuttingDown("The session is ending")
        self._queue.cancel_all("kernel_restarted")
        done = self._queue.put_restart()
        if self._current is not None:
            self._current.lose(Status.INTERRUPTED, "kernel_restarted")
        await asyncio.shield(done)

    async def _work(self) -> None:
        while self._end is None:
            item = self._queue.take()
            if isinstance(item, asyncio.Future):
                await self._do_restart(item)
            elif item is None:
                self._quiet.set()
                await self._queue.wait()
            elif item.machine.finished:
                await self._finish(item, replaced=False)
            else:
                await self._execute(item)

    async def _do_restart(self, done: asyncio.Future[None]) -> None:
        try:
            await self._replace_kernel("kernel_restarted")
        except CellgateError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        self._mark_activity()

    async def _execute(self, run: ExecutionRun) -> None:
        self._current = run
        replaced = False
        try:
            if not self._slot.alive:
                await self._replace_kernel(self.cause or "kernel_exit")
                replaced = True
            assert self.kernel is not None
            self.state = SessionState.BUSY
            await run.run(self.kernel)
            await run.clean_up(self.kernel)
        except CellgateError as error:
            run.message = error.message
            run.lose(Status.DIED, error.reason)
        if self._end is None:
            replaced |= await self._after_loss(run)
        await self._finish(run, replaced=replaced)
        self._current = None
        if self.state is SessionState.BUSY:
            self.state, self.cause = SessionState.IDLE, None
        self._mark_activity()
        if self.kernel is not None and self.kernel.exited.done():
            self._exited(self.kernel)

    async def _after_loss(self, run: ExecutionRun) -> bool:
        """Replace a kernel that was given up at a deadline; a dead one waits for the next execution.

        Returns whether the session has a fresh kernel now.
        """
        if self.kernel is None:
            return False
        if not run.gave_up:
            if self.kernel.exited.done():
                self._queue.cancel_all("kernel_died")
                self._set_state(SessionState.DEAD, self.kernel.exited.result().cause)
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
        """Record the end; followers and `run.done` learn of it when it is durable."""
        ends_it = self.state is SessionState.BUSY and run is self._current
        state = SessionState.IDLE if ends_it else self.state
        event = run.finish(state, replaced=replaced)
        if event["execution_count"]:
            self.row = replace(self.row, execution_count=event["execution_count"])
        self.last_activity = event["at"]
        self._save_execution(run, status=event["status"])
        self._save()
        self._remember(run)
        try:
            await self.log.release(event["seq"])
        except StorageError as error:
            run.fail(error)
        else:
            run.end()

    def _remember(self, run: ExecutionRun) -> None:
        self._recent[run.msg_id] = run
        if len(self._recent) > RECENT_EXECUTIONS:
            self._recent.popitem(last=False)

    def touch(self) -> None:
        """Let idleness begin anew."""
        self.idle_since = time.monotonic()

    def _mark_activity(self) -> None:
        self.touch()
        self.last_activity = now()

    def _save(self) -> None:
        self.row = self._present_row()
        if isinstance(self._store, Journal):
            self._store.save_session(self.row)

    def _save_execution(self, run: ExecutionRun, status: str | None = None) -> None:
        if isinstance(self._store, Journal):
            self._store.save_execution(run.row(self.row.id, status))

    async def end(self, cause: str, *, keep_files: bool = True) -> None:
        """End the kernel and the session; the record stays. Concurrent calls share one end."""
        if self._end is None:
            self._end = asyncio.create_task(self._do_end(cause, keep_files), name=f"end {self.row.key}")
        await asyncio.shield(self._end)

    async def _do_end(self, cause: str, keep_files: bool) -> None:
        self._queue.cancel_all(cause)
        self._queue.wake()
        if self._current is not None:
            self._current.lose(Status.INTERRUPTED, cause)
        await self._stop_worker()
        self._queue.refuse_restarts(ShuttingDown("The session has ended"))
        if self._current is not None:
            await self._finish(self._current, replaced=False)
            self._current = None
        while isinstance(run := self._queue.take(), ExecutionRun):
            await self._finish(run, replaced=False)
        await asyncio.gather(*self._finishing)
        self._quiet.set()
        await self._slot.drop(keep_files=keep_files)
        if not keep_files:
            await self._slot.forget_files()
        self._record_state(SessionState.ENDED, cause)
        try:
            await self.log.commit()
        finally:
            self.log.close()

    async def _stop_worker(self) -> None:
        """The worker ends by itself after the current cell, unless it waits for a kernel."""
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=END_PATIENCE)
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)


def _check_same(known: str | None, given: str) -> None:
    if known != given:
        raise Conflict("This Idempotency-Key was used with another request; choose a new one")
