"""A session: one principal's named, recorded conversation with one kernel at a time.

The session makes its parts and is their face. ``machine`` makes decisions, ``worker`` runs cells,
``replacement`` gets another kernel, ``holds`` lets no cell begin, ``rollbacks`` goes back, ``end`` ends the
session, ``state`` keeps the row, ``channels.door`` serves Jupyter clients. It knows nothing of HTTP or of
other sessions: ``registry`` creates, finds and ends sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from msgspec import UNSET, structs, to_builtins

from cellgate.channels.door import Door
from cellgate.egress.proxy import SessionProxy
from cellgate.errors import ShuttingDown
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun, RunContext
from cellgate.files.workspace import folder_of, snapshots_of
from cellgate.hook.cells import CellHook
from cellgate.packages.cells import CellPackages
from cellgate.packages.session import SessionPackages
from cellgate.ports.table import SessionPorts
from cellgate.processes.request import ProcessRequest
from cellgate.processes.run import ProcessRun
from cellgate.processes.table import SessionProcesses
from cellgate.quotas.usage import Account, CellPlace
from cellgate.record.facts import BRANCHED
from cellgate.sessions.checkpoints import RolledBack
from cellgate.sessions.decisions import machine_of
from cellgate.sessions.end import SessionEnding
from cellgate.sessions.holds import SessionHolds
from cellgate.sessions.hosts import SessionConnections, SessionPortsHost, SessionPrograms
from cellgate.sessions.kernel_slot import KernelCallbacks, Placed, SessionKernel
from cellgate.sessions.machine import Occupant, Step
from cellgate.sessions.model import session_model
from cellgate.sessions.parts import SessionSettings, SharedParts
from cellgate.sessions.queue import AdoptedRuns, ExecutionQueue, SessionRuns
from cellgate.sessions.replacement import KernelReplacement, Moved
from cellgate.sessions.rollbacks import SessionRollbacks
from cellgate.sessions.state import SessionCore, SessionRecord, SessionSpec, SessionState
from cellgate.sessions.undo import SessionUndo
from cellgate.sessions.widgets import WidgetMessages
from cellgate.sessions.worker import SessionFaults, SessionWorker
from cellgate.wire.answers import SessionModel
from cellgate.wire.events import BranchedFrom, Loss
from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.contents import content_of
from cellgate_kernels.protocol.messages import Channel, Message
from cellgate_kernels.protocol.outputs import COMM_EVENTS

LISTENER = "listener"


class Session(SessionCore):
    """A live session. Created by ``registry.SessionRegistry``, over when `end` returns."""

    def __init__(self, spec: SessionSpec, parts: SharedParts, settings: SessionSettings) -> None:
        self.account = parts.usage.account(spec.principal or spec.row.principal)
        """The resources that the session's principal uses, this session included."""
        self.log = spec.log
        self.record = SessionRecord(spec, settings.gateway_version)
        self.door = _door(self, spec, parts, settings)
        self.tasks = Supervisor(self.ids)
        self.observer = parts.observer
        self.settings = settings
        self.widgets = WidgetMessages(spec.log)
        """Records what widgets do outside of cells."""
        self._store = spec.store
        self.machine = machine_of(spec.row.id)
        self.queue = ExecutionQueue()
        self.runs = SessionRuns(
            self.queue,
            RunContext(spec.log, settings.execution, self, parts.observer, self.account.name),
            self.machine,
        )
        self.replacement = KernelReplacement(self)
        self.slot = _slot(self, spec, parts)
        spec.log.overfull = self.slot.hold_back
        self.undo = SessionUndo(
            parts.pool,
            partial(parts.workspaces.snapshots, snapshots_of(spec.row)),
            self.account,
            spec.limits.resources,
            automatic=spec.checkpoints,
        )
        """The checkpoints of the session."""
        self.processes = SessionProcesses(
            SessionPrograms(
                spec.log, spec.store, settings.execution.caps.text, spec.secrets, self.record.begin_idleness
            ),
            parts.processes,
            self.account.name,
            self.ids,
        )
        """The programs beside its kernel."""
        self.ports = SessionPorts(
            SessionPortsHost(spec.log, self._kernel_for_ports, self.record.begin_idleness),
            parts.ports,
            self.account.name,
        )
        """The ports that programs listen on inside its sandbox."""
        self._stop_door: Callable[[], None] | None = None
        self.holds = SessionHolds(self)
        """The holds that keep the kernel in place."""
        self.rollbacks = SessionRollbacks(self, self.holds, self.replacement)
        """Makes checkpoints and goes back to them."""
        self._faults = SessionFaults(
            self, lambda cause: self.begin_end(cause, keep_files=True, keep_kernel=False)
        )
        self.hooks = _hooks(self, parts)
        self.worker = SessionWorker(
            self, self.holds, self.replacement, self.rollbacks.keep, self.rollbacks.go_back, self._faults
        )
        self._end = SessionEnding(self, self.holds, self.worker.stop)
        self.over = self._end.over
        """Done when the session has ended, whoever ended it."""

    @property
    def is_deleted(self) -> bool:
        """Whether the session ends because it was deleted, so that its files may go."""
        return self._end.cause == "deleted"

    @property
    def idle_since(self) -> float | None:
        """The time when the session became idle, by the loop's clock; None while it is in use."""
        step = self.machine.idled(
            packages=bool(self.slot.packages.busy),
            clients=bool(self.door.connections),
            programs=bool(self.processes.busy),
            ports=bool(self.ports.busy),
        )
        return self.record.idle_since if step is Step.IDLE else None

    def to_wire(self) -> SessionModel:
        """Return the session model of the wire contract."""
        model = session_model(
            structs.replace(self.record.present(), state=self.state),
            kernel_id=self.kernel.id if self.kernel else None,
            queue_length=self.runs.waiting,
            problem=self.record.problem,
            missing=self.record.missing,
            neighbours=self.slot.neighbours,
            sharers=self.slot.sharers,
            inherits_paths=self.slot.inherits_paths,
        )
        if self.ending:
            return model
        idle_since = self.idle_since
        sleeps_at = UNSET if self.state is SessionState.ASLEEP else self.record.sleeps_at(idle_since)
        can_sleep = self.record.can_sleep or UNSET
        return structs.replace(
            model, ends=self.record.end(idle_since), sleeps_at=sleeps_at, can_sleep=can_sleep
        )

    async def recorded(self) -> None:
        """Return once all ends that the kernel reported are recorded, or could not be written in time."""
        if ending := self.runs.ending():
            await asyncio.wait(ending, timeout=self.settings.execution.settle)

    def waiting_messages(self) -> list[ExecutionRun]:
        """Return the queued cells of Jupyter clients."""
        return [run for run in self.queue if run.request.message is not None]

    async def open(
        self,
        executions_made: int,
        adopted: Kernel | None = None,
        resumed: AdoptedRuns | None = None,
        *,
        patience: float | None = None,
        moved: Moved | None = None,
        placed: Placed | None = None,
    ) -> None:
        """Claim the first kernel, or continue with an adopted one and the cells that it was sent.
        Waits in line at most `patience` seconds; `moved` gets the position there. `placed`: see
        `SessionKernel.claim`. Raises the pool's errors and StorageError; the session then has no kernel.
        """
        self.replacement.opener = moved
        try:
            claimed = self.slot.claim(patience, placed) if adopted is None else self.slot.adopt(adopted)
            kernel = await claimed
        finally:
            self.replacement.opener = None
        if adopted is None and self.record.loss is not None:
            self.record.loss = structs.replace(self.record.loss, files=self.replacement.files_left)
        try:
            self.record.attached(kernel, self.record.loss)
            self.runs.made = executions_made
            if self.log.last_seq == 0:
                cause = "created"
            elif adopted is None:
                cause = "resumed"
            else:
                cause = "adopted"
            self.record.change(SessionState.IDLE, cause, kernel)
        except BaseException:
            await self.slot.drop()
            raise
        self.report("A session begins", cause=cause)
        if resumed is not None:
            await self._resume(resumed, kernel)
        self.undo.attached()
        self.worker.start()
        self.record.begin_idleness()

    async def _resume(self, resumed: AdoptedRuns, kernel: Kernel) -> None:
        """Record the ends of cells that have ended, and go on with the others."""
        for run in resumed:
            run.host = self
            run.end.place = self.account.adopt_cell()
        for run in resumed.ended:
            await run.run(kernel)
            await self.finish(run)
        self.machine.came(occupant=Occupant.CELL)
        self.runs.current = resumed.current
        for run in resumed.beside:
            self.machine.submitted_beside(turn=True)
            self.worker.begin_beside(run, kernel)

    def begin_as_branch(self, kernel: Kernel, origin: BranchedFrom) -> None:
        """Record the first event and take cells from now on. Raises StorageError."""
        self.record.attached(kernel, None, origin)
        self.record.change(SessionState.IDLE, BRANCHED, kernel)
        if packages := self.slot.packages.models():
            self.log.append("packages", None, {"action": "installed", "packages": to_builtins(packages)})
        self.observer.session_branched()
        self.report("A session begins", cause=BRANCHED)
        self.undo.attached()
        self.worker.start()
        self.record.begin_idleness()

    # The kernel's messages: to the clients, to the widget recorder, and to the run that they answer

    def _attend(self, kernel: Kernel) -> None:
        """Start listening to a kernel before it sends anything."""
        kernel.connection.owner.name = self.account.name
        self._stop_door = None
        self.attend_door(kernel)
        kernel.connection.listen(
            self.widgets, self._sent, room=self.widgets.room, types=COMM_EVENTS, failed=self.listener_failed
        )

    def attend_door(self, kernel: Kernel | None = None) -> None:
        """Let the door listen to the kernel while it has clients."""
        kernel = kernel or self.kernel
        if self.door.has_clients and self._stop_door is None and kernel is not None:
            self._stop_door = kernel.connection.listen(self.door.receive, failed=self.listener_failed)
        elif not self.door.has_clients and self._stop_door is not None:
            self._stop_door()
            self._stop_door = None

    def listener_failed(self, error: Exception) -> None:
        """Give the kernel up after an internal error in handling one of its messages."""
        if self.kernel is not None and not self.kernel.connection.closed:
            self.tasks.tell(LISTENER, error, self._faults.of_listener)

    @property
    def widgets_full(self) -> bool:
        """Whether the session records no more widgets."""
        return self.widgets.full

    def hold_back(self) -> None:
        """Throttle the kernel: output for a client arrives faster than the disk can take it."""
        self.slot.hold_back()

    async def _room(self) -> None:
        """Return once the clients and the record can take more."""
        await self.door.room()
        await self._store.room(self.log.whose)

    def wake(self) -> None:
        """Wake the worker, which has something to do."""
        self.queue.wake()

    def take_loss(self) -> Loss | None:
        """Take the loss; see `SessionRecord.take_loss`."""
        return self.record.take_loss()

    def revive(self) -> None:
        """Get a fresh kernel if there is none; see `KernelReplacement.revive`."""
        self.replacement.revive()

    def _sent(self, message: Message) -> None:
        """Note a message to the kernel: an input_reply lets its cell ask for input again."""
        if message.channel is Channel.STDIN:
            value, mask = content_of(message).get("value"), self.record.masked_text
            for run in self.runs.running:
                run.answered(value, mask)

    def submit(
        self,
        request: ExecuteRequest,
        *,
        idempotency: tuple[str, str] | None = None,
        arrived: float | None = None,
    ) -> ExecutionRun:
        """Queue a cell. Raises QueueFull or ShuttingDown, having changed nothing.

        `arrived`: when the request came, by the loop's clock, if the session had no kernel then.
        """
        timeout = min(request.timeout or self.limits.cell_timeout, self.settings.ceilings.cell_timeout)
        self.check_room(self.settings.max_queue)
        place = self.account.enter(at_once=not self.machine.busy)
        run = self._make_run(request, _capped(self.account, timeout), idempotency, place)
        if arrived is not None:
            run.deadline.deduct(self.slot.waited(arrived))
        return self.worker.begin(run)

    def submit_message(self, request: ExecuteRequest, *, beside: bool) -> ExecutionRun:
        """Queue a Jupyter client's cell, or run it immediately in a subshell. Raises as `submit` does."""
        self.account.begin_request(at_once=True)
        self.check_room(self.settings.channels.max_queue)
        beside = self.machine.asked_beside(wanted=beside, alive=self.slot.alive) is Step.BESIDE
        place = self.account.enter(at_once=beside or not self.machine.busy)
        run = self._make_run(request, _capped(self.account, self.settings.ceilings.cell_timeout), None, place)
        turn = beside and self.machine.submitted_beside(turn=place.running) is Step.BESIDE
        if not turn or self.kernel is None:
            return self.worker.begin(run)
        self.worker.begin_beside(run, self.kernel)
        return run

    def _make_run(
        self,
        request: ExecuteRequest,
        timeout: float | None,
        idempotency: tuple[str, str] | None,
        place: CellPlace,
    ) -> ExecutionRun:
        try:
            run = self.runs.make(request, timeout, idempotency)
        except BaseException:
            place.leave()
            raise
        run.end.place = place
        run.record.save()
        self.record.touch(run.record.created_at)
        return run

    def stop(self, execution: str, cause: str = "cancelled", by: str | None = None) -> None:
        """Remove an execution from the queue, or interrupt it; does nothing if it has ended.

        `by`: the principal who asks for it.
        """
        run = self.runs.find(execution)
        running = run is not None and run in self.runs.running
        step = self.machine.stopped(found=run is not None, running=running)
        if run is not None and step is Step.INTERRUPT:
            run.interrupt("interrupt_requested" if cause == "cancelled" else cause, by)
        elif run is not None:
            self.worker.remove(run, cause)

    def interrupt(self, by: str | None = None) -> None:
        """Interrupt the running cell, the exploration, or a widget's work. `by`: the principal who asks."""
        self.record.touch()
        self.widgets.interrupt()
        self.holds.stop_exploring("interrupt_requested")
        if self.runs.current is not None:
            self.runs.current.interrupt(by=by)

    def interrupt_requested(self) -> None:
        """Note that a client has sent its own interrupt_request to the kernel."""
        self.holds.stop_exploring("interrupt_requested")
        if self.runs.current is not None:
            self.runs.current.interrupt_requested()

    def restart(self) -> asyncio.Future[RolledBack | None]:
        """Replace the kernel: the running cell ends as interrupted, queued ones are cancelled.

        The future is done when there is a fresh kernel with the session's files, or holds the pool's error.
        """
        self.check_open()
        return asyncio.shield(self.holds.restart("kernel_restarted"))

    async def start_process(self, request: ProcessRequest) -> ProcessRun:
        """Start a program beside the kernel; a kernel that is gone is replaced first.

        Raises ShuttingDown, QueueFull, StorageError, PrincipalQuotaExceeded, InvalidInput, KernelDied and the
        pool's errors.
        """
        self.check_recordable()
        if self.machine.kernel_wanted(alive=self.slot.alive) is Step.REPLACE:
            await self.holds.restart(self.record.cause or "kernel_exit")
            self.check_recordable()
        if (kernel := self.kernel) is None:
            raise KernelDied("The session has no kernel for a program now")
        self.record.touch()
        if request.timeout is None and request.waits:
            request = replace(request, timeout=_capped(self.account, self.limits.cell_timeout))
        return await self.processes.start(kernel, request)

    def _kernel_for_ports(self) -> Kernel:
        """Return the kernel whose programs' ports are used. Raises ShuttingDown, KernelDied, StorageError."""
        self.check_recordable()
        if (kernel := self.kernel) is None:
            raise KernelDied("The session has no kernel now, and so no program that listens")
        self.record.touch()
        return kernel

    async def end(self, cause: str, *, keep_files: bool = True, keep_kernel: bool = False) -> None:
        """End the session and, unless it is kept, its kernel; the record stays. All calls share one end.

        Raises StorageError when the end could not be recorded or files could not be kept; even then the
        session has ended.
        """
        ending = self.begin_end(cause, keep_files=keep_files, keep_kernel=keep_kernel)
        await outcome(ending, lambda: ShuttingDown("The gateway is shutting down"))

    def begin_end(self, cause: str, *, keep_files: bool, keep_kernel: bool) -> asyncio.Task[None]:
        """Begin the end that `end` waits for: from this moment on the session is `ending`."""
        return self._end.begin(cause, keep_files=keep_files, keep_kernel=keep_kernel)


