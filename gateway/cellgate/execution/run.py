"""One execution on a session's kernel: sends the cell, records its messages, enforces the deadline.

The protocol logic is pure and lives in ``cellgate_kernels.protocol.execution``; the queue and the choice of
the kernel belong to ``sessions.session``. This module connects them: it does the waiting and the escalation

deadline -> interrupt -> grace -> kernel_lost (the session kills and replaces the kernel)

A request's own `timeout` also counts while its session waits in line for a kernel (`deduct`). The time behind
other cells of the session doesn't count, nor does it for the session's `cell_timeout`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from msgspec import Struct, structs, to_builtins

from cellgate.errors import StorageError, StorageFull
from cellgate.execution.cell_environment import RESTORING, setting
from cellgate.execution.interrupts import CellInterrupts
from cellgate.execution.request import ExecuteRequest, execute_request
from cellgate.execution.results import ResultBuilder
from cellgate.quotas.usage import CellPlace
from cellgate.record.events import EventLog, now
from cellgate.record.rows import ExecutionRow
from cellgate.wire.endings import CELL_TIMEOUT, KERNEL_DIED
from cellgate.wire.events import Loss
from cellgate_kernels.base.errors import CellgateError, GatewayFault, InvalidInput, KernelDied
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Execution, Outcome, Status
from cellgate_kernels.protocol.messages import Channel, Message, size_of
from cellgate_kernels.protocol.outputs import KernelEvent, OutputCaps, OutputLimiter

logger = logging.getLogger(__name__)

END_OF_FILE = "\x04"
# Seconds after idle: ipykernel loses its reply if a KeyboardInterrupt hits it outside the cell's own code.
LOST_REPLY = 0.5
DRAIN_INTERVAL = 0.1
OUTPUT_REST = 0.01
"""How long the output of an unwatched cell may be delayed until its end: one wake-up instead of six."""


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """Limits of one execution; durations in seconds.

    `interrupt_grace`: from the deadline's interrupt to the kill. `settle`: once one of execute_reply and idle
    has arrived, how long the other may take without any sign of the kernel.
    """

    caps: OutputCaps
    interrupt_grace: float = 5.0
    settle: float = 5.0


class Host(Protocol):
    """The session, as far as a run of it needs one."""

    @property
    def widgets_full(self) -> bool:
        """Whether no more widgets of the session are recorded."""

    def wake(self) -> None:
        """Something happened that a caller of `ExecutionRun.run` has to act on."""

    def listener_failed(self, error: Exception) -> None:
        """A message from the kernel could not be handled."""

    def take_loss(self) -> Loss | None:
        """Return the loss of the previous kernel unless an execution has reported it; the caller does."""


class RunEnd(Struct, frozen=True, gc=False):
    """How an execution ended, as an observer is told: ids and times, never code or output.

    `origin`: what the observer said when it was accepted. `run_seconds` is None for a cell that was never
    sent.
    """

    origin: object
    principal: str
    session: str
    execution: str
    kernel: str | None
    status: Status
    cause: str | None
    queue_seconds: float
    run_seconds: float | None


class RunObserver:
    """The reports of executions, which nobody reads. Overriding methods must be quick and raise nothing."""

    def origin(self) -> object:
        """Return what the calling task works for, such as a traced request; ends carry it as `origin`."""
        return None

    def within(self, origin: object) -> AbstractContextManager[object]:
        """Return a context in which the calling task works for `origin`."""
        return nullcontext()

    def ended(self, end: RunEnd) -> None:
        """Take note that an execution has ended; its end is not durable yet."""

    def committed(self, end: RunEnd, seconds: float) -> None:
        """Take note that an end became durable, `seconds` after its commit began, or could not be written."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the executions of a session share. `host`: the session, once there is one."""

    log: EventLog
    settings: ExecutionSettings
    host: Host | None = None
    observer: RunObserver = field(default_factory=RunObserver)
    principal: str = ""


def _nothing() -> None:
    """Stand for a stop function when nothing is followed."""


