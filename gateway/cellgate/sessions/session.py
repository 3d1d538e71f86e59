"""A session: one principal's named, recorded conversation with one kernel at a time.

It owns the kernel, the FIFO of executions and the one task that works through it. It knows nothing of HTTP or
of other sessions: ``registry`` creates, finds and ends sessions, ``execution.run`` runs a single cell,
``state`` keeps the row, ``channels.door`` serves Jupyter clients. A kernel that is gone is replaced by a
fresh one from the pool; the loss of its variables is an event in the record, and cells that were queued for
it are cancelled.

An internal error in one of the session's tasks ends what the session was doing, with a cause, and the session
continues with a fresh worker; after more than `MOST_FAULTS` errors with no cell completed in between, the
session ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET, structs, to_builtins

from cellgate.channels.door import Door
from cellgate.egress.proxy import SessionProxy
from cellgate.errors import Conflict, NotRecorded, ShuttingDown
from cellgate.execution.limits import SessionLimits, check_seconds
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun, RunContext
from cellgate.files.workspace import folder_of, snapshots_of
from cellgate.packages.cells import CellPackages
from cellgate.packages.session import SessionPackages
from cellgate.ports.table import SessionPorts
from cellgate.processes.request import ProcessRequest
from cellgate.processes.run import ProcessRun
from cellgate.processes.table import SessionProcesses
from cellgate.quotas.usage import CellPlace
from cellgate.record.facts import BRANCHED
from cellgate.record.rows import SessionRow
from cellgate.sessions.checkpoints import Checkpoint, Position, RolledBack
from cellgate.sessions.copied_cell import copied
from cellgate.sessions.hosts import SessionConnections, SessionPortsHost, SessionPrograms
from cellgate.sessions.kernel_slot import KernelCallbacks, SessionKernel
from cellgate.sessions.model import session_model
from cellgate.sessions.parts import SessionSettings, SessionSpec, SharedParts
from cellgate.sessions.queue import ExecutionQueue, Restart, SessionRuns
from cellgate.sessions.state import Act, Occupancy, Occupant, SessionRecord, SessionState
from cellgate.sessions.undo import SessionUndo
from cellgate.sessions.widgets import WidgetMessages
from cellgate.wire.answers import SessionModel
from cellgate.wire.events import BranchedFrom, Loss
from cellgate_kernels.base.errors import (
    CellgateError,
    DeadlinePassed,
    GatewayFault,
    InvalidInput,
    KernelBusy,
    KernelDied,
    in_words,
)
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.protocol.messages import Channel, Message
from cellgate_kernels.protocol.outputs import COMM_EVENTS

T = TypeVar("T")

logger = logging.getLogger(__name__)

END_PATIENCE = 2.0
MOST_REVIVALS = 5
MOST_COMMITS = 64
MOST_FAULTS = 3
MOST_QUESTIONS = 16
"""Questions to the kernel that wait or are being answered."""
QUESTION_PATIENCE = 10.0
"""Seconds that one waits for others, or for files to be put into place."""

NO_TURN = (
    "The cell's timeout passed while it waited for other cells of its principal, and it did not run:"
    " the quota `running` limits how many run at once."
)
WORKER = "worker"
LISTENER = "listener"
SENDING = "sending a cell"
END = "end"
FAULT = GatewayFault.reason
CHOSEN = "chosen"
"""The cause of the state of a session that goes on as one of its alternatives."""
NAMED_BY_EVENT = "at-"
"""What the name of a checkpoint begins with that was made without one."""
ROLLED_BACK = "rolled_back"
"""The cause of what a rollback ends, and of the state after it."""
NO_KERNEL = "no_kernel"
"""The cause of a cell's timeout that passed while the session waited in line for a kernel."""

LIMITS = frozenset({"cell_timeout", "out_of_memory", "disk_full", "pids_limit"})
"""Causes of a cell's end that operators look for: a limit was reached."""


Moved = Callable[[int], None]
"""Is told how many others get a kernel first."""