def _door(session: Session, spec: SessionSpec, parts: SharedParts, settings: SessionSettings) -> Door:
    """Return the door of a session, for Jupyter's clients."""
    open_space = partial(parts.spilled.open, session.account.name)
    return Door(session, spec.row.key, settings.channels, open_space)


def _slot(session: Session, spec: SessionSpec, parts: SharedParts) -> SessionKernel:
    """Return the place of the session's kernel, which has none yet."""
    callbacks = KernelCallbacks(
        key=spec.row.key,
        secrets=spec.secrets,
        neighbours=parts.neighbours,
        room=session._room,
        attend=session._attend,
        exited=session.tasks.guard(session.replacement.kernel_exited, "death of a kernel"),
        moved=session.replacement.moved,
        claimant=lambda: Claimant(session.account.name, parts.weight_of(session.account.name)),
    )
    files = parts.workspaces.of(folder_of(spec.row))
    packages = SessionPackages(session.account.name, spec.row.id, parts.installer, session.ids)
    return SessionKernel(spec.profile, parts.pool, files, packages, callbacks, _proxy(session, spec, parts))


def _proxy(session: Session, spec: SessionSpec, parts: SharedParts) -> SessionProxy | None:
    """Return the proxy of a session that has a network; None for others."""
    if parts.egress is None or not spec.profile.egress:
        return None
    host = SessionConnections(
        session.record, session.runs, spec.secrets, session.account, session.runs.traffic
    )
    return SessionProxy(parts.egress, session.account.name, host)


def _hooks(session: Session, parts: SharedParts) -> tuple[CellHook | CellPackages, ...]:
    """Return what acts before the session's cells: the operator's hook before all others."""
    hooks: list[CellHook | CellPackages] = []
    if parts.hook is not None:
        hooks.append(CellHook(parts.hook, session, session.account.name))
    if parts.installer is not None:
        hooks.append(CellPackages(session.slot))
    return tuple(hooks)


def _capped(account: Account, timeout: float | None) -> float | None:
    """Return a cell's timeout, or the principal's present ceiling if it is lower."""
    limits = [each for each in (timeout, account.quotas.max_cell_timeout) if each is not None]
    return min(limits, default=None)