class ExecutionRun:
    """An execution from its request to its recorded end. It follows the kernel's responses to its request.

    `done` completes when the end is durable. `was_sent`: whether a kernel was asked to run it. `unwanted` is
    set once somebody wants it to stop. `gave_up`: its kernel is still running it and can't be used any more.
    `broken`: an internal error occurred while it ran. `host`: the session, once there is one. `loss`: what
    its end says was lost with a kernel. `place`: the cell's among those of its principal, if it has one.
    """

    def __init__(
        self,
        request: ExecuteRequest,
        context: RunContext,
        *,
        number: int,
        timeout: float | None,
        idempotency: tuple[str, str] | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.request = request
        self.number = number
        self.idempotency = idempotency
        self.timeout = timeout
        self._left = timeout
        self.first_seq = 0
        self.last_seq = 0
        self.created_at = ""
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self.unwanted = asyncio.Event()
        msg_id = uuid.uuid4().hex if request.message is None else request.message.header.msg_id
        limiter = OutputLimiter(context.settings.caps)
        self.machine = Execution(msg_id, request.code, limiter, allow_stdin=request.allow_stdin)
        self.builder: ResultBuilder | None = ResultBuilder()
        self.waiting_for_input = False
        self.was_sent = False
        self.gave_up = False
        self.broken = False
        self.message: str | None = None
        self.loss: Loss | None = None
        self.origin = context.observer.origin()
        self._observer = context.observer
        self._principal = context.principal
        self._end: RunEnd | None = None
        self._ran_on: str | None = None
        self._status: str | None = None
        self._final_event: dict[str, Any] | None = None
        self._unrecorded = False
        self._loop = loop
        self._now = loop.time
        self.host = context.host
        self.place: CellPlace | None = None
        self._interrupts: CellInterrupts | None = None
        self._settings = context.settings
        self._log = context.log
        self._progress = asyncio.Event()
        self._stdin = list(request.stdin or ())
        self._kernel: Kernel | None = None
        self._unfollow: Callable[[], None] = _nothing
        self._waiters: list[asyncio.Future[None]] = []
        # One timer: the deadline until the first of reply and idle arrives, then the wait for the other.
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._ending = False
        self._last_sign = 0.0
        self._queued_at = self._now()
        self._in_line_since: float | None = None
        self._sent_at: float | None = None
        self._started_at: str | None = None

    @property
    def msg_id(self) -> str:
        """The id of the execute_request; every message of this execution names it as its parent."""
        return self.machine.msg_id

    @property
    def running(self) -> bool:
        """Whether the cell was sent and has not ended."""
        return self._kernel is not None and not self.machine.finished

    @property
    def ran_on(self) -> str | None:
        """The id of the kernel that was asked to run it; None for none."""
        return self._ran_on

    @property
    def late(self) -> bool:
        """Whether its deadline has passed, and nobody has acted on that."""
        return self._late

    @property
    def stands_in_line(self) -> bool:
        """Whether it waits for its principal's other cells."""
        return self._in_line_since is not None

    @property
    def told(self) -> bool:
        """Whether its end is among its events; later output still belongs to it."""
        return self._final_event is not None

    def emit(
        self, event_type: str, fields: Mapping[str, Any], *, withhold: bool = False, size: int = 0
    ) -> dict[str, Any]:
        """Record an event of this execution. `size`: its approximate size in bytes, if it may be large."""
        event = self._log.append(event_type, self.id, fields, withhold=withhold, size=size)
        self.last_seq = event["seq"]
        if self.builder is not None:
            self.builder.apply(event, size)
        return event

    def queued(self, position: int) -> None:
        """Record that the execution waits at `position` (0: it is next)."""
        fields: dict[str, Any] = {"position": position, "code": self.request.code, "msg_id": self.msg_id}
        if self.request.silent:
            fields["silent"] = True
        if not self.request.store_history:
            fields["store_history"] = False
        if self.request.timeout is not None or self.request.message is not None:
            fields["timeout"] = self.timeout
        if self.request.cell_id is not None:
            fields["cell_id"] = self.request.cell_id
        if self.request.env:
            # Names only: values may be secrets, and the record is kept.
            fields["env"] = [name for name, _ in self.request.env]
        if self.idempotency is not None:
            fields["idempotency"] = list(self.idempotency)
        event = self.emit("queued", fields, size=len(self.request.code))
        self.first_seq, self.created_at = event["seq"], event["at"]

    def moved(self, position: int) -> None:
        """Record that so many claims are ahead of its session's in the line for kernels."""
        fields = {"position": position, "code": "", "msg_id": self.msg_id, "waiting_for": "kernel"}
        # Without room the client learns no position; what matters is kept for the end.
        with suppress(StorageFull):
            self.emit("queued", fields)

    @property
    def patience(self) -> float | None:
        """The seconds for which it may still wait in line for a kernel, if the request has a timeout."""
        return None if self.request.timeout is None else self._left

    def deduct(self, seconds: float) -> None:
        """So much of the request's own timeout was spent in line for a kernel."""
        if self.request.timeout is not None and self._left is not None:
            self._left = max(0.0, self._left - seconds)

    def receive(self, message: Message) -> None:
        """Handle a message whose parent is this execution's request."""
        machine = self.machine
        if message.header.msg_type == "comm_open" and self.host is not None and self.host.widgets_full:
            message = structs.replace(message, unread=True)
        for event in machine.receive(message):
            try:
                recorded = self.emit(
                    event.type, event.content, size=size_of(message) if message.readable else 0
                )
            except StorageFull:
                # What is recorded is safe; output that arrives while there is no room is lost, and the
                # result says so.
                self._unrecorded = True
            else:
                self._note(event, recorded)
        if self._interrupts is not None and self._kernel is not None:
            self._interrupts.received(self._kernel)
        if self._final_event is not None:
            # A thread of an ended cell still prints: show it under that cell, as Jupyter does.
            self.save()
        # Waiters only care about the end; waking the task for each output would cost more than the output.
        elif machine.finished:
            self._wake()
        elif machine.replied or machine.idle:
            # The cell is over, so its deadline no longer applies; the rest of its end may not take long.
            self._last_sign = self._now()
            if not self._ending and self._kernel is not None:
                self._ending = True
                self._set_timer(self._patience())

    def _patience(self) -> float:
        return LOST_REPLY if self.machine.idle and self.machine.disturbed else self._settings.settle

    def _set_timer(self, seconds: float) -> None:
        self._stop_timer()
        guarded_look = guarded(self._time_is_up, "end of a cell", self._failed, execution=self.id)
        self._timer = self._loop.call_later(seconds, guarded_look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _failed(self, error: Exception) -> None:
        self.break_off()

    def _time_is_up(self) -> None:
        """The deadline has passed, or the rest of the end is lost (unless there was a recent sign of it)."""
        self._timer = None
        if not self._ending:
            self._late = True
        else:
            left = self._last_sign + self._patience() - self._now()
            if left > 0:
                self._set_timer(left)
                return
            for event in self.machine.settle():
                try:
                    self.emit(event.type, event.content)
                except StorageFull:
                    self._unrecorded = True
        self._wake()

    def _note(self, event: KernelEvent, recorded: Mapping[str, Any]) -> None:
        """Act on an event that was recorded."""
        if event.type == "started" and self._started_at is None:
            self._started_at = recorded["at"]
        if event.type == "input_request":
            self._answer_from_list()

    def _answer_from_list(self) -> None:
        if self._stdin:
            self._reply_input(self._stdin.pop(0))
        elif self.request.stdin is not None:
            # The caller gave all the lines there are, as with a pipe, so input() raises EOFError.
            self._reply_input(END_OF_FILE)
        else:
            self.waiting_for_input = True

    def answer(self, value: str) -> None:
        """Answer the pending input_request. Raises InvalidInput when there is none."""
        if not self.waiting_for_input or not self.running:
            raise InvalidInput("This execution does not wait for input")
        self.waiting_for_input = False
        self._reply_input(value)

    def _reply_input(self, value: str) -> None:
        if self._kernel is None:
            return
        try:
            self._kernel.connection.request(Channel.STDIN, "input_reply", {"value": value, "status": "ok"})
        except KernelDied as error:
            # The kernel that asked is gone, so nobody is waiting for this reply.
            logger.info("An answer was not taken: %s", error.message)

    def interrupt(self, cause: str = "interrupt_requested") -> None:
        """Ask the kernel to stop this cell; it ends when the kernel responds."""
        self.machine.interrupt_requested(cause)
        self.unwanted.set()
        if self._kernel is not None:
            self._interrupt(self._kernel)

    def _interrupt(self, kernel: Kernel) -> None:
        if self._interrupts is None:
            self._interrupts = CellInterrupts(self.machine, silent=self.request.silent)
        self._interrupts.send(kernel)

    def interrupt_requested(self) -> None:
        """Note that a client sent its own interrupt_request."""
        self.machine.interrupt_requested()
        self.unwanted.set()

    def stand_in_line(self) -> None:
        """Begin to wait for the principal's other cells, as the next of the session, until it is `late`."""
        if self._in_line_since is None:
            self._in_line_since = self._now()
            if self.patience is not None:
                self._set_timer(self.patience)

    def leave_line(self) -> None:
        """End the time in line, which is a part of the request's own timeout."""
        if self._in_line_since is not None:
            self._stop_timer()
            self.deduct(self._now() - self._in_line_since)
            self._in_line_since = None

    def send(self, kernel: Kernel) -> None:
        """Send a cell that needs no preparation; `run` then waits for its end.

        The host is woken when `run` has something to do; until then it need not be called.
        """
        self._attend(kernel)
        try:
            self._send(kernel)
        except KernelDied:
            self.machine.kernel_lost(Status.DIED, "kernel_exit")
            self._wake()
            return
        self._rest(kernel)

    def _attend(self, kernel: Kernel) -> None:
        """Bind the cell to its kernel: watch for its exit, and start the deadline."""
        self._kernel = kernel
        self.was_sent = True
        self._ran_on = kernel.id
        self._sent_at = self._now()
        kernel.exited.add_done_callback(self._wake)
        if self._left is not None:
            self._set_timer(self._left)

    def _rest(self, kernel: Kernel) -> None:
        if not (self._log.followed or self.request.message is not None or self.machine.finished):
            kernel.connection.rest(OUTPUT_REST)

    async def run(self, kernel: Kernel) -> None:
        """Run the cell until it ends, by itself or by its deadline. The kernel may be dead afterwards."""
        if self._kernel is None and self.unwanted.is_set():
            self.machine.kernel_lost(Status.CANCELLED, "cancelled")
            return
        try:
            if self._kernel is None:
                await self._begin(kernel)
            await self._finished(kernel)
            if not self.machine.finished:
                await self._escalate(kernel)
        except KernelDied:
            self.machine.kernel_lost(Status.DIED, "kernel_exit")
        finally:
            self._release()
        if self._interrupts is not None and not self.gave_up:
            await self._interrupts.answered(kernel)

    def _release(self) -> None:
        """Detach from the kernel, which does nothing more for this cell; its threads may still print."""
        self._stop_timer()
        self.waiting_for_input = False
        if self._kernel is not None:
            self._kernel.exited.remove_done_callback(self._wake)
            self._kernel = None

    def _wake(self, _: object = None) -> None:
        """Note that `run` has something to do."""
        self._progress.set()
        if self.host is not None:
            self.host.wake()

    async def _begin(self, kernel: Kernel) -> None:
        self._attend(kernel)
        if self.request.env:
            await self._silent(kernel, setting(self.request.env))
        if not self.machine.finished and not self._late:
            self._send(kernel)
            self._rest(kernel)

    def _send(self, kernel: Kernel) -> None:
        self._follow(kernel)
        self._note_sent()
        kernel.connection.send(execute_request(self.request, kernel.connection.session, self.msg_id))

    def _note_sent(self) -> None:
        """The first cell that is sent after a loss announces it."""
        self.machine.sent()
        if self.host is not None:
            self.loss = self.host.take_loss()

    def _follow(self, kernel: Kernel) -> None:
        failed = None if self.host is None else self.host.listener_failed
        self._unfollow = kernel.connection.follow(self.msg_id, self.receive, room=self._room, failed=failed)

    def _room(self, message: Message) -> int:
        """Return the number of bytes of the message's content that would be used."""
        return self.machine.room(message.header.msg_type)

    def unfollow(self) -> None:
        """Ignore what its threads still print."""
        self._unfollow()

    async def _finished(self, kernel: Kernel) -> None:
        """Wait for the end, or for the deadline."""
        while not (self.machine.finished or self._late):
            if kernel.exited.done():
                await self._drained()
                if not self.machine.finished:
                    if not await kernel.tell_unsent():
                        self._unrecorded = True
                    self._lost(kernel)
                return
            self._progress.clear()
            await self._progress.wait()

    async def _drained(self) -> None:
        """A dead kernel's last messages may still be on their way through zmq: read until it is quiet."""
        for _ in range(100):
            seen = self.last_seq
            await asyncio.sleep(DRAIN_INTERVAL)
            if self.machine.finished or self.last_seq == seen:
                return

    def _lost(self, kernel: Kernel) -> None:
        ended = kernel.exited.result()
        self.machine.kernel_lost(Status.DIED, ended.cause)
        self.message = ended.message

    async def _escalate(self, kernel: Kernel) -> None:
        """The deadline has passed: interrupt, wait for the grace period, then give the kernel up."""
        self.machine.deadline_passed()
        self._late = False
        try:
            self._interrupt(kernel)
            async with asyncio.timeout(self._settings.interrupt_grace):
                await self._finished(kernel)
        except (TimeoutError, KernelDied):
            self.gave_up = True
            self.machine.kernel_lost(Status.TIMEOUT, "cell_timeout")

    async def clean_up(self, kernel: Kernel) -> None:
        """Restore the environment variables from before the cell, within `interrupt_grace`."""
        if not self.request.env or not kernel.alive or not (self.machine.replied or self.machine.idle):
            return
        try:
            async with asyncio.timeout(self._settings.interrupt_grace):
                await self._silent(kernel, RESTORING)
        except (TimeoutError, KernelDied):
            kernel.interrupt()

    async def _silent(self, kernel: Kernel, code: str) -> None:
        """Run code of the gateway that is not a cell: silent, not in the history, not recorded.

        Returns early when the execution is ended from outside or the kernel dies.
        """
        content = {"code": code, "silent": True, "store_history": False, "allow_stdin": False}
        lost_before = self.machine.finished
        reply = kernel.connection.ask(Channel.SHELL, "execute_request", content)
        # A callback of its own: removing `_wake` would also remove the one that the cell waits by.
        wake = partial(self._wake)
        for ended in (reply, kernel.exited):
            ended.add_done_callback(wake)
        try:
            while not (reply.done() or kernel.exited.done() or self.machine.finished is not lost_before):
                if self._late:
                    return
                self._progress.clear()
                await self._progress.wait()
        finally:
            kernel.exited.remove_done_callback(wake)
            reply.cancel()

    def lose(self, loss: Loss | None) -> None:
        """Note the loss of its own kernel; the cause of an earlier loss that it announces stays."""
        if self.loss is None:
            self.loss = loss
        elif loss is not None:
            self.loss = structs.replace(self.loss, files=loss.files)

    def finish(self, kernel_state: str) -> dict[str, Any]:
        """Record the end, only once, withheld from followers until the caller has made it durable."""
        if self._final_event is None:
            self._release()
            self._leave()
            self._final_event = self._record_end(kernel_state)
        return self._final_event

    def _leave(self) -> None:
        if self.place is not None:
            self.place.leave()

    def _record_end(self, kernel_state: str) -> dict[str, Any]:
        outcome = self.machine.outcome()
        ended = self._now()
        sent = self._sent_at if self._sent_at is not None else ended
        error = outcome.error
        texts = () if error is None else (error["ename"], error["evalue"], *error["traceback"])
        size = sum(map(len, texts))
        final = self._final(outcome, sent, ended, kernel_state)
        event = self.emit("finished", final, withhold=True, size=size)
        self._end = RunEnd(
            self.origin,
            self._principal,
            self._log.key,
            self.id,
            self._ran_on,
            outcome.status,
            outcome.cause,
            sent - self._queued_at,
            None if self._sent_at is None else ended - sent,
        )
        self._observer.ended(self._end)
        return event

    def _final(self, outcome: Outcome, sent: float, ended: float, kernel_state: str) -> dict[str, Any]:
        kernel: dict[str, Any] = {"state": kernel_state, "replaced": self.loss is not None}
        if self.loss is not None:
            kernel |= to_builtins(self.loss)
        error = outcome.error
        if error is None or outcome.status is Status.DIED:
            # A cell may have shown an error before its kernel died; that is not what ended it.
            error = self.explanation(outcome.status) or error
        told: dict[str, Any] = {}
        if outcome.status is Status.TIMEOUT:
            told["timeout"] = self.timeout
        if outcome.status is Status.DIED:
            told["sent"] = self.was_sent
        return {
            "status": outcome.status,
            "cause": outcome.cause,
            "execution_count": outcome.execution_count,
            "error": error,
            "started_at": self._started_at,
            "finished_at": now(),
            "duration_ms": round((ended - sent) * 1000, 3),
            "queue_ms": round((sent - self._queued_at) * 1000, 3),
            "truncated": self.machine.limiter.truncated or self._unrecorded,
            **told,
            "kernel": kernel,
        }

    def explanation(self, status: Status) -> dict[str, Any] | None:
        """Return an error for an end that the kernel could not report itself; None for others."""
        if status is Status.TIMEOUT:
            said = f"The cell ran longer than its {self.timeout:g} s and did not react to an interrupt."
            return {"ename": CELL_TIMEOUT, "evalue": self.message or said, "traceback": []}
        if status is Status.DIED:
            return {"ename": KERNEL_DIED, "evalue": self.message or "The kernel ended.", "traceback": []}
        return None

    def row(self, session_id: int, status: str | None) -> ExecutionRow:
        """The execution's row in the record's index."""
        self._status = status or self._status
        key, request_hash = self.idempotency or (None, None)
        return ExecutionRow(
            session_id=session_id,
            id=self.id,
            number=self.number,
            msg_id=self.msg_id,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            status=self._status,
            created_at=self.created_at,
            idempotency_key=key,
            request_hash=request_hash,
        )

    def save(self, status: str | None = None) -> None:
        """Write the execution's row; `status` once it has ended."""
        self._log.save_execution(self.row(self._log.session_id, status))

    async def commit(self) -> None:
        """Make the end durable, then notify followers and waiters, whether that worked or not."""
        assert self._final_event is not None
        assert self._end is not None
        began = self._now()
        try:
            await self._log.release(self._final_event["seq"])
        except StorageError as error:
            self.fail(error)
        except BaseException:
            self.fail(GatewayFault())
            raise
        else:
            self.end()
        finally:
            self._observer.committed(self._end, self._now() - began)

    async def wait(self) -> None:
        """Return when the end is durable. Raises StorageError when it can't be made so."""
        if not self.done.done():
            # Each waiter has its own future, so that cancelling one does not affect the others.
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        self.done.result()

    def end(self) -> None:
        """The end is durable: notify waiters and drop the outputs."""
        self.builder = None
        if not self.done.done():
            self.done.set_result(None)
        self._tell_waiters()

    def fail(self, error: CellgateError) -> None:
        """The end could not be recorded: notify waiters."""
        self._leave()
        self.builder = None
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieved: nobody may be waiting
        # In the next loop iteration: the session must know of the failure before a waiter continues.
        self._loop.call_soon(guarded(self._tell_waiters, "end of a wait", execution=self.id))

    def _tell_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def break_off(self) -> None:
        """End it because of an internal error; unless it had ended, the kernel's state is now unknown."""
        self.broken = True
        if not self.machine.finished:
            self.gave_up = True
            self.message = "The gateway failed at this cell; its log says why."
        self.abandon(Status.DIED, GatewayFault.reason)

    def abandon(self, status: Status, cause: str) -> None:
        """End it from outside: it was removed from the queue, or its kernel is taken away."""
        self.machine.kernel_lost(status, cause)
        self.unwanted.set()
        self._wake()
