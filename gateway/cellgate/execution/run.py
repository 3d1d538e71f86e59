"""One execution on a session's kernel: sends the cell, records what comes, holds the deadline.

The protocol's side of it is pure and lives in ``cellgate_kernels.execution``; the queue and the choice of the
kernel belong to ``sessions.session``. This is the shell between them: it owns the waiting and the escalation

    deadline -> interrupt -> grace -> kernel_lost (the session kills and replaces the kernel)
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cellgate.execution.cell_environment import RESTORING, setting
from cellgate.execution.interrupts import CellInterrupts
from cellgate.execution.request import ExecuteRequest, execute_request
from cellgate.execution.results import ResultBuilder
from cellgate.execution.silence import Silence
from cellgate.record.clock import now
from cellgate.record.events import EventLog
from cellgate.record.rows import ExecutionRow
from cellgate.wire.errors import StorageFull
from cellgate_kernels.errors import CellgateError, GatewayFault, InvalidInput, KernelDied
from cellgate_kernels.execution import Execution, Outcome, Status
from cellgate_kernels.kernel import Kernel
from cellgate_kernels.messages import Channel, Message, size_of
from cellgate_kernels.outputs import KernelEvent, OutputCaps, OutputLimiter
from cellgate_kernels.tasks import Supervisor

logger = logging.getLogger(__name__)

END_OF_FILE = "\x04"
# ipykernel loses its reply when a KeyboardInterrupt hits it outside the cell's own code; seconds after idle.
LOST_REPLY = 0.5
DRAIN_INTERVAL = 0.1
OUTPUT_REST = 0.01
"""How long the output of a cell that nobody watches may wait for its end: one wake-up instead of six."""


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """Bounds of one execution; durations in seconds.

    `interrupt_grace`: from the deadline's interrupt to the kill. `settle`: how long the second of
    execute_reply and idle may take without any sign of the kernel, once the first has come.
    """

    caps: OutputCaps
    interrupt_grace: float = 5.0
    settle: float = 5.0


class ExecutionRun:
    """An execution from its request to its recorded end.

    `done` completes when the end is durable. `unwanted` is set once somebody wants it to stop. `gave_up`: its
    kernel still runs it and is of no more use. `broken`: the gateway made a mistake while it ran.
    """

    def __init__(
        self,
        request: ExecuteRequest,
        log: EventLog,
        settings: ExecutionSettings,
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
        self.first_seq = 0
        self.last_seq = 0
        self.created_at = ""
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self.unwanted = asyncio.Event()
        msg_id = uuid.uuid4().hex if request.message is None else request.message.header.msg_id
        limiter = OutputLimiter(settings.caps)
        self.machine = Execution(msg_id, request.code, limiter, allow_stdin=request.allow_stdin)
        self.builder: ResultBuilder | None = ResultBuilder()
        self.waiting_for_input = False
        self.gave_up = False
        self.broken = False
        self.message: str | None = None
        self._status: str | None = None
        self._final_event: dict[str, Any] | None = None
        self._unrecorded = False
        self._interrupts = CellInterrupts(self.machine, silent=request.silent)
        self._now = loop.time
        self._settings = settings
        self._log = log
        self._progress = asyncio.Event()
        self._stdin = list(request.stdin or ())
        self._kernel: Kernel | None = None
        self._deadline: asyncio.Timeout | None = None
        self._silence: Silence | None = None
        self._queued_at = self._now()
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
    def told(self) -> bool:
        """Whether its end is among its events; what it says after that still belongs to it."""
        return self._final_event is not None

    def emit(
        self, event_type: str, fields: Mapping[str, Any], *, withhold: bool = False, size: int = 0
    ) -> dict[str, Any]:
        """Record an event of this execution, of about `size` bytes where that may be many."""
        event = self._log.append(event_type, self.id, fields, withhold=withhold, size=size)
        self.last_seq = event["seq"]
        if self.builder is not None:
            self.builder.apply(event, size)
        return event

    def queued(self, position: int) -> None:
        """Record that the execution waits at `position` (0: it is next)."""
        fields: dict[str, Any] = {"position": position, "code": self.request.code, "msg_id": self.msg_id}
        fields |= {"silent": True} if self.request.silent else {}
        fields |= {} if self.request.store_history else {"store_history": False}
        if self.request.timeout is not None or self.request.message is not None:
            fields["timeout"] = self.timeout
        if self.request.cell_id is not None:
            fields["cell_id"] = self.request.cell_id
        if self.request.env:
            # Names only: values may be secrets, and the record is kept.
            fields["env"] = [name for name, _ in self.request.env]
        fields |= {"idempotency": list(self.idempotency)} if self.idempotency else {}
        event = self.emit("queued", fields, size=len(self.request.code))
        self.first_seq, self.created_at = event["seq"], event["at"]

    def receive(self, message: Message) -> None:
        """Take a message whose parent is this execution's request."""
        self._emit_all(self.machine.receive(message), size_of(message) if message.readable else 0)
        if self._kernel is not None:
            self._interrupts.received(self._kernel)
        # Whoever waits cares for the end only; waking the task for each output would cost more than it.
        if self.machine.finished:
            self._progress.set()
        elif self.machine.replied or self.machine.idle:
            # The cell is over and has no deadline any more; what is missing of its end may not take long.
            if self._deadline is not None and not self._deadline.expired():
                self._deadline.reschedule(None)
            self._silence = self._silence or Silence(self._patience, self._guarded_settle())
            self._silence.heard()

    def _patience(self) -> float:
        return LOST_REPLY if self.machine.idle and self.machine.disturbed else self._settings.settle

    def _guarded_settle(self) -> Callable[[], None]:
        tasks = Supervisor(lambda: {"session": self._log.key}, lambda *_: self.break_off())
        return tasks.guard(self._settle, "end of a cell", execution=self.id)

    def _settle(self) -> None:
        """The rest of the end is lost."""
        self._emit_all(self.machine.settle())
        self._progress.set()

    def _emit_all(self, events: Iterable[KernelEvent], size: int = 0) -> None:
        for event in events:
            try:
                recorded = self.emit(event.type, event.content, size=size)
            except StorageFull:
                # Nothing recorded is lost; what comes while there is no room is, and the result says so.
                self._unrecorded = True
                continue
            if event.type == "started" and self._started_at is None:
                self._started_at = recorded["at"]
            if event.type == "input_request":
                self._answer_from_list()

    def _answer_from_list(self) -> None:
        if self._stdin:
            self._reply_input(self._stdin.pop(0))
        elif self.request.stdin is not None:
            # The caller gave all the lines there are, as a pipe would: input() raises EOFError.
            self._reply_input(END_OF_FILE)
        else:
            self.waiting_for_input = True

    def answer(self, value: str) -> None:
        """Answer the input_request that waits. Raises InvalidInput when none does."""
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
            # Who asked would have read it: this is none that waits for an answer.
            logger.info("An answer was not taken: %s", error.message)

    def interrupt(self, cause: str = "interrupt_requested") -> None:
        """Ask the kernel to stop this cell; the end comes with the kernel's answer."""
        self.machine.interrupt_requested(cause)
        self.unwanted.set()
        if self._kernel is not None:
            self._interrupts.send(self._kernel)

    def interrupt_asked(self) -> None:
        """Somebody sends an interrupt_request of their own."""
        self.machine.interrupt_requested()
        self.unwanted.set()

    def send(self, kernel: Kernel) -> None:
        """Send the cell, which needs nothing before it; `run` then waits for its end."""
        self._kernel, self._sent_at = kernel, self._now()
        try:
            self._send(kernel)
        except KernelDied:
            self.machine.kernel_lost(Status.DIED, "kernel_exit")

    async def run(self, kernel: Kernel) -> None:
        """Run the cell until it ends, by itself or by its deadline. The kernel may be dead afterwards."""
        if self._kernel is None and self.unwanted.is_set():
            self.machine.kernel_lost(Status.CANCELLED, "cancelled")
            return
        kernel.exited.add_done_callback(self._wake)
        try:
            async with asyncio.timeout(self.timeout) as self._deadline:
                if self._kernel is None:
                    await self._begin(kernel)
                if not (self._log.followed or self.request.message is not None):
                    kernel.connection.rest(OUTPUT_REST)
                await self._finished(kernel)
        except TimeoutError:
            await self._escalate(kernel)
        except KernelDied:
            self.machine.kernel_lost(Status.DIED, "kernel_exit")
        finally:
            kernel.exited.remove_done_callback(self._wake)
            if self._silence is not None:
                self._silence.stop()
            self.waiting_for_input = False
            self._kernel = self._deadline = self._silence = None
        if not self.gave_up:
            await self._interrupts.heard(kernel)

    def _wake(self, _: object) -> None:
        self._progress.set()

    async def _begin(self, kernel: Kernel) -> None:
        self._kernel, self._sent_at = kernel, self._now()
        if self.request.env:
            await self._silent(kernel, setting(self.request.env))
        if not self.machine.finished:
            self._send(kernel)

    def _send(self, kernel: Kernel) -> None:
        self.machine.sent()
        kernel.connection.send(execute_request(self.request, kernel.connection.session, self.msg_id))

    async def _finished(self, kernel: Kernel) -> None:
        """Wait for the end."""
        while not self.machine.finished:
            if kernel.exited.done():
                await self._drained()
                if not self.machine.finished:
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
        """The deadline has passed: interrupt, give it the grace, then give the kernel up."""
        self.machine.deadline_passed()
        try:
            self._interrupts.send(kernel)
            async with asyncio.timeout(self._settings.interrupt_grace):
                await self._finished(kernel)
        except (TimeoutError, KernelDied):
            self.gave_up = True
            self.machine.kernel_lost(Status.TIMEOUT, "cell_timeout")

    async def clean_up(self, kernel: Kernel) -> None:
        """Take back the cell's own variables of the environment; bounded by the interrupt's grace."""
        if not self.request.env or not kernel.alive or not (self.machine.replied or self.machine.idle):
            return
        try:
            async with asyncio.timeout(self._settings.interrupt_grace):
                await self._silent(kernel, RESTORING)
        except (TimeoutError, KernelDied):
            kernel.interrupt()

    async def _silent(self, kernel: Kernel, code: str) -> None:
        """Run code of our own that is no cell: silent, not in the history, not in the record.

        Returns early when the execution is ended from outside or the kernel dies.
        """
        content = {"code": code, "silent": True, "store_history": False, "allow_stdin": False}
        lost_before = self.machine.finished
        reply = kernel.connection.ask(Channel.SHELL, "execute_request", content)
        for ended in (reply, kernel.exited):
            ended.add_done_callback(self._wake)
        try:
            while not (reply.done() or kernel.exited.done() or self.machine.finished is not lost_before):
                self._progress.clear()
                await self._progress.wait()
        finally:
            kernel.exited.remove_done_callback(self._wake)
            reply.cancel()

    def finish(self, kernel_state: str, *, replaced: bool) -> dict[str, Any]:
        """Record the end, once, withheld from followers until the caller has made it durable."""
        if self._final_event is None:
            self._final_event = self._record_end(kernel_state, replaced)
        return self._final_event

    def _record_end(self, kernel_state: str, replaced: bool) -> dict[str, Any]:
        outcome = self.machine.outcome()
        ended = self._now()
        sent = self._sent_at if self._sent_at is not None else ended
        error = outcome.error
        texts = () if error is None else (error["ename"], error["evalue"], *error["traceback"])
        size = sum(map(len, texts))
        final = self._final(outcome, sent, ended, kernel_state, replaced)
        return self.emit("finished", final, withhold=True, size=size)

    def _final(
        self, outcome: Outcome, sent: float, ended: float, kernel_state: str, replaced: bool
    ) -> dict[str, Any]:
        return {
            "status": outcome.status,
            "cause": outcome.cause,
            "execution_count": outcome.execution_count,
            "error": outcome.error or self.explanation(outcome.status),
            "started_at": self._started_at,
            "finished_at": now(),
            "duration_ms": round((ended - sent) * 1000, 3),
            "queue_ms": round((sent - self._queued_at) * 1000, 3),
            "truncated": self.machine.limiter.truncated or self._unrecorded,
            "kernel": {"state": kernel_state, "replaced": replaced},
        }

    def explanation(self, status: Status) -> dict[str, Any] | None:
        """What happened, in the form of an error, where the kernel could not say it itself."""
        if status is Status.TIMEOUT:
            said = f"The cell ran longer than its {self.timeout:g} s and did not react to an interrupt."
            return {"ename": "CellTimeout", "evalue": said, "traceback": []}
        if status is Status.DIED:
            return {"ename": "KernelDied", "evalue": self.message or "The kernel ended.", "traceback": []}
        return None

    def row(self, session_id: int, status: str | None) -> ExecutionRow:
        """The execution's row in the index of the record."""
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

    async def wait(self) -> None:
        """Return when the end is durable. Raises StorageError when it can't be made so."""
        await asyncio.shield(self.done)

    def end(self) -> None:
        """The end is durable: tell who waits, and keep no outputs."""
        self.builder = None
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: CellgateError) -> None:
        """The end could not be recorded: tell who waits."""
        self.builder = None
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieved: nobody may be waiting

    def break_off(self) -> None:
        """End it because of a mistake of ours. What its kernel does now nobody knows, unless it had ended."""
        self.broken = True
        if not self.machine.finished:
            self.gave_up = True
            self.message = "The gateway failed at this cell; its log says why."
        self.lose(Status.DIED, GatewayFault.reason)

    def lose(self, status: Status, cause: str) -> None:
        """End it from outside: taken from the queue, or its kernel is taken away."""
        self.machine.kernel_lost(status, cause)
        self.unwanted.set()
        self._progress.set()
