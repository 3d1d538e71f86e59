"""The record of one cell: its events and its row while it runs, and its end until that is durable.

``run`` decides which events are recorded, and when; ``record.events`` keeps the session's events. Observers
are notified of an end here, because only here its commit is timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, structs

from cellgate.errors import StorageError, StorageFull
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.results import ResultBuilder
from cellgate.execution.resumed import RecordedOutputs
from cellgate.quotas.usage import CellPlace
from cellgate.record.events import EventLog
from cellgate.record.rows import ExecutionRow
from cellgate.wire.endings import CELL_TIMEOUT, KERNEL_DIED
from cellgate_kernels.base.errors import CellgateError, GatewayFault
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Status


class RunEnd(Struct, frozen=True, gc=False):
    """The end of an execution for observers: ids and times, never code or output.

    `origin`: the observer's value when the cell was accepted. `run_seconds` is None for a cell that was never
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
    memory_kills: int = 0


class RunObserver:
    """The reports of executions; here they go nowhere. Overriding methods must be quick and raise nothing."""

    def origin(self) -> object:
        """Return the work that the calling task is for, such as a traced request: the `origin` of ends."""
        return None

    def within(self, origin: object) -> AbstractContextManager[object]:
        """Return a context in which the calling task works for `origin`."""
        return nullcontext()

    def ended(self, end: RunEnd) -> None:
        """Take note that an execution has ended; its end is not durable yet."""

    def committed(self, end: RunEnd, seconds: float) -> None:
        """Take note that an end became durable, `seconds` after its commit began, or could not be written."""


def _kills(kernel: Kernel) -> int:
    """Count the processes that were killed at the kernel's limit of memory; 0 where nobody knows."""
    # A read of 15 us from memory: a thread would cost more.
    return 0 if kernel.facts.memory is None else kernel.facts.memory.kills()


@dataclass(slots=True)
class Traffic:
    """The bytes that a session's proxy has sent to hosts and received from them so far."""

    sent: int = 0
    received: int = 0


class _CellUse:
    """Measures what a cell uses. Of kernels that share a sandbox nothing is known: all use it at once."""

    def __init__(self, kernel: Kernel, traffic: Traffic) -> None:
        meter = kernel.facts.meter
        self._meter = meter
        self._before = None if meter is None or kernel.shares_sandbox_with else meter.begin()
        self._traffic = traffic
        self._sent, self._received = traffic.sent, traffic.received

    def end(self, kernel: Kernel) -> dict[str, Any] | None:
        """Return the event's `usage`; None if nothing is known. Call it once."""
        if self._meter is None or self._before is None:
            return None
        use = self._meter.end(self._before)
        if kernel.shares_sandbox_with:
            return None
        sent = received = None
        if self._meter.offline:
            sent, received = self._traffic.sent - self._sent, self._traffic.received - self._received
        usage = {
            "cpu_seconds": use.cpu_seconds,
            "memory_peak": use.memory_peak,
            "disk_written": use.disk_written,
            "network_sent": sent,
            "network_received": received,
        }
        return None if all(value is None for value in usage.values()) else usage


def explain_end(status: Status, timeout: float | None, message: str | None) -> dict[str, Any] | None:
    """Return the error for an end that the kernel could not report itself; None for other ends.

    `timeout` in seconds. `message`: the gateway's own text, if there is one.
    """
    if status is Status.TIMEOUT:
        said = f"The cell ran longer than its {timeout:g} s and did not react to an interrupt."
        return {"ename": CELL_TIMEOUT, "evalue": message or said, "traceback": []}
    if status is Status.DIED:
        return {"ename": KERNEL_DIED, "evalue": message or "The kernel ended.", "traceback": []}
    return None


