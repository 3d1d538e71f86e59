"""One running kernel: ready when handed out, ended for good.

A kernel is never restarted in place: a new one comes from ``pool``. ``launcher`` starts kernels, ``forks``
makes kernels from kernels, ``adopting`` takes over kernels of a former gateway. A kernel has a
``connection``, and jupyter_client's ``manager``, which ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from cellgate_kernels.base.branching import Branched, BranchSpec
from cellgate_kernels.base.errors import GatewayFault, KernelDied
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.channels.connection import MOST_RECENT, KernelConnection
from cellgate_kernels.channels.spool import undelivered
from cellgate_kernels.forking.sharing import Outlook, SharedSandbox
from cellgate_kernels.keeper.ports import PortStreams, connect_port
from cellgate_kernels.keeper.programs import Program, ProgramSpec, start_program
from cellgate_kernels.kernel.asleep import Sleep
from cellgate_kernels.kernel.environment import Environment
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.manager import Manager
from cellgate_kernels.kernel.stored import KernelStore
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.launch.base import CellgateProvisioner
from cellgate_kernels.launch.folders import EGRESS
from cellgate_kernels.limits.control_group import ControlGroup
from cellgate_kernels.limits.memory import MemoryGroup
from cellgate_kernels.limits.use_meter import UseMeter
from cellgate_kernels.protocol.messages import Channel, Message
from cellgate_kernels.protocol.unsent import read_last_words
from cellgate_kernels.specs.named_environment import NamedEnvironment


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The description of a kernel. Kernels of one profile are interchangeable until one has been used.

    `secrets`: further environment variables, whose values are neither stored nor shown in errors.
    """

    kernelspec: str
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    egress: bool = False
    """Whether it can connect to a socket that its owner creates in the folder `Kernel.egress`."""
    principal: str = ""
    """The principal whose other kernels may share its container; empty where each has one of its own."""
    workspace: Path | None = None
    """Another kernel's folder in which it works, in a sandbox of its own; None: a folder of its own."""

    @property
    def variables(self) -> dict[str, str]:
        """All environment variables that its owner chose."""
        return {**dict(self.env), **dict(self.secrets)}


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts from the kernel's start: its reply to kernel_info_request, the kernelspec's name for people, its
    ``PYTHONHASHSEED`` (if known), whether it can be branched, and asked (``questions``); the control group of
    its `memory`, if it has one of its own; the `meter` of its sandbox; the environment that an operator has
    `named`, if it has one of these.
    """

    info: Mapping[str, Any]
    display_name: str
    hash_seed: str | None = None
    can_branch: bool = False
    tells_variables: bool = False
    memory: MemoryGroup | None = None
    meter: UseMeter | None = None
    named: NamedEnvironment | None = None


class Forks(Protocol):
    """Makes kernels and checkpoints from kernels; implemented by ``forks``."""

    async def branch(self, parent: Kernel, spec: BranchSpec) -> Kernel:
        """Do what `Kernel.branch` says."""

    async def checkpoint(self, parent: Kernel, anyway: bool) -> HeldFork:
        """Do what `Kernel.checkpoint` says."""


class Kernel:
    """A ready kernel, made by a ``KernelLauncher``. It lives until `shutdown` or until it exits."""

    def __init__(
        self,
        profile: KernelProfile,
        facts: KernelFacts,
        manager: Manager,
        connection: KernelConnection,
        workspace: Path,
        forks: Forks,
        packages: Path | None = None,
        store: KernelStore | None = None,
    ) -> None:
        assert isinstance(manager.provisioner, CellgateProvisioner)
        assert manager.kernel_id is not None
        self.id: str = manager.kernel_id
        self.profile = profile
        self.facts = facts
        self.connection = connection
        self.workspace = workspace
        self.environment: Environment | None = None
        self.packages = packages
        self.branched: Branched | None = None
        """The origin of a branch; None for a kernel that was started."""
        self.provisioner = manager.provisioner
        self.exited: asyncio.Future[KernelExit] = self.provisioner.exited
        """Completed once, when the kernel's process has ended. Shield it when you await it."""
        folders, view = self.provisioner.place
        self.outlook = Outlook(view.workspace, workspace)
        """The kernel's own view of its workspace."""
        self.forking = 0
        """The number of forks of it in progress."""
        self._branches = folders.branches
        self._forks = forks
        self._manager = manager
        self._store = store
        self._tasks = Supervisor(lambda: {"kernel": self.id})
        self._shutdown: asyncio.Task[None] | None = None
        self._sleep: Sleep | None = None
        self._unsent_is_told = False

    @property
    def isolation(self) -> str:
        """The wall between this kernel and the host: ``none``, ``sandbox``, ``container`` or ``gvisor``."""
        return self.provisioner.isolation

    @property
    def has_own_names(self) -> bool:
        """Whether the workspaces' names in its sandbox, such as ``/workspace``, are private to it."""
        return self.outlook.named == self.workspace

    @property
    def image(self) -> Mapping[str, str]:
        """Name and digest of the container image it runs in; empty without one."""
        return self.provisioner.image_used

    @property
    def egress(self) -> Path | None:
        """The folder with the socket of its way to a network; None if it has none."""
        return Path(self._manager.connection_file).parent / EGRESS if self.profile.egress else None

    @property
    def stored(self) -> bool:
        """Whether another gateway could adopt it."""
        return self._store is not None and self.alive

    @property
    def process(self) -> int | None:
        """The id of its first process on this machine, if that is known."""
        return self.provisioner.process

    @property
    def dismissed(self) -> bool:
        """Whether it was shut down, so that its exit is not reported as a death."""
        return self._shutdown is not None

    @property
    def alive(self) -> bool:
        """Whether the process runs and is not being shut down."""
        return self._shutdown is None and not self.exited.done()

    @property
    def asleep(self) -> bool:
        """Whether it is frozen, or about to be; the next message to it wakes it."""
        return self._sleep is not None and not self._sleep.over

    @property
    def shares_sandbox_with(self) -> tuple[str, ...]:
        """The ids of the other live kernels in its sandbox or container: branches, parent, and theirs."""
        sandbox = self.shared_sandbox
        return () if sandbox is None else sandbox.others(self.id)

    @property
    def shares_workspace_with(self) -> tuple[str, ...]:
        """The ids of neighbours that use its workspace too. While there are any, don't move the folder away.

        `discard` removes it with the last of them.
        """
        sandbox = self.shared_sandbox
        return () if sandbox is None else sandbox.others_in(self.workspace, self.id)

    @property
    def _has_sandbox_alone(self) -> bool:
        sandbox = self.shared_sandbox
        return not self.forking and (sandbox is None or not (sandbox.others(self.id) or sandbox.held))

    @property
    def shared_sandbox(self) -> SharedSandbox | None:
        """Its sandbox, once others have been forked in it."""
        sharing = self.provisioner.sharing
        return sharing if isinstance(sharing, SharedSandbox) else None

    def control_group(self, mounts: str | None = None) -> ControlGroup | None:
        """Return its control group, if only this kernel is in it and it may be frozen. Blocks for a moment.

        `mounts`: as ``ControlGroup.of`` takes them.

        Kernels that share a sandbox with others or with held forks have none, and so they don't sleep.
        """
        if not self._has_sandbox_alone or self.provisioner.has_neighbours:
            return None
        # A frozen gVisor no longer answers its engine, so only the gateway, while it runs, could end it.
        process = None if self.isolation == "gvisor" else self.process
        return None if process is None else ControlGroup.of(process, mounts=mounts)

    async def sleep(self, group: ControlGroup, lane: Lane) -> Sleep | None:
        """Freeze it and give its memory back to the system; return its sleep, None if it doesn't sleep then.

        Call it only for an idle kernel. `group` is its `control_group`; `lane`: threads to wait in.
        """
        if self.asleep:
            return self._sleep
        if not self.alive or self.connection.closed or not self._has_sandbox_alone:
            return None
        if self._sleep is not None:
            await self._sleep.close()
        self._sleep = begun = Sleep(group, self.connection, lane)
        if self.facts.meter is not None:
            self.facts.meter.close()
        return begun if await begun.begin() else None

    def is_disturbed(self) -> bool:
        """Return whether it sleeps and must be woken, because a process ended. Blocks for a moment."""
        return self._sleep is not None and self._sleep.is_disturbed()

    def wake(self) -> None:
        """Let it go on if it sleeps."""
        if self._sleep is not None:
            self._sleep.wake()

    async def files_given(self) -> None:
        """Call this after files were put into the workspace, before the first cell."""
        await self.provisioner.files_given()

    def interrupt(self) -> asyncio.Future[Message]:
        """Ask the kernel to interrupt its present work (control channel, interrupt_request).

        Once it has answered and the future is done, the interrupt can't hit anything that runs later.
        """
        return self.connection.ask(Channel.CONTROL, "interrupt_request", {})

    async def branch(self, spec: BranchSpec) -> Kernel:
        """Return a second live kernel with everything that this one has in memory, by a fork of its process.

        The kernel's user calls ``KernelPool.branch`` instead, which counts the new one too. It runs in this
        one's sandbox or container, so it must belong to the same principal (`shares_sandbox_with`). It has an
        id, a connection, a profile and a workspace like every other kernel, and may end before or after its
        parent. `packages` and `egress` are this one's folders. Listeners and masks are not inherited.

        No cell may begin until this has returned; KernelBusy is raised if one runs, which is not disturbed.
        Raises CannotBranch with the obstacles; KernelStartFailed if the branch did not become ready,
        KernelDied if this kernel has ended. Then no branch is left, and this kernel goes on.
        """
        return await self._forks.branch(self, spec)

    async def checkpoint(self, *, anyway: bool = False) -> HeldFork:
        """Keep everything that this kernel has in memory, by a fork of its process that waits.

        For this too, the kernel's user calls the pool's method, ``KernelPool.checkpoint``. `anyway`: in spite
        of obstacles. Let no cell begin until this has returned; KernelBusy is raised if one runs. Raises as
        `branch` does; then nothing is left, and this kernel goes on as before.
        """
        return await self._forks.checkpoint(self, anyway)

    async def start_program(self, spec: ProgramSpec) -> Program:
        """Start a program beside the kernel, in its sandbox; it ends with the kernel at the latest.

        Raises InvalidInput if the program can't start, KernelDied if kernel or keeper is gone.
        """
        path = self._awake_keeper()
        joins: int | None = None
        if self.branched is not None:
            # By default the keeper starts it in the workspace of the sandbox's first kernel.
            spec = replace(spec, folder=f"{self.outlook.workspace}/{spec.folder}")
            if self.outlook.depth and self.shared_sandbox is not None:
                joins = self.shared_sandbox.process_of(self.id)
        return await start_program(path, spec, self.connection.places, joins=joins)

    async def connect_port(self, port: int) -> PortStreams:
        """Connect to a program that listens on a port inside the kernel's sandbox, whoever started it.

        Raises PortUnanswered if no program listens, KernelDied if the kernel is gone or has no keeper.
        """
        return await connect_port(self._awake_keeper(), port)

    def _awake_keeper(self) -> str:
        """Wake the keeper, which sleeps with the kernel, and return its socket. Raises KernelDied."""
        path = self.provisioner.keeper_socket
        if path is None or not self.alive:
            raise KernelDied("The kernel has ended")
        self.wake()
        return path

    async def shutdown(self) -> None:
        """Kill the kernel and remove everything but its workspace folder. Concurrent calls share one end.

        No shutdown_request is sent: ipykernel 7.4 may hang on it, and a used kernel has nothing to save.
        """
        if self._shutdown is None:
            self._shutdown = self._tasks.share(self._end(), f"shutdown {self.id}")
        await outcome(self._shutdown, GatewayFault)

    async def discard(self, *, spared: Collection[Path] = ()) -> None:
        """Shut down, and remove the folders of its packages and its files with all their content.

        The `spared` folders stay, because their content could not be saved elsewhere. Folders that others in
        its sandbox use too are removed with the last of them.
        """
        try:
            await self.shutdown()
        finally:
            sandbox = self.shared_sandbox
            if sandbox is None:
                # Another kernel's folder must not be removed with this one.
                workspace = self.workspace if self.profile.workspace is None else None
                own = [self.packages, self._branches, workspace]
                unused = [folder for folder in own if folder is not None and folder not in spared]
            else:
                left = sandbox.leave_folders(self.id, spared)
                unused = [folder for folder in left if folder != self.profile.workspace]
            await self.provisioner.remove(*unused)

    async def tell_unsent(self) -> bool:
        """Deliver a dead kernel's unsent text once, as messages of cells; return whether it is complete."""
        connection, prefix = self.connection, self.connection.prefix
        if prefix is None:
            return False
        if self._unsent_is_told:
            return True
        self._unsent_is_told = True
        last = connection.last_sent
        # Also of displays, if it kept a spool.
        spooled = await asyncio.to_thread(
            undelivered, Path(prefix).parent, connection.key, tuple(last.recent), MOST_RECENT
        )
        await connection.tell_undelivered(spooled.messages)
        connection.note_received(spooled.messages)
        words = await asyncio.to_thread(read_last_words, prefix, frozenset(last.texts.values()))
        await connection.tell_unsent(words.unsent)
        return words.complete and spooled.complete

    def detach(self) -> None:
        """Close the connection only: the kernel keeps running, for the next gateway to adopt."""
        if self._sleep is not None:
            self._sleep.leave()
        self.connection.close()
        self.provisioner.detach()

    async def _end(self) -> None:
        """Take each step of the end even if the one before failed: a kernel must reach its end."""
        try:
            if self._sleep is not None:
                await self._sleep.close()
            self.connection.close()
        finally:
            try:
                await self._manager.end()
            finally:
                if self._store is not None:
                    self._store.remove(self.id)