class Session:
    """A live session. Created by ``registry.SessionManager``, over when `end` returns."""

    def __init__(self, spec: SessionSpec, parts: SharedParts, settings: SessionSettings) -> None:
        self.account = parts.usage.account(spec.principal or spec.row.principal)
        """What the session's principal uses, this session included."""
        self.log = spec.log
        self.record = SessionRecord(spec, settings.gateway_version)
        self.started = asyncio.get_running_loop().time()
        self.door = Door(self, settings.channels, partial(parts.spilled.open, self.account.name))
        self._tasks = Supervisor(self._ids, self._failed)
        self._widgets = WidgetMessages(spec.log)
        self._store = spec.store
        self._observer = parts.observer
        self._queue = ExecutionQueue()
        self.runs = SessionRuns(
            self._queue, RunContext(spec.log, settings.execution, self, parts.observer, self.account.name)
        )
        self.slot = SessionKernel(
            spec.profile,
            parts.pool,
            parts.workspaces.of(folder_of(spec.row)),
            SessionPackages(self.account.name, spec.row.id, parts.installer, self._ids),
            KernelCallbacks(
                key=spec.row.key,
                secrets=spec.secrets,
                neighbours=parts.neighbours,
                room=self._room,
                attend=self._attend,
                exited=self._tasks.guard(self._kernel_exited, "death of a kernel"),
                moved=self._moved,
                claimant=self._claimant,
            ),
            self._proxy(spec, parts),
        )
        spec.log.overfull = self.slot.hold_back
        self.undo = SessionUndo(
            parts.pool,
            partial(parts.workspaces.snapshots, snapshots_of(spec.row)),
            self.account,
            spec.limits.resources,
            automatic=spec.checkpoints,
        )
        """What it can go back to."""
        self.processes = SessionProcesses(
            SessionPrograms(
                spec.log, spec.store, settings.execution.caps.text, spec.secrets, self.record.begin_idleness
            ),
            parts.processes,
            self.account.name,
            self._ids,
        )
        """The programs beside its kernel."""
        self.ports = SessionPorts(
            SessionPortsHost(spec.log, self._kernel_for_ports, self.record.begin_idleness),
            parts.ports,
            self.account.name,
        )
        """The ports that programs listen on inside its sandbox."""
        self._stop_door: Callable[[], None] | None = None
        # Hooks that run before a cell is sent and after it has ended.
        self._hooks: tuple[CellPackages, ...] = ()
        if parts.installer is not None:
            self._hooks = (CellPackages(self.slot),)
        self._settings = settings
        self._recorded = bool(spec.row.principal)
        self._weight_of = parts.weight_of
        self._now = asyncio.get_running_loop().time
        self._worker: asyncio.Task[None] | None = None
        self._revivals = 0
        self._faults = 0
        self._replacing = False
        # How many branches are being made of it, and whether it is explored: as long, its cells wait.
        self._holds = 0
        self._questions: set[asyncio.Task[Any]] = set()
        # Stops the exploration, if there is one.
        self._stop_exploring: Callable[[str], None] | None = None
        self.transient = False
        """Whether it ends with its first cell, so that a kernel that is given up is not replaced."""
        # The first queued execution and its timer, while the session waits for a kernel that a restart wants.
        self._watched: tuple[ExecutionRun, asyncio.TimerHandle, float] | None = None
        # Until an execution has announced it.
        self._loss = spec.loss
        self._quiet = asyncio.Event()
        self._end: asyncio.Task[None] | None = None
        self._end_cause: str | None = None
        self._unfit: CellgateError | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the session has ended, whoever ended it."""
        # Told the position in line for the first kernel: there is no execution yet to tell it.
        self._opener: Moved | None = None
        self.occupancy = Occupancy(
            {
                Occupant.CELL: lambda: self.runs.current is not None,
                Occupant.BESIDE: lambda: self.runs.busy_beside,
                Occupant.QUEUED: lambda: not self._queue.empty,
                Occupant.RESTART: lambda: self._queue.restarting,
                Occupant.REPLACING: lambda: self._replacing,
                Occupant.HELD: lambda: self._holds,
                Occupant.EXPLORED: lambda: self._stop_exploring is not None,
                Occupant.DUE: lambda: self.undo.due,
                Occupant.CHECKPOINTS: lambda: self.undo.automatic and self.undo.alive,
                Occupant.PACKAGES: lambda: self.slot.packages.busy,
                Occupant.PROGRAMS: lambda: self.processes.busy,
                Occupant.PORTS: lambda: self.ports.busy,
                Occupant.CLIENTS: lambda: self.door.connections,
                Occupant.ENDING: lambda: self._end is not None,
            }
        )

    def _proxy(self, spec: SessionSpec, parts: SharedParts) -> SessionProxy | None:
        """Return the way to a network, for a session that has one."""
        if parts.egress is None or not spec.profile.egress:
            return None
        return SessionProxy(
            parts.egress,
            self.account.name,
            SessionConnections(self.record, self.runs, spec.secrets, self.account),
        )

    @property
    def row(self) -> SessionRow:
        """The session's row in the record."""
        return self.record.row

    @property
    def limits(self) -> SessionLimits:
        """The limits of the session now."""
        return self.record.limits

    @property
    def seconds_left(self) -> float:
        """The seconds that it may still live."""
        return self.limits.lifetime - (self._now() - self.started)

    def let_live(self, seconds: float, most: float) -> None:
        """End it so many seconds from now, however idle it is. Raises InvalidInput.

        `most`: seconds that it may live in all.
        """
        lifetime = check_seconds(seconds, "timeout") + self._now() - self.started
        if lifetime > most:
            raise InvalidInput(f"With this timeout it lives {lifetime:.0f} s, and {most:.0f} are the most")
        self._live(lifetime)

    def let_live_longer(self, seconds: float, most: float) -> None:
        """Let it live longer by `let_live`: never shorter than now, and no longer than it may."""
        lifetime = min(seconds + self._now() - self.started, most)
        if lifetime > self.limits.lifetime:
            self._live(lifetime)

    def _live(self, lifetime: float) -> None:
        self.record.limits = replace(self.limits, lifetime=lifetime, idle_timeout=lifetime)

    @property
    def state(self) -> SessionState:
        """The state of the session, as it is shown."""
        if self.record.state is SessionState.IDLE and self.kernel is not None and self.kernel.asleep:
            return SessionState.ASLEEP
        return self.record.state

    @property
    def kernel(self) -> Kernel | None:
        """The current kernel, if any."""
        return self.slot.current

    def _ids(self) -> Mapping[str, object]:
        kernel = self.kernel.id if self.kernel is not None else None
        return {"principal": self.account.name, "session": self.row.key, "kernel": kernel}

    def _report(self, text: str, **more: object) -> None:
        """A line for operators: ids and a cause, never what a cell says."""
        logger.info(text, extra={**self._ids(), **more})

    @property
    def ending(self) -> bool:
        """Whether the session has started to end."""
        return self._end is not None

    @property
    def is_deleted(self) -> bool:
        """Whether it ends because it was deleted, so that it has no claim to its files."""
        return self._end_cause == "deleted"

    @property
    def idle_since(self) -> float | None:
        """The time when the session became idle, by the loop's clock; None while it is in use."""
        return None if self.occupancy.forbids(Act.IDLE) else self.record.idle_since

    @property
    def queue_length(self) -> int:
        """The number of executions that wait."""
        return len(self._queue)

    def to_wire(self) -> SessionModel:
        """Return the session model of the wire contract."""
        return session_model(
            structs.replace(self.record.present(), state=self.state),
            kernel_id=self.kernel.id if self.kernel else None,
            queue_length=self.queue_length,
            problem=self.record.problem,
            missing=self.record.missing,
            neighbours=self.slot.neighbours,
            sharers=self.slot.sharers,
            inherits_paths=self.slot.inherits_paths,
        )

    async def quiet(self) -> None:
        """Return when no cell is running or queued."""
        while self.runs.busy:
            self._quiet.clear()
            await self._quiet.wait()

    async def recorded(self) -> None:
        """Return when every end that the kernel has reported is recorded, or could not be written in time."""
        if ending := self.runs.ending():
            await asyncio.wait(ending, timeout=self._settings.execution.settle)

    def find(self, execution: str) -> ExecutionRun | None:
        """Return the queued or running execution with this id."""
        return self.runs.find(execution)

    def waiting_messages(self) -> list[ExecutionRun]:
        """Return the queued cells of Jupyter clients."""
        return [run for run in self._queue if run.request.message is not None]

    async def open(
        self,
        executions_made: int,
        adopted: Kernel | None = None,
        running: ExecutionRun | None = None,
        *,
        patience: float | None = None,
        moved: Moved | None = None,
    ) -> None:
        """Claim the first kernel, or continue with an adopted one and its running cell.

        Waits in line for a kernel at most `patience` seconds; `moved` is told the position there. Raises the
        pool's errors and StorageError; the session then has no kernel.
        """
        self._opener = moved
        try:
            kernel = await (self.slot.claim(patience) if adopted is None else self.slot.adopt(adopted))
        finally:
            self._opener = None
        if adopted is None and self._loss is not None:
            self._loss = structs.replace(self._loss, files=self._files_left())
        try:
            self.record.attached(kernel, self._loss)
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
        self._report("A session begins", cause=cause)
        if running is not None:
            running.host = self
            running.end.place = self.account.adopt_cell()
            self.runs.current = running
        self.undo.attached()
        self._start_worker()
        self.record.begin_idleness()

    # Branches

    @asynccontextmanager
    async def held(self, *, explored: bool = False) -> AsyncGenerator[None, None]:
        """Let no cell begin, and leave the kernel where it is, until this ends; what comes in waits.

        `explored`: the caller explores the session, so that its cells wait already. Raises KernelBusy if a
        cell runs or waits or somebody explores it, KernelDied, StorageError, PrincipalQuotaExceeded, and
        ShuttingDown.
        """
        self._check_recordable()
        if not explored:
            self._check_at_rest()
        self._holds += 1
        self.record.touch()
        try:
            async with self.slot.moving:
                yield
        finally:
            self._holds -= 1
            self._queue.wake()

    @contextmanager
    def explored(self, stop: Callable[[str], None]) -> Iterator[None]:
        """Let no cell begin until this ends; what comes in waits. Branches are made of it in between.

        `stop` is called with a cause when the session is interrupted or restarted or ends: the caller is to
        be done soon then. Raises as `held`.
        """
        self._check_recordable()
        self._check_at_rest()
        self._holds += 1
        self._stop_exploring = stop
        self.record.touch()
        self.record.state = SessionState.BUSY
        try:
            yield
        finally:
            self._holds -= 1
            self._stop_exploring = None
            if self.record.state is SessionState.BUSY:
                self.record.state = SessionState.IDLE
            self.record.touch()
            self._queue.wake()

    def _check_at_rest(self) -> None:
        """Raises KernelBusy and KernelDied if it can't be branched, or asked anything, now."""
        occupant = self.occupancy.forbids(Act.HOLD)
        if occupant is Occupant.EXPLORED:
            raise KernelBusy("The session is being explored; wait for the end of that, or interrupt it")
        if occupant is not None:
            raise KernelBusy("The session is in use; try again when no cell runs or waits")
        if not self.slot.alive:
            raise KernelDied("The session's kernel has ended, with all variables; run a cell to get another")

    async def ask(self, question: Callable[[Kernel], Awaitable[T]]) -> T:
        """Return the idle kernel's answer to a question of ``cellgate_kernels.kernel.questions``.

        Cells that come in meanwhile wait. Nothing is recorded. Raises KernelBusy at once if a cell runs or
        waits, and as `question`; KernelDied, and ShuttingDown.
        """
        self.check_open()
        self._check_at_rest()
        if len(self._questions) >= MOST_QUESTIONS:
            raise KernelBusy("Too many questions wait for the session's kernel; ask again later")
        self._holds += 1
        self.record.touch()
        task = self._tasks.share(self._ask(question), "question")
        self._questions.add(task)
        task.add_done_callback(self._asked)
        return await outcome(task, lambda: KernelDied("The session's kernel was given up while it was asked"))

    async def _ask(self, question: Callable[[Kernel], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(QUESTION_PATIENCE):
                await self.slot.moving.acquire()
        except TimeoutError:
            raise KernelBusy("The session is in use; ask again later") from None
        try:
            if self.kernel is None or not self.kernel.alive:
                raise KernelDied("The session's kernel has ended; run a cell to get another")
            return await question(self.kernel)
        finally:
            self.slot.moving.release()

    def _asked(self, task: asyncio.Task[Any]) -> None:
        self._questions.discard(task)
        self._holds -= 1
        self.record.begin_idleness()
        self._queue.wake()

    def _stop_questions(self) -> None:
        """Whoever asked is told that the kernel is given up."""
        for task in self._questions:
            task.cancel()

    def _stop_exploration(self, cause: str) -> None:
        """End the exploration, if there is one."""
        if self._stop_exploring is not None:
            self._stop_exploring(cause)

    def begin_as_branch(self, kernel: Kernel, origin: BranchedFrom) -> None:
        """Record the first event and take cells from now on. Raises StorageError."""
        self.record.attached(kernel, None, origin)
        self.record.change(SessionState.IDLE, BRANCHED, kernel)
        if packages := self.slot.packages.models():
            self.log.append("packages", None, {"action": "installed", "packages": to_builtins(packages)})
        self._observer.session_branched()
        self._report("A session begins", cause=BRANCHED)
        self.undo.attached()
        self._start_worker()
        self.record.begin_idleness()

    # Checkpoints

    async def checkpoint(self, name: str | None, *, anyway: bool) -> Checkpoint:
        """Keep variables and files as they are now, to go back to while the kernel or one made of it lives.

        Without a `name` it is named by the number of the last event. Raises as `held`, Conflict when other
        sessions use the files, and as `SessionUndo.make`; then nothing has changed.
        """
        async with self.held():
            if self.slot.shares_files:
                raise Conflict("Another session uses the same files, so they can't be rolled back")
            assert self.kernel is not None
            at = await self._position()
            name = f"{NAMED_BY_EVENT}{at.seq}" if name is None else name
            point = await self.undo.make(self.kernel, at, name, anyway=anyway)
        self.record.checkpointed(point)
        return point

    async def _position(self) -> Position:
        while self.log.head_seq < self.log.last_seq:
            await self.log.chained()
        return Position(self.log.last_seq, self.undo.cells, self.log.head.hex())

    async def keep_if_due(self) -> None:
        """Make the checkpoint that follows a cell, unless that is done."""
        if self.undo.due:
            await self._keep_automatically()

    async def _keep_automatically(self) -> None:
        """Make the checkpoint that follows a cell, before another one begins."""
        kernel = self.kernel
        if kernel is None or not kernel.alive or self.runs.busy_beside or self.slot.shares_files:
            self.undo.due = False
            return
        self._holds += 1
        try:
            async with self.slot.moving:
                # It may have been made while this waited.
                if self.undo.due:
                    await self.undo.make_automatic(kernel, await self._position())
        finally:
            self._holds -= 1

    def roll_back(self, name: str | None = None) -> asyncio.Future[RolledBack | None]:
        """Go back to the checkpoint of this name, by default the newest.

        The running cell ends as interrupted, queued ones are cancelled. The future is done when the session
        has the kernel and files of then. Raises NotFound, Conflict when other sessions use the files,
        ShuttingDown, StorageError and PrincipalQuotaExceeded, and then nothing has changed.
        """
        return self._begin_rollback(self.undo.find(name))

    def undo_last_cell(self) -> asyncio.Future[RolledBack | None]:
        """Go back to the newest checkpoint from before the last cell. Raises as `roll_back`."""
        return self._begin_rollback(
            self.undo.before_last_cell(sum(run.was_sent for run in self.runs.running))
        )

    def _begin_rollback(self, point: Checkpoint) -> asyncio.Future[RolledBack | None]:
        self._check_recordable()
        if self.slot.shares_files:
            raise Conflict("Another session uses the same files, which a rollback would change for it")
        self.record.touch()
        return asyncio.shield(self._begin_restart(ROLLED_BACK, point))

    async def take_over(self, branch: Session, run: ExecutionRun, *, anyway: bool) -> None:
        """Go on as a branch whose cell has ended: with its variables and files, and the cell in the record.

        The caller explores the session and ends the branch afterwards. Raises as `checkpoint` and `roll_back`
        do, and Conflict if the branch has run other cells too; then the session goes on as before, unless its
        files could not be exchanged.
        """
        async with self.held(explored=True), branch.slot.moving:
            if self.slot.shares_files:
                raise Conflict("Another session uses the same files, which the choice would change for it")
            kernel = branch.kernel
            if kernel is None or not kernel.alive:
                raise KernelDied("The branch's kernel has ended")
            # Somebody may know its key; no cell begins between the fork and the look at its files.
            branch._holds += 1
            try:
                if branch.runs.busy or branch.undo.cells != 1:
                    raise Conflict("The branch has run other cells too")
                at = replace(await self._position(), cells=self.undo.cells + 1)
                point = await self.undo.make_of_branch(kernel, at, anyway=anyway)
            finally:
                branch._holds -= 1
                branch.wake()

        async def tell(_: RolledBack) -> None:
            row = run.record.row(self.row.id, None)
            self.record.finished(await copied(branch.log, row, self.log, self.runs.take_number))
            # Going back to it must not undo the cell that it is made of.
            self.undo.move(point, await self._position())

        try:
            await self._go_on_as(point, CHOSEN, tell)
        except BaseException:
            await self._forget(point)
            raise
        if not self.undo.automatic:
            await self._forget(point)

    async def _forget(self, point: Checkpoint) -> None:
        """End a checkpoint that nobody asked for."""
        try:
            await self.undo.forget(point)
        except CellgateError as error:
            logger.warning("A checkpoint could not be ended: %s", error.message, extra=self._ids())

    async def _roll_back(self, point: Checkpoint) -> RolledBack:
        async def tell(found: RolledBack) -> None:
            self.record.rolled_back(found)

        return await self._go_on_as(point, ROLLED_BACK, tell)

    async def _go_on_as(
        self, point: Checkpoint, cause: str, tell: Callable[[RolledBack], Awaitable[None]]
    ) -> RolledBack:
        """Continue with a kernel made of a checkpoint, and the files as they were; `tell` records what it is.

        To its end, even if the caller is cancelled: what has happened is in the record then. On errors the
        session is as before, or without a kernel.
        """
        return await self._tasks.complete(self._exchange(point, cause, tell), f"{cause} {point.name}")

    async def _exchange(
        self, point: Checkpoint, cause: str, tell: Callable[[RolledBack], Awaitable[None]]
    ) -> RolledBack:
        self._replacing = True
        try:
            found = await self.slot.roll_back(self.undo, point, partial(self.processes.kill, cause))
        except BaseException:
            if self.kernel is None:
                self._kernel_given_up(cause)
                self.record.set(SessionState.DEAD, cause, None)
                self.door.tell("dead")
            raise
        finally:
            self._replacing = False
        self._kernel_given_up(cause)
        try:
            await tell(found)
        finally:
            self.record.attached(found.kernel, self._loss)
            self.record.change(SessionState.IDLE, cause, found.kernel)
            self._report("A session has gone to a checkpoint", cause=cause)
            self.door.kernel_ready(found.kernel)
        return found

    def _kernel_given_up(self, cause: str) -> None:
        """End the programs and ports of a kernel that is given up, and tell its clients."""
        self.processes.lose(cause)
        self.ports.lose()
        self.door.kernel_gone(asked=cause in {"kernel_restarted", ROLLED_BACK, CHOSEN})

    def _start_worker(self) -> None:
        self._worker = self._tasks.start(self._work(), WORKER)

    # Internal errors

    def _failed(self, name: str, error: Exception) -> None:
        """The worker or something it depends on has failed and was logged: end its work and carry on.

        The other tasks are short, and each has its own failure handler that ends whatever waits for it.
        """
        if name not in {WORKER, LISTENER, SENDING}:
            return
        current = self.runs.current
        if name == WORKER and current is not None and current.broken:
            # Ending it failed as well. Its waiters can be told, but the end can't be recorded.
            current.end.fail(GatewayFault())
            self.runs.current = None
        else:
            self._faults += 1
            if current is not None:
                current.break_off()
        self._queue.cancel_all(FAULT)
        self._queue.refuse_restarts(GatewayFault())
        if self._end is not None:
            return
        if self._faults > MOST_FAULTS:
            self.begin_end(FAULT, keep_files=True, keep_kernel=False)
            return
        if name == LISTENER and self.kernel is not None and not self.kernel.connection.closed:
            # A message was lost, so those that follow could be misinterpreted.
            self.kernel.connection.close()
            if current is None or not current.gave_up:
                self._queue.put_restart(FAULT)
        if self._worker is None or self._worker.done():
            self._start_worker()

    # The kernel's messages: to the clients, to the widget recorder, and to the run that they answer

    def _attend(self, kernel: Kernel) -> None:
        """Start listening to a kernel before it sends anything."""
        kernel.connection.owner.name = self.account.name
        self._stop_door = None
        self.attend_door(kernel)
        kernel.connection.listen(
            self._widgets, self._sent, room=self._widgets.room, types=COMM_EVENTS, failed=self.listener_failed
        )

    def attend_door(self, kernel: Kernel | None = None) -> None:
        """Make the door listen to the kernel for as long as it has clients."""
        kernel = kernel or self.kernel
        if self.door.has_clients and self._stop_door is None and kernel is not None:
            self._stop_door = kernel.connection.listen(self.door.receive, failed=self.listener_failed)
        elif not self.door.has_clients and self._stop_door is not None:
            self._stop_door()
            self._stop_door = None

    def listener_failed(self, error: Exception) -> None:
        """A message of the kernel could not be handled because of an internal error."""
        if self.kernel is not None and not self.kernel.connection.closed:
            self._tasks.tell(LISTENER, error)

    @property
    def widgets_full(self) -> bool:
        """Whether the session records no more widgets."""
        return self._widgets.full

    def hold_back(self) -> None:
        """Output for a client arrives faster than the disk can take it."""
        self.slot.hold_back()

    async def _room(self) -> None:
        """Return once the clients and the record can take more."""
        await self.door.room()
        await self._store.room(self.log.whose)

    def wake(self) -> None:
        """The worker has something to do."""
        self._queue.wake()

    def _sent(self, message: Message) -> None:
        """A message is sent to the kernel, by anybody: an input_reply lets its cell ask for input again."""
        if message.channel is Channel.STDIN:
            for run in self.runs.running:
                run.machine.answered()

    def _kernel_exited(self, kernel: Kernel) -> None:
        if not kernel.dismissed:
            self._kernel_died(kernel, kernel.exited.result().cause)
        self._exited(kernel)

    def _kernel_died(self, kernel: Kernel, cause: str) -> None:
        self._observer.kernel_died(cause)
        self._report("A kernel died", kernel=kernel.id, cause=cause)

    def _exited(self, kernel: Kernel) -> None:
        """Record the death of a kernel between cells; one that dies during a cell is handled by the run."""
        if kernel is self.kernel and self.runs.current is None and self._end is None:
            self.record.set(SessionState.DEAD, kernel.exited.result().cause, kernel)
            if self.door.connections:
                self.revive()

    def revive(self) -> None:
        """Get a fresh kernel if there is none, as Jupyter does; only a few times in a row without a cell.

        Not while what was lost can be gone back to: that would end the checkpoints.
        """
        if self.slot.alive:
            return
        occupant = self.occupancy.forbids(Act.REVIVE)
        if occupant is Occupant.CHECKPOINTS:
            self.door.tell("dead")
        elif occupant is None and self._revivals < MOST_REVIVALS:
            self._revivals += 1
            self._queue.put_restart(self.record.cause or "kernel_exit")

    def _claimant(self) -> Claimant:
        return Claimant(self.account.name, self._weight_of(self.account.name))

    # In line for a kernel

    def _moved(self, position: int) -> None:
        """The session's position in line has changed: the execution that the kernel is for tells it."""
        run = self.runs.current
        if run is None or run.machine.finished:
            run = self._queue.first
        if run is not None:
            run.record.moved(position)
        elif self._opener is not None:
            self._opener(position)

    def _watch_first(self) -> None:
        """Let the first queued execution end at its deadline while the session waits in line for a kernel.

        That is so during a restart; otherwise a kernel is claimed for the first execution, with its patience.
        """
        if self._watched is not None and self._watched[0] is self._queue.first:
            return
        self._unwatch()
        first = self._queue.first
        waits = first is not None and not first.deadline.stands_in_line  # else it has a timer of its own
        if self._replacing and self.runs.current is None and first is not None and waits:
            patience = first.deadline.patience
            if patience is not None:
                timer = asyncio.get_running_loop().call_later(
                    patience, self._tasks.guard(self._too_late, "deadline in line", execution=first.id), first
                )
                self._watched = first, timer, self._now()

    def _unwatch(self) -> None:
        """Charge the execution for the time that it was first in line."""
        if self._watched is not None:
            run, timer, since = self._watched
            timer.cancel()
            run.deadline.deduct(self.slot.waited(since))
            self._watched = None

    def _too_late(self, run: ExecutionRun) -> None:
        if self.slot.in_line and run is self._queue.first:
            run.message = DeadlinePassed(run.deadline.timeout or 0.0).message
            self._queue.remove(run, NO_KERNEL, Status.TIMEOUT)
            self._finish_later(run)
            self._watch_first()

    async def _replace_kernel(self, cause: str, patience: float | None = None) -> None:
        """End the kernel, if any, and continue with a fresh one and the same files.

        Waits in line for it at most `patience` seconds.
        """
        self._replacing = True
        self._watch_first()
        self._kernel_given_up(cause)
        try:
            try:
                await self.slot.drop()
            finally:
                self.record.set(SessionState.DEAD, cause, None)
            await self.undo.kernel_replaced(self.slot.workspace)
            kernel = await self.slot.claim(patience)
        except BaseException:
            self.door.tell("dead")
            raise
        finally:
            self._replacing = False
            self._unwatch()
        missing = UNSET if self._loss is None else self._loss.missing
        self._loss = Loss(cause=cause, files=self._files_left(), missing=missing)
        self.record.attached(kernel, self._loss)
        self.record.set(SessionState.IDLE, cause, kernel)
        self.undo.attached()
        self.door.kernel_ready(kernel)

    def _files_left(self) -> str:
        return "kept" if self.slot.has_files else "none"

    def take_loss(self) -> Loss | None:
        """Return the loss of the previous kernel unless an execution has reported it; the caller does."""
        loss, self._loss = self._loss, None
        return loss

    def submit(
        self,
        request: ExecuteRequest,
        *,
        idempotency: tuple[str, str] | None = None,
        arrived: float | None = None,
    ) -> ExecutionRun:
        """Queue a cell. Raises QueueFull or ShuttingDown, in which case nothing has changed.

        `arrived`: when the request came, by the loop's clock, if the session had no kernel then.
        """
        timeout = min(request.timeout or self.limits.cell_timeout, self._settings.ceilings.cell_timeout)
        self._check_room(self._settings.max_queue)
        place = self.account.enter(at_once=not self.runs.busy)
        run = self._make_run(request, self._capped(timeout), idempotency, place)
        if arrived is not None:
            run.deadline.deduct(self.slot.waited(arrived))
        return self._begin_or_queue(run)

    def _capped(self, timeout: float | None) -> float | None:
        """Return a cell's timeout, or the principal's ceiling as it is now, if that is lower."""
        most = self.account.quotas.max_cell_timeout
        if timeout is None or most is None:
            return most if timeout is None else timeout
        return min(timeout, most)

    def submit_message(self, request: ExecuteRequest, *, beside: bool) -> ExecutionRun:
        """Queue a Jupyter client's cell, or run it immediately in a subshell. Raises as `submit` does."""
        self.account.begin_request()
        self._check_room(self._settings.channels.max_queue)
        beside = beside and self.slot.alive and not self.occupancy.forbids(Act.BESIDE)
        place = self.account.enter(at_once=beside or not self.runs.busy)
        run = self._make_run(request, self._capped(self._settings.ceilings.cell_timeout), None, place)
        if not beside or self.kernel is None or not place.running:
            return self._begin_or_queue(run)
        self.runs.begin_beside(run)
        self._tasks.start(
            self._run_beside(run, self.kernel),
            f"subshell {run.id}",
            lambda _: self._break_off_beside(run),
            execution=run.id,
        )
        return run

    def _begin_or_queue(self, run: ExecutionRun) -> ExecutionRun:
        """Queue the run; if nothing is ahead of it, send it now, a loop iteration before the worker would."""
        prepared = run.request.env or self._hooks
        free = self.slot.alive and not self.occupancy.forbids(Act.SEND)
        turn = run.end.place is None or run.end.place.running
        if self.kernel is not None and free and turn and not prepared:
            self.runs.current = run
            self.record.state = SessionState.BUSY
            # The worker has nothing to do until the cell ends or times out; the run wakes it then.
            self._tasks.guard(run.send, SENDING, execution=run.id)(self.kernel)
        else:
            self._queue.put(run)
            self._watch_first()
        return run

    def check_open(self) -> None:
        """Raises ShuttingDown once the session has started to end."""
        if self._end is not None:
            raise ShuttingDown("The session is ending")

    def _check_room(self, room: int) -> None:
        """Raises ShuttingDown, QueueFull, StorageError or PrincipalQuotaExceeded if it takes no new cell."""
        self.check_open()
        self._queue.check_room(room)
        self._check_recordable()

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

    async def known(self, key: str, request_hash: str) -> ExecutionRun | tuple[str, int] | None:
        """Return the execution that was requested with this idempotency key; see `SessionRecord.known`."""
        return await self.record.known(key, request_hash, self.runs.known())

    def stop(self, execution: str, cause: str = "cancelled") -> None:
        """Remove an execution from the queue, or interrupt it; does nothing if it has ended."""
        run = self.find(execution)
        if run is not None and run in self.runs.running:
            run.interrupt("interrupt_requested" if cause == "cancelled" else cause)
        elif run is not None:
            self._queue.remove(run, cause)
            self._finish_later(run)
            self._watch_first()

    def _finish_later(self, run: ExecutionRun) -> None:
        self._tasks.start(
            self._finish(run), f"finish {run.id}", lambda _: run.end.fail(GatewayFault()), execution=run.id
        )

    def interrupt(self) -> None:
        """Interrupt the running cell, if there is one, or the exploration."""
        self.record.touch()
        self._stop_exploration("interrupt_requested")
        if self.runs.current is not None:
            self.runs.current.interrupt()

    def interrupt_requested(self) -> None:
        """A client has sent its own interrupt_request to the kernel."""
        self._stop_exploration("interrupt_requested")
        if self.runs.current is not None:
            self.runs.current.interrupt_requested()

    def answer(self, execution: str, value: str) -> None:
        """Answer the input_request of a running execution. Raises NotFound or InvalidInput."""
        self.runs.answer(execution, value)

    def restart(self) -> asyncio.Future[RolledBack | None]:
        """Replace the kernel: the running cell ends as interrupted, queued ones are cancelled.

        The future is done when there is a fresh kernel with the session's files, or holds the pool's error.
        """
        self.check_open()
        return asyncio.shield(self._begin_restart("kernel_restarted"))

    async def start_process(self, request: ProcessRequest) -> ProcessRun:
        """Start a program beside the kernel; a kernel that is gone is replaced first.

        Raises ShuttingDown, QueueFull, StorageError, PrincipalQuotaExceeded, InvalidInput, KernelDied and the
        pool's errors.
        """
        self._check_recordable()
        if not self.slot.alive:
            await self._begin_restart(self.record.cause or "kernel_exit")
            self._check_recordable()
        if (kernel := self.kernel) is None:
            raise KernelDied("The session has no kernel for a program now")
        self.record.touch()
        if request.timeout is None and request.waits:
            request = replace(request, timeout=self._capped(self.limits.cell_timeout))
        return await self.processes.start(kernel, request)

    def _kernel_for_ports(self) -> Kernel:
        """The kernel in whose sandbox programs listen. Raises ShuttingDown, KernelDied and StorageError."""
        self._check_recordable()
        if (kernel := self.kernel) is None:
            raise KernelDied("The session has no kernel now, and so no program that listens")
        self.record.touch()
        return kernel

    def _check_recordable(self) -> None:
        """Raises ShuttingDown, StorageError or PrincipalQuotaExceeded if nothing new may begin."""
        self.check_open()
        self.record.check_writable()
        if self._recorded:
            self.account.check_record()

    def _begin_restart(
        self, cause: str, point: Checkpoint | None = None
    ) -> asyncio.Future[RolledBack | None]:
        self._stop_exploration(cause)
        self._stop_questions()
        self._queue.cancel_all(cause)
        gave_up = any(self.runs.running)
        self.runs.abandon(cause)
        return self._queue.put_restart(cause, point, insists=gave_up)

    async def _work(self) -> None:
        if self.runs.current is not None and self.runs.current.broken:
            # The previous worker failed at this run.
            await self._wrap_up(self.runs.current)
        while self._end is None:
            if self.undo.due and not self.occupancy.forbids(Act.KEEP):
                await self._keep_automatically()
                continue
            item = self.runs.current or self._next()
            if isinstance(item, Restart):
                await self._do_restart(item)
            elif item is None:
                self._quiet.set()
                await self._queue.wait()
            elif item.machine.finished and item is not self.runs.current:
                await self._finish_cancelled(item)
            else:
                with self._observer.within(item.end.origin):
                    await self._execute(item)

    def _next(self) -> ExecutionRun | Restart | None:
        """Return the next thing to do. A cell waits in the queue until its principal may run one more."""
        if self.occupancy.forbids(Act.TAKE):
            return self._queue.take_cancelled()
        while (item := self._queue.take_urgent()) is None and (run := self._queue.first) is not None:
            if run.deadline.late:
                run.message = NO_TURN
                self._queue.end_first(Status.TIMEOUT, "running_quota")
            elif run.end.place is None or run.end.place.begin(self._queue.wake):
                run.deadline.leave_line()
                return self._queue.take()
            else:
                run.deadline.stand_in_line()
                return None
        return item

    async def _finish_cancelled(self, run: ExecutionRun) -> None:
        try:
            await self._finish(run)
        except BaseException:
            run.end.fail(GatewayFault())
            raise

    async def _do_restart(self, request: Restart) -> None:
        found = None
        try:
            if request.point is None:
                await self._replace_kernel(request.cause)
            else:
                found = await self._roll_back_or_restart(request, request.point)
        except CellgateError as error:
            request.refuse(error)
        except asyncio.CancelledError:
            request.refuse(ShuttingDown("The session has ended"))
            raise
        except BaseException:
            request.refuse(GatewayFault())
            raise
        else:
            request.grant(found)
        self.record.touch()

    async def _roll_back_or_restart(self, request: Restart, point: Checkpoint) -> RolledBack:
        """Roll back; if that fails and the kernel still runs a cell that was given up, replace it."""
        former = self.kernel
        try:
            return await self._roll_back(point)
        except CellgateError:
            if request.insists and self.slot.alive and self.kernel is former:
                await self._replace_kernel(request.cause)
            raise

    async def _execute(self, run: ExecutionRun) -> None:
        already_sent = self.runs.current is run
        self.runs.current = run
        self._revivals = 0
        try:
            if not already_sent:
                self.record.check_writable()
                if not self.slot.alive:
                    since = self._now()
                    await self._replace_kernel(self.record.cause or "kernel_exit", run.deadline.patience)
                    run.deadline.deduct(self.slot.waited(since))
            assert self.kernel is not None
            self.record.state = SessionState.BUSY
            await self._run(run, self.kernel)
        except DeadlinePassed as error:
            run.message = error.message
            run.abandon(Status.TIMEOUT, NO_KERNEL)
        except CellgateError as error:
            run.message = error.message
            run.abandon(Status.DIED, error.reason)
        self.record.note_files(run, map(self.recorded_file, await self.slot.changed_files()))
        await self._wrap_up(run)
        if not run.broken:
            self._faults = 0

    def recorded_file(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields to record of a file's change: its path may have a secret in it."""
        return fields if self.slot.secrets is None else self.slot.secrets.in_names(fields)

    async def _run(self, run: ExecutionRun, kernel: Kernel) -> None:
        for hook in self._hooks:
            await hook.before(run)
        await run.run(kernel)
        if run.request.env:
            await run.clean_up(kernel)
        for hook in self._hooks:
            await hook.after(run)

    async def _wrap_up(self, run: ExecutionRun) -> None:
        """The current execution is over: record its end and, if necessary, get a kernel for the next one."""
        if self._end is None and not run.broken and await self._after_loss(run):
            run.lose(self.take_loss())
        await self._finish(run)
        self.runs.current = None
        if self._end is None and run.broken:
            await self._after_loss(run)
        if self.state is SessionState.BUSY:
            self.record.state = SessionState.IDLE
            self.record.cause = None
        self.record.begin_idleness()
        if self.kernel is not None and self.kernel.exited.done():
            self._exited(self.kernel)
        elif self.kernel is None and self.door.connections:
            self.revive()

    async def _run_beside(self, run: ExecutionRun, kernel: Kernel) -> None:
        """Run a cell in a subshell while others run; if the kernel they share ends, all of them end."""
        await run.run(kernel)
        if run.gave_up and kernel is self.kernel:
            self._begin_restart("kernel_restarted")
        await self._finish(run)
        self.runs.end_beside(run)
        self.record.touch()
        self._quiet.set()

    def _break_off_beside(self, run: ExecutionRun) -> None:
        run.break_off()
        self.runs.end_beside(run)
        self._finish_later(run)
        self._quiet.set()

    async def _after_loss(self, run: ExecutionRun) -> bool:
        """Replace a kernel that was given up at a deadline; a dead one is replaced at the next execution.

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
        if self.kernel.alive:
            self._kernel_died(self.kernel, FAULT if run.broken else "cell_timeout")
        if self.transient:
            return False
        try:
            async with asyncio.timeout(self._settings.execution.interrupt_grace):
                await self._replace_kernel(FAULT if run.broken else "cell_timeout")
        except (TimeoutError, CellgateError) as error:
            logger.warning("Session %s has no kernel for now: %s", self.row.key, in_words(error))
            return False
        return True

    async def _finish(self, run: ExecutionRun) -> None:
        """Record the end; followers and those that wait are notified once it is durable.

        A Jupyter client already knows by then, as the protocol has it, so its next cell need not wait.
        """
        if run.end.event is None:
            self.undo.cell_ended(began=run.was_sent)
        ends_it = self.state is SessionState.BUSY and run is self.runs.current
        event = run.finish(SessionState.IDLE if ends_it else self.record.state)
        if event["cause"] in LIMITS:
            self._report("A limit ended a cell", execution=run.id, cause=event["cause"])
        self.record.finished(event)
        run.record.save(event["status"])
        self.runs.remember(run)
        if run.request.message is None:
            await run.end.commit()
            return
        self.door.finished(run)
        if len(self._tasks) > MOST_COMMITS:
            await run.end.commit()
        else:
            self._tasks.start(run.end.commit(), f"commit {run.id}", execution=run.id)

    # The end

    async def end(self, cause: str, *, keep_files: bool = True, keep_kernel: bool = False) -> None:
        """End the session and, unless it is kept, its kernel; the record stays. All calls share one end.

        Raises StorageError when the end could not be recorded or files could not be kept; even then the
        session has ended.
        """
        ending = self.begin_end(cause, keep_files=keep_files, keep_kernel=keep_kernel)
        await outcome(ending, lambda: ShuttingDown("The gateway is shutting down"))

    def begin_end(self, cause: str, *, keep_files: bool, keep_kernel: bool) -> asyncio.Task[None]:
        """Begin what `end` waits for: from this moment on the session is `ending`."""
        if self._end is None:
            self._end_cause = cause
            work = self._detach() if keep_kernel else self._do_end(cause, keep_files=keep_files)
            self._end = self._tasks.share(work, END)
            self._end.add_done_callback(lambda _: self._is_over())
            self._stop_exploration(cause)
            self._stop_questions()
        return self._end

    def _is_over(self) -> None:
        # However it ended, the key is free for another session, which continues this record.
        self.log.close()
        self.over.set_result(None)

    async def _detach(self) -> None:
        """Leave kernel and record as they are for the gateway that will adopt the kernel."""
        await self._step(self.slot.packages.close())
        await self._step(self.processes.close("gateway_shutdown"))
        await self._step(self.ports.close())
        await self._step(self.undo.close(self.slot.workspace))
        await self._step(self._tasks.cancel())
        self._report("A session is left to the next gateway")
        self._refuse_all(ShuttingDown("The gateway is shutting down; the cell's end will be in the record"))
        await self._step(self.slot.detach())
        await self._step(self.door.close())
        await self._step(self.log.chained())
        self._close_log()

    async def _do_end(self, cause: str, *, keep_files: bool) -> None:
        """Take each step even if an earlier one failed, because a session must always end."""
        self._queue.cancel_all(cause)
        self._queue.wake()
        self.runs.abandon(cause)
        await self._step(self.slot.packages.close())
        await self._step(self._stop_worker())
        if self.runs.current is not None:
            await self._step(self._finish(self.runs.current))
        while (item := self._queue.take()) is not None:
            if isinstance(item, Restart):
                item.refuse(ShuttingDown("The session has ended"))
            else:
                await self._step(self._finish_cancelled(item))
        self._quiet.set()
        await self._step(self.processes.close(cause))
        await self._step(self.ports.close())
        await self._step(self.undo.close(self.slot.workspace if keep_files else None))
        await self._step(self.slot.end(keep_files=keep_files))
        await self._step(self._finish_tasks())
        await self._step(self._record_end(cause))
        self._observer.session_ended(cause)
        self._report("A session has ended", cause=cause)
        self._refuse_all(ShuttingDown("The session has ended"))
        await self._step(self.door.close())
        self._close_log()

    async def _step(self, work: Awaitable[object]) -> None:
        """One step of the end. A failure is logged, and the first one is raised when all steps are done."""
        try:
            await work
        except CellgateError as error:
            logger.error("A session could not end as it should: %s", error.message, extra=self._ids())
            self._unfit = self._unfit or error
        except Exception as error:  # whatever the error, the remaining steps must be taken
            logger.error("A session could not end as it should", exc_info=error, extra=self._ids())
            self._unfit = self._unfit or GatewayFault()

    async def _stop_worker(self) -> None:
        """Give the worker a moment to finish before it is cancelled."""
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=END_PATIENCE)
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _finish_tasks(self) -> None:
        """Let pending ends reach the record; tasks that do not finish in time are cancelled."""
        try:
            async with asyncio.timeout(self._settings.execution.settle):
                await self._tasks.finished()
        except TimeoutError:
            await self._tasks.cancel()

    async def _record_end(self, cause: str) -> None:
        self.record.change(SessionState.ENDED, cause, None)
        try:
            await self.log.commit()
        except NotRecorded as error:
            # Everybody concerned has been told already; the session ends anyway.
            logger.warning("A session's end is not recorded: %s", error.message, extra=self._ids())

    def _refuse_all(self, error: CellgateError) -> None:
        """Let nobody wait forever, even for something that could not be recorded."""
        self._queue.refuse_restarts(error)
        for run in self.runs.known():
            run.end.fail(error)
        self.runs.current = None
        self._quiet.set()

    def _close_log(self) -> None:
        self.log.close()
        if self._unfit is not None:
            raise self._unfit