class CellRecord:
    """A cell's events and row. `builder`: its result so far; None once its end is durable.

    `idempotency`: the key and the hash of its request, if it has a key. `is_partial`: whether output was lost
    because there was no room. `known`: events that are already recorded. `started_at`: when the kernel began.
    """

    def __init__(
        self, log: EventLog, *, execution: str, msg_id: str, number: int, idempotency: tuple[str, str] | None
    ) -> None:
        self.log = log
        self.execution = execution
        self.number = number
        self.idempotency = idempotency
        self.builder: ResultBuilder | None = ResultBuilder()
        self.known: RecordedOutputs | None = None
        self.first_seq = 0
        self.last_seq = 0
        self.created_at = ""
        self.started_at: str | None = None
        self.is_partial = False
        self._msg_id = msg_id
        self._end: Mapping[str, Any] | None = None

    def resume(self, row: ExecutionRow, events: Sequence[Mapping[str, Any]], known: RecordedOutputs) -> None:
        """Continue a record that a former gateway began; events in `known` are not recorded again."""
        self.created_at, self.first_seq, self.last_seq = row.created_at, row.first_seq, events[-1]["seq"]
        self.known = known
        if self.builder is not None:
            for event in events:
                self.builder.apply(event)

    def emit(
        self, event_type: str, fields: Mapping[str, Any], *, withhold: bool = False, size: int = 0
    ) -> Mapping[str, Any]:
        """Record an event of the cell. `size`: its approximate size in bytes, if it may be large."""
        event = None if self.known is None else self.known.meet(event_type, fields)
        if event is None:
            event = self.log.append(event_type, self.execution, fields, withhold=withhold, size=size)
            self.last_seq = event["seq"]
            if self.builder is not None:
                self.builder.apply(event, size)
        if event_type == "started" and self.started_at is None:
            self.started_at = event["at"]
        elif event_type == "finished":
            self._end = event
        return event

    def queued(self, request: ExecuteRequest, timeout: float | None, position: int) -> None:
        """Record that the cell waits at `position` (0: it is next)."""
        fields: dict[str, Any] = {"position": position, "code": request.code, "msg_id": self._msg_id}
        if request.silent:
            fields["silent"] = True
        if not request.store_history:
            fields["store_history"] = False
        if request.timeout is not None or request.message is not None:
            fields["timeout"] = timeout
        if request.cell_id is not None:
            fields["cell_id"] = request.cell_id
        if request.env:
            # Names only: values may be secrets, and the record is kept.
            fields["env"] = [name for name, _ in request.env]
        if self.idempotency is not None:
            fields["idempotency"] = list(self.idempotency)
        event = self.emit("queued", fields, size=len(request.code))
        self.first_seq, self.created_at = event["seq"], event["at"]

    def moved(self, position: int) -> None:
        """Record the number of claims that are ahead of its session's in the line for kernels."""
        fields = {"position": position, "code": "", "msg_id": self._msg_id, "waiting_for": "kernel"}
        # Without room the client gets no position; the room that is left is for the end.
        with suppress(StorageFull):
            self.emit("queued", fields)

    def row(self, session_id: int) -> ExecutionRow:
        """Return the execution's row in the record's index."""
        key, request_hash = self.idempotency or (None, None)
        row = ExecutionRow(
            session_id=session_id,
            id=self.execution,
            number=self.number,
            msg_id=self._msg_id,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            status=None,
            created_at=self.created_at,
            idempotency_key=key,
            request_hash=request_hash,
        )
        # Threads of a cell may print after its end.
        return row if self._end is None else structs.replace(row.ended(self._end), last_seq=self.last_seq)

    def save(self) -> None:
        """Write the execution's row, with its end once that is recorded."""
        self.log.save_execution(self.row(self.log.session_id))


class CellEnd:
    """The end of a cell: recorded once, made durable, then reported to all waiters.

    `done` completes when the end is durable. `event`: the recorded end, None before. `origin`: the observer's
    value when the cell was accepted. `place`: the cell's among its principal's running cells, if it has one.
    `memory_kills`: processes killed at the limit of memory while the cell ran. `usage`: what the session's
    processes used meanwhile, None if nothing is known. `interrupted_by`: the principal who interrupted it,
    if one did and is known. `traffic`: the session's.
    """

    def __init__(self, record: CellRecord, observer: RunObserver, principal: str, traffic: Traffic) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.event: Mapping[str, Any] | None = None
        self.origin = observer.origin()
        self.place: CellPlace | None = None
        self.memory_kills = 0
        self.usage: Mapping[str, Any] | None = None
        self.interrupted_by: str | None = None
        self._kills_before = 0
        self._traffic = traffic
        self._use: _CellUse | None = None
        self._record = record
        self._observer = observer
        self._principal = principal
        self._report: RunEnd | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def attend(self, kernel: Kernel, *, resumed: bool) -> None:
        """Note what this kernel's processes used before the cell, and how many had been killed.

        `resumed`: the cell runs already, so what it has used before can't be told from what others used.
        """
        self._kills_before = _kills(kernel)
        self._use = None if resumed else _CellUse(kernel, self._traffic)

    def leave(self, kernel: Kernel) -> None:
        """Note what was used since `attend`, and the processes killed; none of a kernel that has ended."""
        self.memory_kills = max(0, _kills(kernel) - self._kills_before)
        if self._use is not None:
            self.usage = self._use.end(kernel)
            self._use = None

    def record(
        self, fields: Mapping[str, Any], size: int, kernel: str | None, queued: float, ran: float | None
    ) -> Mapping[str, Any]:
        """Record the end, withheld from followers until `commit`. `fields`: the event's, of `size` bytes.

        `queued`, `ran`: seconds, None for a cell that no kernel got.
        """
        self._leave()
        record = self._record
        self.event = record.emit("finished", fields, withhold=True, size=size)
        whose = self.origin, self._principal, record.log.key, record.execution
        self._report = RunEnd(
            *whose, kernel, fields["status"], fields["cause"], queued, ran, self.memory_kills
        )
        self._observer.ended(self._report)
        return self.event

    def _leave(self) -> None:
        if self.place is not None:
            self.place.leave()

    async def commit(self) -> None:
        """Make the end durable, then notify followers and waiters, even if that failed."""
        assert self.event is not None
        assert self._report is not None
        began = self._loop.time()
        try:
            await self._record.log.release(self.event["seq"])
        except StorageError as error:
            self.fail(error)
        except BaseException:
            self.fail(GatewayFault())
            raise
        else:
            self.complete()
        finally:
            self._observer.committed(self._report, self._loop.time() - began)

    async def wait(self) -> None:
        """Return when the end is durable. Raises StorageError if it can't be made durable."""
        if not self.done.done():
            # Each waiter has its own future, so that cancelling one does not affect the others.
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        self.done.result()

    def complete(self) -> None:
        """Drop the outputs and notify waiters, as the end is durable."""
        self._record.builder = None
        if not self.done.done():
            self.done.set_result(None)
        self._notify_waiters()

    def fail(self, error: CellgateError) -> None:
        """Notify waiters that the end could not be recorded."""
        self._leave()
        self._record.builder = None
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieved: nobody may be waiting
        # In the next loop iteration: the session must see the failure before a waiter continues.
        execution = self._record.execution
        self._loop.call_soon(guarded(self._notify_waiters, "end of a wait", execution=execution))

    def _notify_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
