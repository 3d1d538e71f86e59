"""The parts of sessions: settings and objects that all of them share, and the description of each one.

Values only. ``server.assembly`` builds the first two, once; ``opener`` describes each session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellgate.execution.cell_record import RunObserver
from cellgate.execution.limits import LimitCeilings
from cellgate.ports.table import PortCounts
from cellgate.processes.table import ProcessCounts
from cellgate.quotas.usage import Usage
from cellgate.sessions.neighbours import Neighbours
from cellgate.sessions.ownership import Alone, Ownership
from cellgate_kernels.limits.swap import has_swap

if TYPE_CHECKING:
    from cellgate.channels.client import ChannelSettings
    from cellgate.egress.shared import Egress
    from cellgate.execution.run import ExecutionSettings
    from cellgate.files.former import FormerFolders
    from cellgate.files.workspace import WorkspaceStore
    from cellgate.hook.program import HookProgram
    from cellgate.packages.installer import Installer
    from cellgate.record.spill_ledger import SpillLedger
    from cellgate.sessions.secrets import SecretSource
    from cellgate_kernels.base.threads import Lane
    from cellgate_kernels.pool.pool import KernelPool


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings shared by all sessions. Durations in seconds."""

    execution: ExecutionSettings
    channels: ChannelSettings
    max_queue: int = 64
    gateway_version: str = ""
    ceilings: LimitCeilings = field(default_factory=LimitCeilings)


def everybody(_principal: str) -> bool:
    """Return True: all principals may start sessions."""
    return True


def same_weight(principal: str) -> float:
    """Return 1: all principals get equally many turns."""
    return 1.0


class SessionObserver(RunObserver):
    """The reports of sessions and executions; here they go nowhere. Overriding methods must be quick."""

    def session_ended(self, cause: str) -> None:
        """Take note that a session has ended."""

    def session_branched(self) -> None:
        """Take note that a session has begun as a branch."""

    def kernel_died(self, cause: str) -> None:
        """Take note that a session's kernel ended on its own, or was killed at a limit."""


@dataclass(frozen=True, slots=True)
class SleepWays:
    """How kernels fall asleep. `looks`: threads to look at kernels in; `sleeps`: those that wait for a disk.

    `swap`: returns whether this machine has swap space, in a thread.
    """

    looks: Lane
    sleeps: Lane
    swap: Callable[[], bool] = has_swap


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of the gateway that all sessions use.

    `spilled`: buffers on disk for clients. `installer`: without it, no session gets packages. `lane`: threads
    for large events; without it they are encoded on the event loop. `weight_of`: a principal's weight when
    kernels are short; see ``cellgate_kernels.base.turns``. `admits`: whether a principal may start sessions
    now. `usage`: each principal's use; by default nobody has quotas. `observer`: counts and traces events.
    `secrets`, `egress`: without them, no session gets secrets or a network. `processes`: the number of each
    principal's programs; `ports`: of connections to programs. `neighbours`: the sessions of kernels.
    `ownership`: the gateways of sessions; `former`: their folders, if they share a disk. `sleep`: how idle
    sessions fall asleep instead of ending; without it they end. `hook`: the operator's program that sees all
    cells before they run.
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
    former: FormerFolders | None = None
    sleep: SleepWays | None = None
    hook: HookProgram | None = None
