"""What sessions are made of: the settings and the parts that all of them share, and what each one is given.

Values only. ``server.assembly`` builds the first two, once; ``registry`` describes each session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cellgate.channels.client import ChannelSettings
from cellgate.channels.door import Door
from cellgate.egress.shared import Egress
from cellgate.errors import ShuttingDown
from cellgate.execution.cell_record import RunObserver
from cellgate.execution.limits import Ceilings, SessionLimits
from cellgate.execution.run import ExecutionRun, ExecutionSettings
from cellgate.files.workspace import WorkspaceStore
from cellgate.packages.cells import CellPackages
from cellgate.packages.installer import Installer
from cellgate.ports.table import PortCounts, SessionPorts
from cellgate.processes.table import ProcessCounts, SessionProcesses
from cellgate.quotas.usage import Account, Usage
from cellgate.record.rows import SessionRow
from cellgate.record.spill_ledger import SpillLedger
from cellgate.sessions.kernel_slot import SessionKernel
from cellgate.sessions.neighbours import Neighbours
from cellgate.sessions.ownership import Alone, Ownership
from cellgate.sessions.queue import ExecutionQueue, SessionRuns
from cellgate.sessions.secrets import SecretSource
from cellgate.sessions.state import Occupancy, Occupant, SessionRecord, SessionState
from cellgate.sessions.undo import SessionUndo
from cellgate_kernels.base.errors import GatewayFault
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.pool.pool import KernelPool

logger = logging.getLogger(__name__)

MOST_COMMITS = 64
LIMITS = frozenset({"cell_timeout", "out_of_memory", "disk_full", "pids_limit"})
"""Causes of a cell's end that operators look for: a limit was reached."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings shared by all sessions. Durations in seconds."""

    execution: ExecutionSettings
    channels: ChannelSettings
    max_queue: int = 64
    gateway_version: str = ""
    ceilings: Ceilings = field(default_factory=Ceilings)


def everybody(_principal: str) -> bool:
    """Return True: all principals may start sessions."""
    return True


def same_weight(principal: str) -> float:
    """Everybody gets as many turns as the others."""
    return 1.0


class SessionObserver(RunObserver):
    """The reports of sessions and executions, which nobody reads. Overriding methods must be quick."""

    def session_ended(self, cause: str) -> None:
        """Take note that a session has ended."""

    def session_branched(self) -> None:
        """Take note that a session has begun as a branch."""

    def kernel_died(self, cause: str) -> None:
        """Take note that a session's kernel ended on its own, or was killed at a limit."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of the gateway that all sessions use.

    `spilled`: what waits on the disk for clients. Without an `installer`, no session gets packages. `lane`:
    threads for large events; without it they are encoded on the event loop. `weight_of`: a principal's weight
    when kernels are short; see ``cellgate_kernels.base.turns``. `admits`: whether a principal may start
    sessions now. `usage`: what each principal uses; by default nobody has quotas. `observer`: counts and
    traces what happens. Without `secrets` nobody has any, and without `egress` no session gets a network.
    `processes`: how many programs each principal runs; `ports`: how many connections to programs it has.
    `neighbours`: which session has which kernel. `ownership`: which gateway has which session.
    """

    pool: KernelPool
    workspaces: WorkspaceStore
    spilled: SpillLedger
    installer: Installer | None = None
    lane: Lane | None = None
    weight_of: Callable[[str], float] = same_weight
    admits: Callable[[str], bool] = everybody
    usage: Usage = field(default_factory=Usage)
    observer: SessionObserver = field(default_factory=SessionObserver)
    secrets: SecretSource | None = None
    egress: Egress | None = None
    processes: ProcessCounts = field(default_factory=ProcessCounts)
    ports: PortCounts = field(default_factory=PortCounts)
    neighbours: Neighbours = field(default_factory=Neighbours)
    ownership: Ownership = field(default_factory=Alone)


class SessionCore:
    """A session for those that act in it: its parts, and what all check and record. `tasks` end with it."""

    account: Account
    record: SessionRecord
    observer: SessionObserver
    settings: SessionSettings
    tasks: Supervisor
    queue: ExecutionQueue
    runs: SessionRuns
    slot: SessionKernel
    undo: SessionUndo
    door: Door
    processes: SessionProcesses
    ports: SessionPorts
    occupancy: Occupancy
    hooks: tuple[CellPackages, ...]

    def ids(self) -> Mapping[str, object]:
        """Return what a log line names."""
        kernel = None if self.kernel is None else self.kernel.id
        return {"principal": self.account.name, "session": self.row.key, "kernel": kernel}

    @property
    def row(self) -> SessionRow:
        """The session's row in the record."""
        return self.record.row

    @property
    def limits(self) -> SessionLimits:
        """The limits of the session now."""
        return self.record.limits

    @property
    def kernel(self) -> Kernel | None:
        """The current kernel, if any."""
        return self.slot.current

    @property
    def state(self) -> SessionState:
        """The state of the session, as it is shown."""
        if self.record.state is SessionState.IDLE and self.kernel is not None and self.kernel.asleep:
            return SessionState.ASLEEP
        return self.record.state

    @property
    def ending(self) -> bool:
        """Whether the session has started to end."""
        return self.occupancy.has(Occupant.ENDING)

    def report(self, text: str, **more: object) -> None:
        """Log a line for operators: ids and a cause, never what a cell says."""
        logger.info(text, extra={**self.ids(), **more})

    def check_open(self) -> None:
        """Check that the session has not started to end. Raises ShuttingDown."""
        if self.ending:
            raise ShuttingDown("The session is ending")

    def check_recordable(self) -> None:
        """Check that something new may begin. Raises ShuttingDown, StorageError, PrincipalQuotaExceeded."""
        self.check_open()
        self.record.check_writable()
        if self.row.principal:
            self.account.check_record()

    def check_room(self, room: int) -> None:
        """Check that a new cell may be queued. Raises QueueFull, and as `check_recordable`."""
        self.check_open()
        self.queue.check_room(room)
        self.check_recordable()

    async def finish(self, run: ExecutionRun) -> None:
        """Record the end; followers and those that wait are notified once it is durable.

        A Jupyter client already knows by then, as the protocol has it, so its next cell need not wait.
        """
        if run.end.event is None:
            self.undo.cell_ended(began=run.was_sent)
        ends_it = self.record.state is SessionState.BUSY and run is self.runs.current
        event = run.finish(SessionState.IDLE if ends_it else self.record.state)
        if event["cause"] in LIMITS:
            self.report("A limit ended a cell", execution=run.id, cause=event["cause"])
        self.record.finished(event)
        run.record.save(event["status"])
        self.runs.remember(run)
        if run.request.message is None:
            await run.end.commit()
            return
        self.door.finished(run)
        if len(self.tasks) > MOST_COMMITS:
            await run.end.commit()
        else:
            self.tasks.start(run.end.commit(), f"commit {run.id}", execution=run.id)

    def finish_later(self, run: ExecutionRun) -> None:
        """Record the end in a task of its own."""
        self.tasks.start(
            self.finish(run), f"finish {run.id}", lambda _: run.end.fail(GatewayFault()), execution=run.id
        )

    async def finish_cancelled(self, run: ExecutionRun) -> None:
        """Record the end of one that did not run; who waits for it is told in any case."""
        try:
            await self.finish(run)
        except BaseException:
            run.end.fail(GatewayFault())
            raise
