"""One execution on a session's kernel: sends the cell, records its messages, enforces the deadline.

The protocol logic is pure and lives in ``cellgate_kernels.protocol.execution``; the queue and the choice of
the kernel belong to ``sessions.session``. This module connects them: it does the waiting and the escalation

deadline -> interrupt -> grace -> kernel_lost (the session kills and replaces the kernel)

``deadline`` has the cell's time, ``cell_record`` its events and its end, ``cell_input`` its answers.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from msgspec import structs, to_builtins

from cellgate.errors import StorageFull
from cellgate.execution.cell_environment import RESTORING, run_silently, setting
from cellgate.execution.cell_input import CellInput
from cellgate.execution.cell_record import CellEnd, CellRecord, RunObserver, Traffic, explain_end
from cellgate.execution.deadline import CellDeadline
from cellgate.execution.interrupts import CellInterrupts
from cellgate.execution.request import ExecuteRequest, execute_request
from cellgate.execution.resumed import ResumedCell
from cellgate.record.events import EventLog, now
from cellgate.wire.endings import INTERRUPTED
from cellgate.wire.events import Loss
from cellgate_kernels.base.errors import CellgateError, GatewayFault, InvalidInput, KernelDied
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Execution, Outcome, Status
from cellgate_kernels.protocol.messages import Channel, Message, size_of
from cellgate_kernels.protocol.outputs import OutputCaps, OutputLimiter

logger = logging.getLogger(__name__)

# Seconds after idle: ipykernel loses its reply if a KeyboardInterrupt hits it outside the cell's own code.
LOST_REPLY = 0.5
DRAIN_INTERVAL = 0.1
OUTPUT_REST = 0.01
"""Seconds by which output of an unwatched cell may be delayed: one wake-up instead of six."""


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """Limits of one execution; durations in seconds.

    `interrupt_grace`: from the deadline's interrupt to the kill. `settle`: after the first of execute_reply
    and idle, the longest wait for the other without any sign of the kernel.
    """

    caps: OutputCaps
    interrupt_grace: float = 5.0
    settle: float = 5.0


class RunHost(Protocol):
    """The session, as far as its runs need one."""

    @property
    def widgets_full(self) -> bool:
        """Whether no more widgets of the session are recorded."""

    def wake(self) -> None:
        """Wake the caller of `ExecutionRun.run`, which has something to do."""

    def listener_failed(self, error: Exception) -> None:
        """Note that a message from the kernel could not be handled."""

    def take_loss(self) -> Loss | None:
        """Return the loss of the previous kernel unless an execution has reported it; the caller must."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the executions of a session share. `host`: the session, once there is one; `traffic`: its own."""

    log: EventLog
    settings: ExecutionSettings
    host: RunHost | None = None
    observer: RunObserver = field(default_factory=RunObserver)
    principal: str = ""
    traffic: Traffic = field(default_factory=Traffic)


class ExecutionRun:
    """An execution from its request to its recorded end. It follows the kernel's responses to its request.

    `host`: the session, once there is one. `unwanted` is set once the execution is to stop. `ran_on`: the id
    of the kernel that was asked to run it, None before. `gave_up` is set when the kernel still runs it after
    the deadline and can't be used any more. `broken` is set by an internal error during the run. `message`
    says why it ended, if the gateway knows more than the kernel. `loss`: the loss with a kernel that its end
    announces; set when it is sent, or when its own kernel is replaced. `unfollow` ignores later prints of its
    threads.
    """

    def __init__(
        self,
        request: ExecuteRequest,
        context: RunContext,
        *,
        number: int,
        timeout: float | None,
        idempotency: tuple[str, str] | None = None,
        resumed: ResumedCell | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex if resumed is None else resumed.row.id
        self.request = request
        self.host = context.host
        if resumed is not None:
            msg_id = resumed.row.msg_id
        else:
            # The execution's own id: by it ``sessions.unrecorded`` looks for the cell in the record.
            msg_id = self.id if request.message is None else request.message.header.msg_id
        limiter = OutputLimiter(context.settings.caps)
        self.machine = Execution(msg_id, request.code, limiter, allow_stdin=request.allow_stdin)
        self.record = CellRecord(
            context.log, execution=self.id, msg_id=msg_id, number=number, idempotency=idempotency
        )
        self.end = CellEnd(self.record, context.observer, context.principal, context.traffic)
        self.input = CellInput(None if request.stdin is None else deque(request.stdin))
        self.deadline = CellDeadline(
            timeout,
            self._time_is_up,
            lambda _: self.break_off(),
            execution=self.id,
            is_own=request.timeout is not None,
            spent=0.0 if resumed is None else resumed.ran,
        )
        self.unwanted = asyncio.Event()
        self.ran_on: str | None = None
        self.gave_up = False
        self.broken = False
        self.message: str | None = None
        self.loss: Loss | None = None
        self.unfollow: Callable[[], None] = lambda: None
        self._settings = context.settings
        self._resumed = resumed
        self._interrupts: CellInterrupts | None = None
        self._progress = asyncio.Event()
        self._kernel: Kernel | None = None
        if resumed is not None:
            self.record.resume(resumed.row, resumed.events, resumed.recorded)
            for event in resumed.events:
                self.machine.follow_widget(event["type"], event)

    @property
    def msg_id(self) -> str:
        """The id of the execute_request; every message of this execution names it as its parent."""
        return self.machine.msg_id

    @property
    def was_sent(self) -> bool:
        """Whether a kernel was asked to run it."""
        return self.ran_on is not None or self._resumed is not None

    @property
    def running(self) -> bool:
        """Whether the cell was sent and has not ended."""
        return self._kernel is not None and not self.machine.finished

    def receive(self, message: Message) -> None:
        """Handle a message whose parent is this execution's request."""
        if self._resumed is not None and self._resumed.was_seen(message):
            return
        machine, record = self.machine, self.record
        if message.header.msg_type == "comm_open" and self.host is not None and self.host.widgets_full:
            message = structs.replace(message, unread=True)
        for event in machine.receive(message):
            try:
                record.emit(event.type, event.content, size=size_of(message) if message.readable else 0)
            except StorageFull:
                # Recorded output is safe; output that arrives while there is no room is lost, and the result
                # says so.
                record.is_partial = True
                continue
            if event.type == "input_request" and (line := self.input.next_line(event.content)) is not None:
                _reply(self._kernel, line)
        if self._interrupts is not None and self._kernel is not None:
            self._interrupts.received(self._kernel)
        if self.end.event is not None:
            # A thread of an ended cell still prints: record that under the cell, as Jupyter shows it.
            record.save()
        # Waiters only care about the end; waking the task for each output would cost more than the output.
        elif machine.finished:
            self._wake()
        elif (machine.replied or machine.idle) and self._kernel is not None:
            # The cell is over, so its deadline no longer applies; the rest of its end may not take long.
            self.deadline.end_begun(partial(_patience, machine, self._settings.settle))

    def _time_is_up(self) -> None:
        """Handle a passed deadline, or an end whose rest is lost."""
        if self.deadline.is_ending:
            for event in self.machine.settle():
                try:
                    self.record.emit(event.type, event.content)
                except StorageFull:
                    self.record.is_partial = True
        self._wake()

    def answer(self, value: str) -> None:
        """Answer the pending input_request. Raises InvalidInput when there is none."""
        if not self.running:
            raise InvalidInput("This execution does not wait for input")
        self.input.take_answer()
        _reply(self._kernel, value)

    def answered(self, value: object, mask: Callable[[str], str]) -> None:
        """Record a client's answer, which was sent to the kernel. `mask`: takes secrets out of a text."""
        self.machine.answered()
        reply = self.input.reply(value, mask)
        if reply is None or self.end.event is not None:
            return
        try:
            self.record.emit("input_reply", reply, size=len(reply.get("value", "")))
        except StorageFull:
            self.record.is_partial = True

    def interrupt(self, cause: str = INTERRUPTED, by: str | None = None) -> None:
        """Ask the kernel to stop this cell; it ends when the kernel responds. `by`: who wants that."""
        self.end.interrupted_by = self.end.interrupted_by or by
        self.machine.interrupt_requested(cause)
        self.unwanted.set()
        if self._kernel is not None:
            self._interrupt(self._kernel)

    def _interrupt(self, kernel: Kernel) -> None:
        if self._interrupts is None:
            self._interrupts = CellInterrupts(self.machine, silent=self.request.silent)
        self._interrupts.send(kernel)

    def interrupt_requested(self) -> None:
        """Note a client's own interrupt_request."""
        self.machine.interrupt_requested()
        self.unwanted.set()

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

    def _attend(self, kernel: Kernel, *, ran: float = 0.0) -> None:
        """Bind the cell to its kernel: watch for its exit, and start the deadline."""
        self._kernel = kernel
        self.ran_on = kernel.id
        self.end.attend(kernel, resumed=self._resumed is not None)
        kernel.exited.add_done_callback(self._wake)
        self.deadline.start(ran=ran)

    async def run(self, kernel: Kernel) -> None:
        """Run the cell until it ends, on its own or at its deadline. The kernel may be dead afterwards."""
        # A cell that a former gateway sent is running already: it must be interrupted, not skipped.
        begun = self._kernel is not None or (self._resumed is not None and not self.machine.finished)
        if not begun and self.unwanted.is_set():
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
        """Detach from the kernel, which is done with this cell; its threads may still print."""
        self.deadline.stop()
        self.input.awaited = False
        if self._resumed is not None:
            self._resumed.end_backlog()
        if self._kernel is not None:
            self.end.leave(self._kernel)
            self._kernel.exited.remove_done_callback(self._wake)
            self._kernel = None

    def _wake(self, _: object = None) -> None:
        """Note that `run` has something to do."""
        self._progress.set()
        if self.host is not None:
            self.host.wake()

    async def _begin(self, kernel: Kernel) -> None:
        if self._resumed is not None:
            await self._resume(kernel, self._resumed)
            return
        self._attend(kernel)
        if self.request.env:
            await self._silent(kernel, setting(self.request.env))
        if not self.machine.finished and not self.deadline.late:
            self._send(kernel)

    async def _resume(self, kernel: Kernel, resumed: ResumedCell) -> None:
        """Process the kernel's spooled messages, then later ones, instead of sending a request."""
        self._attend(kernel, ran=resumed.ran)
        assert self.deadline.sent_at is not None
        self.deadline.queued_at = self.deadline.sent_at - resumed.waited
        self._note_sent()
        if self.unwanted.is_set():
            self._interrupt(kernel)
        asked = False
        try:
            async with aclosing(resumed.missed()) as messages:
                async for message in messages:
                    self.receive(message)
                    # Replies are not in the spool: every input_request except the last has been answered.
                    self.machine.answered()
                    # A client can't answer yet: the kernel may no longer wait for that.
                    asked, self.input.awaited = asked or self.input.awaited, False
            async with aclosing(resumed.collected()) as messages:
                async for message in messages:
                    self.receive(message)
                    asked, self.input.awaited = asked or self.input.awaited, False
        finally:
            self.record.is_partial |= resumed.has_gap
            resumed.end_backlog()
        self._follow(kernel)
        self.record.known = None
        self.input.awaited = asked and resumed.recorded.last_type == "input_request"
        if not self.input.awaited:
            self.input.question = None
        _delay_output(self, kernel)

    def _send(self, kernel: Kernel) -> None:
        self._follow(kernel)
        self._note_sent()
        session, idempotency = kernel.connection.session, self.record.idempotency
        kernel.connection.send(execute_request(self.request, session, self.msg_id, idempotency))
        _delay_output(self, kernel)

    def _note_sent(self) -> None:
        """Take the kernel's loss, if this cell is the first one after it and so announces it."""
        self.machine.sent()
        if self.host is not None:
            self.loss = self.host.take_loss()

    def _follow(self, kernel: Kernel) -> None:
        failed = None if self.host is None else self.host.listener_failed
        room = self.machine.room
        self.unfollow = kernel.connection.follow(
            self.msg_id, self.receive, room=lambda message: room(message.header.msg_type), failed=failed
        )

    async def _finished(self, kernel: Kernel) -> None:
        """Wait for the end, or for the deadline."""
        while not (self.machine.finished or self.deadline.late):
            if kernel.exited.done():
                await self._drained()
                if not self.machine.finished:
                    if not await kernel.tell_unsent():
                        self.record.is_partial = True
                    ended = kernel.exited.result()
                    self.machine.kernel_lost(Status.DIED, ended.cause)
                    self.message = ended.message
                return
            self._progress.clear()
            await self._progress.wait()

    async def _drained(self) -> None:
        """Read a dead kernel's last messages, which may still arrive, until there are no more."""
        for _ in range(100):
            seen = self.record.last_seq
            await asyncio.sleep(DRAIN_INTERVAL)
            if self.machine.finished or self.record.last_seq == seen:
                return

    async def _escalate(self, kernel: Kernel) -> None:
        """Interrupt at the deadline, wait for the grace period, then give the kernel up."""
        self.machine.deadline_passed()
        self.deadline.late = False
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
        """Run code that is not a cell, unless the execution is late or ended from outside."""
        was_finished = self.machine.finished
        # A separate callback: removing `_wake` would also remove the one that wakes the cell's own wait.
        await run_silently(
            kernel,
            code,
            progress=self._progress,
            wake=partial(self._wake),
            given_up=lambda: self.machine.finished is not was_finished or self.deadline.late,
        )

    def lose(self, loss: Loss | None) -> None:
        """Record the loss of its own kernel; the cause of an earlier loss that it announces stays."""
        if self.loss is None:
            self.loss = loss
        elif loss is not None:
            self.loss = structs.replace(self.loss, files=loss.files)

    def finish(self, kernel_state: str) -> Mapping[str, Any]:
        """Record the end, only once, withheld from followers until the caller has made it durable."""
        if self.end.event is not None:
            return self.end.event
        self._release()
        deadline = self.deadline
        deadline.close()
        ended = deadline.now()
        sent = ended if deadline.sent_at is None else deadline.sent_at
        outcome = self.machine.outcome()
        error = outcome.error
        texts = () if error is None else (error["ename"], error["evalue"], *error["traceback"])
        queued, ran = sent - deadline.queued_at, ended - sent
        final = _final(self, outcome, kernel_state, queued, ran)
        size = sum(map(len, texts))
        return self.end.record(final, size, self.ran_on, queued, None if deadline.sent_at is None else ran)

    def break_off(self) -> None:
        """End the execution after an internal error; unless it had ended, the kernel's state is unknown."""
        self.broken = True
        if not self.machine.finished:
            self.gave_up = True
            self.message = "The gateway failed at this cell; its log says why."
        self.abandon(Status.DIED, GatewayFault.reason)

    def abandon(self, status: Status, cause: str) -> None:
        """End the execution from outside: it was removed from the queue, or its kernel is taken away."""
        self.machine.kernel_lost(status, cause)
        self.unwanted.set()
        self._wake()


def refuse(run: ExecutionRun, error: CellgateError) -> None:
    """End an execution that has not been sent, with this error among its outputs."""
    kind = type(error).__name__
    told = {"ename": kind, "evalue": error.message, "traceback": [f"{kind}: {error.message}"]}
    run.record.emit("error", told)
    run.machine.error = told
    run.abandon(Status.ERROR, error.reason)


def _reply(kernel: Kernel | None, value: str) -> None:
    """Send the answer to a cell's question."""
    if kernel is None:
        return
    try:
        kernel.connection.request(Channel.STDIN, "input_reply", {"value": value, "status": "ok"})
    except KernelDied as error:
        # The kernel that asked is gone, so the answer has no receiver.
        logger.info("An answer was not taken: %s", error.message)


def _patience(machine: Execution, settle: float) -> float:
    """Return the longest time, in seconds, for the rest of a cell's end."""
    return LOST_REPLY if machine.idle and machine.disturbed else settle


def _delay_output(run: ExecutionRun, kernel: Kernel) -> None:
    """Delay the kernel's output a little if nobody watches the cell."""
    if not (run.record.log.followed or run.request.message is not None or run.machine.finished):
        kernel.connection.rest(OUTPUT_REST)


def _final(run: ExecutionRun, outcome: Outcome, state: str, queued: float, ran: float) -> dict[str, Any]:
    """Return the fields of the event that records a cell's end. `queued`, `ran`: seconds."""
    kernel: dict[str, Any] = {"state": state, "replaced": run.loss is not None}
    if run.loss is not None:
        kernel |= to_builtins(run.loss)
    timeout = run.deadline.timeout
    error = outcome.error
    if error is None or outcome.status is Status.DIED:
        # A cell may have shown an error before its kernel died; the error did not end it.
        error = explain_end(outcome.status, timeout, run.message) or error
    told: dict[str, Any] = {}
    if run.end.memory_kills:
        told["memory_kills"] = run.end.memory_kills
    if run.end.usage is not None:
        told["usage"] = run.end.usage
    if outcome.cause == INTERRUPTED and run.end.interrupted_by is not None:
        told["interrupted_by"] = run.end.interrupted_by
    if outcome.status is Status.TIMEOUT:
        told["timeout"] = timeout
    if outcome.status is Status.DIED:
        told["sent"] = run.was_sent
    return {
        "status": outcome.status,
        "cause": outcome.cause,
        "execution_count": outcome.execution_count,
        "error": error,
        "started_at": run.record.started_at,
        "finished_at": now(),
        "duration_ms": round(ran * 1000, 3),
        "queue_ms": round(queued * 1000, 3),
        "truncated": run.machine.limiter.truncated or run.record.is_partial,
        **told,
        "kernel": kernel,
    }
