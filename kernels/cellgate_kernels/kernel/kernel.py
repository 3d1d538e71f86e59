"""One running kernel: started by a provisioner, ready when handed out, ended for good.

A kernel is never restarted in place: a new one comes from ``pool``. This module knows nothing of sessions or
records. It wraps jupyter_client's AsyncKernelManager, which launches through the provisioner that the
``specs`` catalog names, and provides a ``connection``.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from cellgate_kernels.base.branching import (
    BRANCHES,
    MOST_SEED,
    Branched,
    BranchSpec,
    BranchWorkspace,
    Obstacle,
    ObstacleKind,
)
from cellgate_kernels.base.errors import (
    CannotBranch,
    CellgateError,
    GatewayFault,
    InvalidInput,
    KernelDied,
    KernelStartFailed,
    in_words,
)
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.base.resources import HASH_SEED, ResourceLimits
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.channels.connection import MOST_RECENT, KernelConnection
from cellgate_kernels.channels.readiness import ready
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.channels.spool import undelivered
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import ForkServer, can_fork
from cellgate_kernels.forking.shared_containers import Seat, SharedContainers, Sharers
from cellgate_kernels.forking.sharing import (
    BranchPlace,
    BranchProvisioner,
    Outlook,
    SharedSandbox,
    branch_connection,
    keeper_of,
)
from cellgate_kernels.keeper.ports import PortStreams, connect_port
from cellgate_kernels.keeper.programs import Program, ProgramSpec, end_other_kernels, start_program
from cellgate_kernels.kernel.asleep import Sleep
from cellgate_kernels.kernel.branch_request import FEATURE, Made, Order, ask_for_branch
from cellgate_kernels.kernel.checkpoints import HeldFork
from cellgate_kernels.kernel.environment import Environment, accept, ask
from cellgate_kernels.kernel.held import Held, Origin, tie
from cellgate_kernels.kernel.kept import Kept, keep
from cellgate_kernels.kernel.named import Wanted, fork_with_names
from cellgate_kernels.kernel.questions import FEATURE as TELLS_VARIABLES
from cellgate_kernels.kernel.stored import KernelStore, StoredKernel
from cellgate_kernels.launch.base import CellgateProvisioner, KernelExit, last_words
from cellgate_kernels.launch.folders import EGRESS, LaunchFolders
from cellgate_kernels.limits.control_group import ControlGroup
from cellgate_kernels.limits.disk_watch import DiskWatch
from cellgate_kernels.protocol.kernel_info import known_info
from cellgate_kernels.protocol.masking import Masker
from cellgate_kernels.protocol.messages import Channel, Message
from cellgate_kernels.protocol.unsent import read_last_words
from cellgate_kernels.specs.catalog import KernelspecCatalog

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 15.0
ADOPTION_TIMEOUT = 15.0
ASK_AGAIN = 60.0
"""Seconds before kernels of a profile that did not report their environment are asked again."""


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What a kernel is made of. Two kernels of one profile are interchangeable until one has been used.

    `secrets`: environment variables too, whose values are stored nowhere and shown in no error.
    """

    kernelspec: str
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    egress: bool = False
    """Whether it can connect to a socket that its owner makes in the folder `Kernel.egress`."""
    principal: str = ""
    """Whose other kernels it may share a container with; empty where each has one of its own."""
    workspace: Path | None = None
    """The folder of another kernel that it works in; None where it gets one of its own. Its sandbox or
    container is its own in any case.
    """

    @property
    def variables(self) -> dict[str, str]:
        """All environment variables that its owner chose."""
        return {**dict(self.env), **dict(self.secrets)}


@dataclass(frozen=True, slots=True)
class KernelFolders:
    """Where kernels keep files: `runtime` for sockets (short: see unix(7)), `workspaces` for user files.

    `packages`: where each has a folder that modules can be added to while it runs; None when none has one.
    `leftovers` removes folders that can't be removed at once.
    """

    runtime: Path
    workspaces: Path
    packages: Path | None = None
    leftovers: Leftovers = field(default_factory=Leftovers)


@dataclass(frozen=True, slots=True)
class SharedBackend:
    """What the kernels of one gateway share of their isolation backend: one connection to the container
    engine, which watches their disks too, or a watch of disks, and what forks those that can be forked.

    `containers`: those that hold the kernels of one principal each; None where each kernel has one.
    """

    engine: Engine | None = None
    fork_server: ForkServer | None = None
    containers: SharedContainers | None = None

    def options(self) -> dict[str, object]:
        """Return the options as keywords of a launch."""
        if self.engine is not None:
            return {"engine": self.engine}
        forks = {} if self.fork_server is None else {"fork_server": self.fork_server}
        return {"disk_watch": DiskWatch(), **forks}


class Manager(AsyncKernelManager):
    """jupyter_client's, without the control socket that it opens for a shutdown_request, which is never sent.

    libzmq would read it into memory without any limit, from whatever answers at the socket's path.
    """

    def _connect_control_socket(self) -> None:
        """Leave jupyter_client's control socket closed: the gateway has its own."""


class Kernel:
    """A ready kernel, made by `KernelLauncher.start`. It lives until `shutdown` or until it exits."""

    def __init__(
        self,
        profile: KernelProfile,
        manager: AsyncKernelManager,
        connection: KernelConnection,
        workspace: Path,
        info: Mapping[str, Any],
        environment: Environment | None = None,
        store: KernelStore | None = None,
        packages: Path | None = None,
    ) -> None:
        provisioner = manager.provisioner
        assert isinstance(provisioner, CellgateProvisioner)
        assert manager.kernel_id is not None
        self.id: str = manager.kernel_id
        self.profile = profile
        self.connection = connection
        self.workspace = workspace
        self.info = info
        self.environment = environment
        self.packages = packages
        self.hash_seed: str | None = None
        """The ``PYTHONHASHSEED`` that it was started with, if known."""
        self.can_branch = False
        """Whether it said at its start that it can be branched; see `branch`."""
        self.tells_variables = False
        """Whether it said at its start that it tells of its variables; see ``questions``."""
        self.branched: Branched | None = None
        """How it was branched off; None for a kernel that was started."""
        self.exited: asyncio.Future[KernelExit] = provisioner.exited
        """Completed once, when the kernel's process has ended. Shield it when you await it."""
        folders, view = provisioner.place
        self._outlook = Outlook(view.workspace, workspace)
        self._branches = folders.branches
        self._branch: Callable[[Kernel, BranchSpec], Awaitable[Kernel]] | None = None
        self._checkpoint: Callable[[Kernel, bool], Awaitable[HeldFork]] | None = None
        self._branching = 0
        self._manager = manager
        self._provisioner = provisioner
        self._store = store
        self._tasks = Supervisor(lambda: {"kernel": self.id})
        self._shutdown: asyncio.Task[None] | None = None
        self._sleep: Sleep | None = None
        self._unsent_is_told = False

    @property
    def isolation(self) -> str:
        """The wall between this kernel and the host: ``none``, ``sandbox``, ``container`` or ``gvisor``."""
        return self._provisioner.isolation

    @property
    def has_own_names(self) -> bool:
        """Whether the names that workspaces have in its sandbox, such as ``/workspace``, are of its own."""
        return self._outlook.named == self.workspace

    @property
    def display_name(self) -> str:
        """The kernelspec's name for people."""
        spec = self._manager.kernel_spec
        return spec.display_name if spec is not None else self.profile.kernelspec

    @property
    def image(self) -> Mapping[str, str]:
        """Name and digest of the container image it runs in; empty without one."""
        return self._provisioner.image_used

    @property
    def egress(self) -> Path | None:
        """The folder where it looks for the socket of its way to a network; None if it has none."""
        return Path(self._manager.connection_file).parent / EGRESS if self.profile.egress else None

    @property
    def stored(self) -> bool:
        """Whether another gateway could adopt it."""
        return self._store is not None and self.alive

    @property
    def process(self) -> int | None:
        """The id of its first process on this machine, if that is known."""
        return self._provisioner.process

    @property
    def dismissed(self) -> bool:
        """Whether it was shut down, so that its exit is no death."""
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
        """The ids of the other live kernels in its sandbox or container: its branches, its parent, theirs."""
        sandbox = self._sandbox
        return () if sandbox is None else sandbox.others(self.id)

    @property
    def shares_workspace_with(self) -> tuple[str, ...]:
        """The ids of neighbours that use its workspace too. While there are any, don't move the folder away.

        `discard` removes it with the last of them.
        """
        sandbox = self._sandbox
        return () if sandbox is None else sandbox.others_in(self.workspace, self.id)

    @property
    def _has_sandbox_alone(self) -> bool:
        sandbox = self._sandbox
        return not self._branching and (sandbox is None or not (sandbox.others(self.id) or sandbox.held))

    @property
    def _sandbox(self) -> SharedSandbox | None:
        sharing = self._provisioner.sharing
        return sharing if isinstance(sharing, SharedSandbox) else None

    def control_group(self) -> ControlGroup | None:
        """The control group that it has to itself, if it has one that we may freeze. Blocks for a moment.

        Kernels that share a sandbox with others or with held forks have none, and so they don't sleep.
        """
        if not self._has_sandbox_alone or self._provisioner.has_neighbours:
            return None
        # A frozen gVisor answers its engine no more, so nothing but a gateway could end it, if there is one.
        process = None if self.isolation == "gvisor" else self.process
        return None if process is None else ControlGroup.of(process)

    async def sleep(self, group: ControlGroup, lane: Lane) -> bool:
        """Freeze it and give its memory back to the system; returns whether it sleeps when that is done.

        Only of a kernel that does nothing. `group` is its `control_group`; `lane`: threads to wait in.
        """
        if not self.alive or self.connection.closed or self.asleep:
            return self.asleep
        if not self._has_sandbox_alone:
            return False
        if self._sleep is not None:
            await self._sleep.close()
        self._sleep = Sleep(group, self.connection, lane)
        return await self._sleep.begin()

    def is_disturbed(self) -> bool:
        """Whether it sleeps and must be woken, because a process of it was ended. Blocks for a moment."""
        return self._sleep is not None and self._sleep.is_disturbed()

    def wake(self) -> None:
        """Let it go on if it sleeps."""
        if self._sleep is not None:
            self._sleep.wake()

    async def files_given(self) -> None:
        """Call this after files were put into the workspace, before the first cell."""
        await self._provisioner.files_given()

    def interrupt(self) -> asyncio.Future[Message]:
        """Ask the kernel to interrupt what it runs (control channel, interrupt_request).

        Once it has answered and the future is done, the interrupt can't hit anything that runs later.
        """
        return self.connection.ask(Channel.CONTROL, "interrupt_request", {})

    async def branch(self, spec: BranchSpec) -> Kernel:
        """Return a second live kernel with everything that this one has in memory, by a fork of its process.

        For this one, the kernel's user calls ``KernelPool.branch``, which counts the new one too. It runs in
        this one's sandbox or container, so it must belong to the same principal; `shares_sandbox_with`. It
        has an id, a connection, a profile and a workspace as every other kernel, and ends by itself, in any
        order. `packages` and `egress` are the same folders as this one's. Connections, `listen` and secrets'
        masks are not inherited.

        Don't let a cell begin until this has returned: one that runs is not disturbed, and KernelBusy is
        raised. Raises CannotBranch with what stands in the way; KernelStartFailed when the branch did not
        become ready, KernelDied when this kernel has ended. Then nothing is left of the branch, and this
        kernel goes on as before.
        """
        if self._branch is None:
            raise self._no_branches()
        check_seed(spec)
        with self._forking():
            return await self._branch(self, spec)

    async def checkpoint(self, *, anyway: bool = False) -> HeldFork:
        """Keep everything that this kernel has in memory, by a fork of its process that waits.

        For this one, the kernel's user calls ``KernelPool.checkpoint``. `anyway`: in spite of obstacles.
        Don't let a cell begin until this has returned: one that runs is not disturbed, and KernelBusy is
        raised. Raises as `branch` does; then nothing is left, and this kernel goes on as before.
        """
        if self._checkpoint is None:
            raise self._no_branches()
        with self._forking():
            return await self._checkpoint(self, anyway)

    @contextmanager
    def _forking(self) -> Iterator[None]:
        """Keep it awake while it is forked. Raises CannotBranch or KernelDied if it can't be."""
        if not self.can_branch:
            raise self._no_branches()
        if not self.alive or self.connection.closed:
            raise KernelDied("The kernel has ended")
        self._branching += 1
        try:
            self.wake()
            yield
        finally:
            self._branching -= 1

    def _no_branches(self) -> CannotBranch:
        return CannotBranch((Obstacle(ObstacleKind.KERNEL, self.profile.kernelspec),))

    async def start_program(self, spec: ProgramSpec) -> Program:
        """Start a program beside the kernel, in its sandbox; it ends with the kernel at the latest.

        Raises InvalidInput for one that can't be started, KernelDied when the kernel is gone or has no
        keeper.
        """
        path = self._awake_keeper()
        joins: int | None = None
        if self.branched is not None:
            # The keeper starts it in the workspace of the sandbox's first kernel, unless told otherwise.
            spec = replace(spec, folder=f"{self._outlook.workspace}/{spec.folder}")
            if self._outlook.depth and self._sandbox is not None:
                joins = self._sandbox.process_of(self.id)
        return await start_program(path, spec, self.connection.places, joins=joins)

    async def connect_port(self, port: int) -> PortStreams:
        """Connect to a program that listens on a port inside the kernel's sandbox, whoever started it.

        Raises PortUnanswered when there is none, KernelDied when the kernel is gone or has no keeper.
        """
        return await connect_port(self._awake_keeper(), port)

    def _awake_keeper(self) -> str:
        """Wake the keeper, which sleeps as the kernel does, and return its socket. Raises KernelDied."""
        path = self._provisioner.keeper_socket
        if path is None or not self.alive:
            raise KernelDied("The kernel has ended")
        self.wake()
        return path

    async def shutdown(self) -> None:
        """Kill the kernel and remove everything but its workspace folder. Concurrent calls share one end.

        No shutdown_request is sent: ipykernel 7.4 may hang on it, and a used kernel holds nothing that an
        orderly shutdown would save.
        """
        if self._shutdown is None:
            self._shutdown = self._tasks.share(self._end(), f"shutdown {self.id}")
        await outcome(self._shutdown, GatewayFault)

    async def discard(self, *, spared: Collection[Path] = ()) -> None:
        """Shut down, and remove the folders of its packages and its files with everything left in them.

        The `spared` folders stay, because what is in them could not be saved elsewhere. Folders that
        others in its sandbox use too are removed with the last of them.
        """
        try:
            await self.shutdown()
        finally:
            sandbox = self._sandbox
            if sandbox is None:
                # Another kernel's folder is not this one's to remove.
                workspace = self.workspace if self.profile.workspace is None else None
                own = [self.packages, self._branches, workspace]
                unused = [folder for folder in own if folder is not None and folder not in spared]
            else:
                left = sandbox.leave_folders(self.id, spared)
                unused = [folder for folder in left if folder != self.profile.workspace]
            await self._provisioner.remove(*unused)

    async def tell_unsent(self) -> bool:
        """Deliver what it had written and not sent when it died, as messages of its cells; once.

        Returns whether that is certainly all.
        """
        connection, prefix = self.connection, self.connection.prefix
        if prefix is None:
            return False
        if self._unsent_is_told:
            return True
        self._unsent_is_told = True
        # Also of displays, if it kept a spool.
        spooled = await asyncio.to_thread(
            undelivered, Path(prefix).parent, connection.key, connection.recent, MOST_RECENT
        )
        await connection.tell_undelivered(spooled.messages)
        connection.note_received(spooled.messages)
        words = await asyncio.to_thread(read_last_words, prefix, connection.latest_texts)
        await connection.tell_unsent(words.unsent)
        return words.complete and spooled.complete

    def detach(self) -> None:
        """Close the connection only: the kernel keeps running, for the next gateway to adopt."""
        if self._sleep is not None:
            self._sleep.leave()
        self.connection.close()
        self._provisioner.detach()

    async def remember(self) -> None:
        """Store what the next gateway needs to adopt this kernel, if there is a store."""
        if self._store is None:
            return
        stored = StoredKernel(
            id=self.id,
            identity=self.connection.session,
            kernelspec=self.profile.kernelspec,
            limits=self.profile.limits,
            env=self.profile.env,
            workspace=str(self.workspace),
            runtime=str(Path(self._manager.connection_file).parent),
            info=dict(self.info),
            environment=None if self.environment is None else self.environment.told(),
            provisioner=await self._provisioner.get_provisioner_info(),
            packages=None if self.packages is None else str(self.packages),
            hash_seed=self.hash_seed,
            secrets=tuple(name for name, _ in self.profile.secrets),
            egress=self.profile.egress,
            can_branch=self.can_branch,
            tells_variables=self.tells_variables,
        )
        try:
            await asyncio.to_thread(self._store.save, stored)
        except OSError as error:
            logger.warning("Kernel %s would not survive a crash of the gateway: %s", self.id, in_words(error))

    async def _end(self) -> None:
        """Each step runs even if the one before it failed, because a kernel must reach its end."""
        try:
            if self._sleep is not None:
                await self._sleep.close()
            self.connection.close()
        finally:
            try:
                await _end_manager(self._manager)
            finally:
                if self._store is not None:
                    self._store.remove(self.id)


def check_seed(spec: BranchSpec) -> None:
    """Raises InvalidInput for a seed that not every generator takes."""
    if spec.seed is not None and not 0 <= spec.seed <= MOST_SEED:
        raise InvalidInput(f"A seed is a number from 0 to {MOST_SEED}")


def _thaw(process: int | None) -> None:
    """Let a kernel go on that a gateway put to sleep and left behind when it was killed."""
    group = None if process is None else ControlGroup.of(process)
    if group is not None:
        try:
            group.thaw()
        except OSError as error:
            logger.debug("A kernel's control group can't be written: %s", in_words(error))


def _says_that_it_has(feature: str, told: Mapping[str, Any]) -> bool:
    features = told.get("supported_features")
    return isinstance(features, list) and feature in features


def runtime_name(kernel_id: str) -> str:
    """Return the name of a kernel's runtime folder: short, for the paths of its sockets."""
    return kernel_id[:13]


def _digest(image: Mapping[str, str]) -> str:
    """Return the digest that identifies a kernel's image; empty without one."""
    return image.get("image_digest", "")


async def _end_manager(manager: AsyncKernelManager) -> None:
    """Kill what the manager started; a launch that failed halfway is undone by its provisioner."""
    if manager.provisioner is None:
        return
    # Interrupting first, as jupyter_client's own shutdown does, would open a control socket for nothing.
    try:
        async with asyncio.timeout(SHUTDOWN_TIMEOUT):
            await manager.provisioner.kill()
            await manager.provisioner.wait()
    except TimeoutError:
        logger.error("Kernel %s did not end within %s s of being killed", manager.kernel_id, SHUTDOWN_TIMEOUT)
    except OSError as error:
        logger.error("Kernel %s could not be killed: %s", manager.kernel_id, in_words(error))
    try:
        await manager._async_cleanup_resources()
    except OSError as error:
        logger.error("Not all that kernel %s had could be given back: %s", manager.kernel_id, in_words(error))


class KernelLauncher:
    """Starts kernels of the catalog's kernelspecs and waits until they are ready."""

    def __init__(
        self,
        catalog: KernelspecCatalog,
        folders: KernelFolders,
        *,
        start_timeout: float = 60.0,
        preload: Sequence[str] = (),
        shared: SharedBackend | None = None,
        store: KernelStore | None = None,
        reception: Reception | None = None,
    ) -> None:
        self.catalog = catalog
        self._reception = reception
        self._store = store
        self._folders = folders
        self._start_timeout = start_timeout
        shared = SharedBackend() if shared is None else shared
        self._fork_server = shared.fork_server
        self._containers = shared.containers
        self._backend_options: dict[str, object] = {"leftovers": folders.leftovers, **shared.options()}
        # Read and removed by the bootstrap of Python kernels before user code runs.
        self._preload = {"CELLGATE_PRELOAD": ",".join(preload)} if preload else {}
        # By kernelspec and image digest; None where the kernel is not Python.
        self._environments: dict[tuple[str, str], Environment | None] = {}
        # By whole profile, because clients choose limits: kernels with too little memory to answer must not
        # delay the others.
        self._ask_at: dict[KernelProfile, float] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._tasks = Supervisor()

    def ways(self) -> dict[str, str]:
        """Return how kernels of each kernelspec start now, unless their session needs what can't be forked:
        ``fork`` or ``cold``.
        """
        return {name: "fork" if self.forks(name) else "cold" for name in self.catalog.find_kernel_specs()}

    def forks(self, kernelspec: str) -> bool:
        """Whether kernels of this kernelspec are forked now, unless their session asks for what can't be.

        Raises KernelspecNotFound.
        """
        argv = self.catalog.get_kernel_spec(kernelspec).argv
        if self._containers is not None:
            return can_fork(argv) and self._containers.forks(kernelspec)
        return self._fork_server is not None and self._fork_server.forks(argv)

    def keeps_warm(self, profile: KernelProfile) -> bool:
        """Return whether a kernel of this profile can be started before it is known whose it will be.

        Raises KernelspecNotFound.
        """
        if self._containers is None:
            return True
        argv = self.catalog.get_kernel_spec(profile.kernelspec).argv
        return not (can_fork(argv) and self._containers.forks(profile.kernelspec, profile.limits))

    def placed(self, profile: KernelProfile, principal: str) -> KernelProfile:
        """The profile of a kernel for this principal, which may share a container with others of theirs.

        One with a way to a network does not: all in a container would have it. Raises KernelspecNotFound.
        """
        if not principal or profile.egress or profile.workspace is not None or self.keeps_warm(profile):
            return profile
        return replace(profile, principal=principal)

    def shares_workspaces(self) -> bool:
        """Return whether a kernel can be started in the workspace of another that has a sandbox of its own.

        Kernels that share a container have their files in a folder of that container, as users of their own.
        """
        return self._containers is None

    def containers(self) -> tuple[str, str] | None:
        """Return whether a container is a ``session``'s or a ``principal``'s, and whether the limits are each
        ``kernel``'s or the ``container``'s; None without containers.
        """
        if "engine" not in self._backend_options:
            return None
        if self._containers is None:
            return "session", "kernel"
        return "principal", "container" if self._containers.divides is False else "kernel"

    async def start(self, profile: KernelProfile) -> Kernel:
        """Return a ready kernel: it has answered kernel_info_request and its iopub messages arrive.

        Raises KernelspecNotFound, BackendUnavailable or KernelStartFailed; then nothing is left behind.

        A client's variables can run code in a kernel before it is asked anything. So a kernel with variables
        is never asked for its environment. One without them was asked earlier, or is started first in the
        same place, asked and ended.
        """
        self.catalog.get_kernel_spec(profile.kernelspec)
        if not profile.variables:
            kernel = await self._start(profile)
            await self._ask_elsewhere(kernel)
            return kernel
        await self._learn(profile.kernelspec)
        kernel = await self._start(profile)
        image = _digest(kernel.image)
        if self._knows(profile.kernelspec, image) or not self._may_ask(KernelProfile(profile.kernelspec)):
            return kernel
        # It runs a different image from the kernel that was asked: the tag has moved.
        await self._discard(kernel)
        await self._learn(profile.kernelspec, image)
        return await self._start(profile)

    async def _learn(self, kernelspec: str, image: str | None = None) -> None:
        """Ask a kernel of this kernelspec for its environment, unless one (of `image`, or any) was asked."""
        # Without variables or limits that a client chose.
        profile = KernelProfile(kernelspec)
        async with self._asking.setdefault(kernelspec, asyncio.Lock()):
            if self._knows(kernelspec, image) or not self._may_ask(profile):
                return
            try:
                kernel = await self._start(profile)
            except CellgateError as error:
                self._ask_later(profile)
                logger.warning("No kernel could tell what kernelspec %s has: %s", kernelspec, error.message)
            else:
                await self._discard(kernel)

    async def _ask_elsewhere(self, kernel: Kernel) -> None:
        """Learn the environment of a kernel that was not asked, because neighbours could answer for it."""
        image = _digest(kernel.image)
        if kernel._provisioner.was_alone() or kernel.environment is not None:
            return
        try:
            await self._learn(kernel.profile.kernelspec, image)
        except BaseException:
            await self._discard(kernel)
            raise
        kernel.environment = self._environments.get((kernel.profile.kernelspec, image))

    def _knows(self, kernelspec: str, image: str | None) -> bool:
        if image is not None:
            return (kernelspec, image) in self._environments
        return any(name == kernelspec for name, _ in self._environments)

    def _may_ask(self, profile: KernelProfile) -> bool:
        return time.monotonic() >= self._ask_at.get(profile, 0.0)

    def _ask_later(self, profile: KernelProfile) -> None:
        moment = time.monotonic()
        self._ask_at = {each: at for each, at in self._ask_at.items() if at > moment}
        self._ask_at[profile] = moment + ASK_AGAIN

    async def _discard(self, kernel: Kernel) -> None:
        """End a kernel that was handed to nobody. Returns when it is gone, even if this is cancelled."""
        try:
            await self._tasks.complete(kernel.discard(), f"end {kernel.id}")
        except CellgateError as error:
            logger.warning("Kernel %s did not end cleanly: %s", kernel.id, error)

    async def _start(self, profile: KernelProfile) -> Kernel:
        if profile.workspace is not None and not self.shares_workspaces():
            raise KernelStartFailed(
                "Another session's kernel works in this workspace, and kernels that share a container can't"
                " share one. End the other session first."
            )
        if self._containers is not None and profile.principal:
            sharers = Sharers(profile.principal, profile.kernelspec, profile.limits)
            try:
                return await self._start_in(self._containers, sharers, profile)
            except NotForked as error:
                logger.debug("A kernel gets a container of its own: %s", error.message)
        return await self._start_at(profile, str(uuid.uuid4()))

    async def _start_in(
        self, containers: SharedContainers, sharers: Sharers, profile: KernelProfile
    ) -> Kernel:
        """Return a kernel in a container of its principal. Raises NotForked, and as `start`."""
        kernel_id = str(uuid.uuid4())
        try:
            seat = containers.seat(sharers, kernel_id)
        except OSError as error:
            raise KernelStartFailed(f"The kernel's folders can't be made: {in_words(error)}") from error
        try:
            return await self._start_at(profile, kernel_id, seat)
        except BaseException:
            # Unless there was something to end, which has left by now. The folders have been removed since.
            seat.leave()
            seat.tidy()
            raise

    async def _start_at(self, profile: KernelProfile, kernel_id: str, seat: Seat | None = None) -> Kernel:
        places = self._folders
        if seat is not None:
            places = replace(places, workspaces=seat.workspaces, packages=seat.packages)
        runtime = places.runtime / runtime_name(kernel_id)
        own = places.workspaces / kernel_id if profile.workspace is None else None
        workspace = own or profile.workspace
        assert workspace is not None
        branches = places.workspaces / f"{kernel_id}{BRANCHES}"
        packages = None if places.packages is None else places.packages / kernel_id
        made = [folder for folder in (runtime, own, branches, packages) if folder is not None]
        folders = LaunchFolders(
            runtime,
            workspace,
            owns_workspace=False,
            packages=packages,
            branches=branches,
            elsewhere=None if seat is None else seat.sockets,
        )
        manager = self._manager(profile.kernelspec, runtime)
        try:
            runtime.mkdir(mode=0o700)
            if own is not None:
                own.mkdir(mode=0o700)
            branches.mkdir(mode=0o700)
            if packages is not None:
                # Readable by the user that the kernel runs as, unlike the folder above.
                packages.mkdir()
                packages.chmod(0o755)
            async with asyncio.timeout(self._start_timeout):
                return await self._launch(manager, kernel_id, profile, folders, seat)
        except (TimeoutError, OSError, RuntimeError, ValueError) as error:
            try:
                # Before the kernel ends, because a container's log is removed with it.
                explained = await self._explain(manager, profile, error)
                failure = KernelStartFailed(Masker(profile.secrets).text(explained))
            finally:
                await self._tasks.complete(self._undo(manager, made), f"undo {kernel_id}")
            raise failure from (None if profile.secrets else error)
        except BaseException as error:
            await self._tasks.complete(self._undo(manager, made), f"undo {kernel_id}")
            if isinstance(error, KernelStartFailed) and profile.secrets:
                # It has the last words of the kernel.
                raise KernelStartFailed(Masker(profile.secrets).text(error.message)) from None
            raise

    def _manager(self, kernelspec: str, runtime: Path) -> AsyncKernelManager:
        manager = Manager(
            kernel_name=kernelspec,
            kernel_spec_manager=self.catalog,
            connection_file=str(runtime / "manager.json"),
            transport="ipc",
            autorestart=False,
        )
        # jupyter_client logs a failed start with its stack; we raise an error that says what to do.
        manager.log = logging.getLogger("cellgate.jupyter_client")
        return manager

    async def adopt(
        self,
        stored: StoredKernel,
        attend: Callable[[KernelConnection], None],
        secrets: tuple[tuple[str, str], ...] = (),
    ) -> Kernel:
        """Take over a kernel that an earlier gateway started, with its running cell.

        `secrets`: those of the stored names, with their values as they are now. `attend` is called before the
        connection opens, to listen from the first message on. Once this has returned, it receives everything
        that is sent on iopub, and all branches in its sandbox have ended. Raises KernelStartFailed or
        KernelDied when the kernel or its keeper is not alive or does not answer, BackendUnavailable,
        KernelspecNotFound; then the kernel is ended, but its workspace is left.
        """
        manager = self._manager(stored.kernelspec, Path(stored.runtime))
        manager.kernel_id = stored.id
        spec = self.catalog.get_kernel_spec(stored.kernelspec)
        factory = KernelProvisionerFactory.instance(parent=manager.parent)
        provisioner = factory.create_provisioner_instance(stored.id, spec, parent=manager)
        assert isinstance(provisioner, CellgateProvisioner)
        manager.provisioner = provisioner
        connection: KernelConnection | None = None
        try:
            await provisioner.load_provisioner_info({**stored.provisioner, **self._backend_options})
            await asyncio.to_thread(_thaw, provisioner.process)
            connection = KernelConnection(
                stored.provisioner["connection_info"],
                session=stored.identity,
                kernel_id=stored.id,
                reception=self._reception,
            )
            attend(connection)
            connection.open()
            async with asyncio.timeout(ADOPTION_TIMEOUT):
                # While it runs a cell, a kernel answers only on its control channel.
                await ready(connection, provisioner.exited, Channel.CONTROL)
                if stored.can_branch and provisioner.can_share and provisioner.keeper_socket is not None:
                    # They end with the gateway that knew of them; from here on they have ended.
                    await end_other_kernels(provisioner.keeper_socket)
        except BaseException as error:
            if connection is not None:
                connection.close()
            await self._tasks.complete(self._undo(manager), f"end {stored.id}")
            if isinstance(error, (TimeoutError, RuntimeError)):
                raise KernelStartFailed(f"The kernel does not answer: {in_words(error)}") from error
            raise
        workspace = Path(stored.workspace)
        # Named after the kernel that it was made for.
        others = workspace if workspace.name != stored.id else None
        profile = KernelProfile(
            stored.kernelspec, stored.limits, stored.env, secrets, stored.egress, workspace=others
        )
        kernel = Kernel(
            profile,
            manager,
            connection,
            workspace,
            known_info(stored.info),
            None if stored.environment is None else accept(stored.environment),
            self._store,
            None if stored.packages is None else Path(stored.packages),
        )
        kernel.hash_seed = stored.hash_seed
        kernel.can_branch = stored.can_branch
        kernel.tells_variables = stored.tells_variables
        kernel._branch = self.branch
        kernel._checkpoint = self.checkpoint
        return kernel

    async def branch(self, parent: Kernel, spec: BranchSpec) -> Kernel:
        """See `Kernel.branch`, which has checked that it may be asked for."""
        sandbox = self._sandbox_of(parent)

        async def fork(order: Order) -> Made:
            made = await ask_for_branch(parent.connection, parent.exited, order)
            await self._keep_parent(parent, sandbox, made)
            return made

        def branched(made: Made) -> Branched:
            return Branched(parent.id, spec.workspace, spec.seed, made.overruled, made.children)

        origin = Origin(parent, parent.id, parent.workspace, parent._outlook)
        return await self._forked(spec, sandbox, parent, origin, fork, branched)

    async def restore(self, held: HeldFork, spec: BranchSpec, *, like: Kernel | None = None) -> Kernel:
        """See ``KernelPool.restore``. `like`: the kernel that it is to replace."""
        check_seed(spec)
        assert isinstance(held, Held)
        parent: Kernel = held.origin.kernel if like is None else like
        if parent._sandbox is not held.sandbox:
            raise InvalidInput("The checkpoint is not one of this kernel's sandbox")
        if spec.workspace is BranchWorkspace.SHARED and not parent.workspace.is_dir():
            raise InvalidInput("The kernel's files are gone; ask for a workspace of its own")

        def branched(made: Made) -> Branched:
            return Branched(held.made_of, spec.workspace, spec.seed, held.overruled, checkpoint=held.id)

        return await self._forked(spec, held.sandbox, parent, held.origin, held.make, branched, held.process)

    async def checkpoint(self, parent: Kernel, anyway: bool) -> HeldFork:
        """See `Kernel.checkpoint`, which has checked that it may be asked for."""
        sandbox = self._sandbox_of(parent)
        held_id = str(uuid.uuid4())
        path, inner_path = sandbox.socket_of_held(held_id)
        try:
            order = Order(inner_path, "", anyway=anyway, hold=True)
            made = await ask_for_branch(parent.connection, parent.exited, order)
            # First of all, because it ends when nobody comes.
            tether = await tie(path, self._tasks)
            try:
                await self._keep_parent(parent, sandbox, made)
                kept = await self._keep(sandbox, made, held=True)
            except BaseException:
                tether.close()
                raise
        finally:
            # It may be the kernel's, who knows.
            with suppress(OSError):
                await asyncio.to_thread(Path(path).unlink)
        origin = Origin(parent, parent.id, parent.workspace, parent._outlook)
        return Held(held_id, origin, sandbox, tether, kept, made.overruled, self._tasks)

    def _sandbox_of(self, kernel: Kernel) -> SharedSandbox:
        return kernel._sandbox or SharedSandbox(kernel._provisioner, kernel.workspace, kernel.packages)

    async def _forked(
        self,
        spec: BranchSpec,
        sandbox: SharedSandbox,
        parent: Kernel,
        origin: Origin[Kernel],
        fork: Callable[[Order], Awaitable[Made]],
        branched: Callable[[Made], Branched],
        process: int | None = None,
    ) -> Kernel:
        """Return a ready kernel in the sandbox, as the parent is in all that is not in its memory.

        `origin`: of the process that is forked. `process`: its number there, if it is not the origin's own.
        `fork` makes the new one. On any error nothing is left of it.
        """
        kernel_id = str(uuid.uuid4())
        place = sandbox.place_for(kernel_id)
        if spec.workspace is BranchWorkspace.SHARED:
            place = replace(place, workspace=parent.workspace)
        own = [place.workspace] if spec.workspace is BranchWorkspace.COPY else []
        manager = self._manager(parent.profile.kernelspec, sandbox.folders.runtime)
        manager.kernel_id = kernel_id
        try:
            with sandbox.filling(place.workspace):
                if own:
                    place.workspace.mkdir(mode=0o700)
                    if spec.fill is not None:
                        await spec.fill(place.workspace)
                    await parent._provisioner.branch_files_given()
                forked = sandbox.process_of(origin.id) if process is None else process
                wanted = Wanted(kernel_id, place.workspace, origin.outlook, forked, bool(own))
                info = branch_connection(place)
                order = Order(place.inner_prefix, info["key"].decode(), seed=spec.seed, anyway=spec.anyway)
                try:
                    made, outlook = await fork_with_names(sandbox, wanted, order, fork)
                    joined = await self._joined(parent, sandbox, place, manager, info, made, branched(made))
                except (TimeoutError, OSError, RuntimeError) as error:
                    raise KernelStartFailed(f"The branch did not come up: {in_words(error)}") from error
                joined._outlook = outlook
                return joined
        except BaseException:
            await self._tasks.complete(self._undo(manager, own), f"undo {kernel_id}")
            raise

    async def _joined(
        self,
        parent: Kernel,
        sandbox: SharedSandbox,
        place: BranchPlace,
        manager: AsyncKernelManager,
        info: dict[str, Any],
        made: Made,
        branched: Branched,
    ) -> Kernel:
        """Return the kernel whose process was made."""
        kept = await self._keep(sandbox, made)
        provisioner = BranchProvisioner(
            kernel_id=manager.kernel_id, kernel_spec=manager.kernel_spec, parent=manager
        )
        provisioner.join(sandbox, place, kept, place.workspace, parent.packages)
        manager.provisioner = provisioner
        connection = KernelConnection(info, kernel_id=manager.kernel_id, reception=self._reception)
        try:
            connection.open()
            async with asyncio.timeout(self._start_timeout):
                await ready(connection, provisioner.exited)
        except BaseException:
            connection.close()
            raise
        branch = Kernel(
            parent.profile,
            manager,
            connection,
            place.workspace,
            parent.info,
            parent.environment,
            packages=parent.packages,
        )
        branch.hash_seed = parent.hash_seed
        branch.can_branch = True
        branch.tells_variables = parent.tells_variables
        branch.branched = branched
        branch._branch = self.branch
        branch._checkpoint = self.checkpoint
        return branch

    async def _keep_parent(self, parent: Kernel, sandbox: SharedSandbox, made: Made) -> None:
        """Let the keeper tell of a kernel that was forked, if this was its first fork."""
        if not sandbox.is_kept(parent.id):
            kept = await keep(keeper_of(sandbox.folders), made.parent, self._tasks)
            if sandbox.is_kept(parent.id):
                kept.close()  # by another fork in the meantime
            else:
                sandbox.keep(parent.id, kept)

    async def _keep(self, sandbox: SharedSandbox, made: Made, *, held: bool = False) -> Kept:
        """Let the keeper tell of what was forked."""
        try:
            return await keep(keeper_of(sandbox.folders), made.pid, self._tasks, held=held)
        except InvalidInput as error:
            raise KernelStartFailed("The branch ended at once") from error

    async def _launch(
        self,
        manager: AsyncKernelManager,
        kernel_id: str,
        profile: KernelProfile,
        folders: LaunchFolders,
        seat: Seat | None,
    ) -> Kernel:
        try:
            await manager.start_kernel(
                kernel_id=kernel_id,
                limits=profile.limits,
                extra_env={**self._preload, **profile.variables},
                runtime_dir=folders.runtime,
                workspace=folders.workspace,
                packages=folders.packages,
                branches=folders.branches,
                egress=profile.egress,
                **({} if seat is None else {"seat": seat, "sockets": seat.sockets}),
                **self._backend_options,
            )
        finally:
            if manager.ready.done():
                manager.ready.exception()  # marks it as retrieved: the same error is raised to us
        connection = KernelConnection(
            manager.get_connection_info(), kernel_id=kernel_id, reception=self._reception
        )
        try:
            connection.open()
            provisioner = manager.provisioner
            assert isinstance(provisioner, CellgateProvisioner)
            told = await ready(connection, provisioner.exited)
            info = known_info(told)
            environment = await self._environment(profile, connection, provisioner, info)
            spec_env = {} if manager.kernel_spec is None else manager.kernel_spec.env
            seed = {"PYTHONHASHSEED": HASH_SEED, **spec_env, **profile.variables}["PYTHONHASHSEED"]
            kernel = Kernel(
                profile,
                manager,
                connection,
                folders.workspace,
                info,
                environment,
                self._store if provisioner.adoptable else None,
                folders.packages,
            )
            kernel.hash_seed = seed
            kernel.can_branch = provisioner.can_share and _says_that_it_has(FEATURE, told)
            kernel.tells_variables = _says_that_it_has(TELLS_VARIABLES, told)
            kernel._branch = self.branch
            kernel._checkpoint = self.checkpoint
            await kernel.remember()
            return kernel
        except BaseException:
            connection.close()
            raise

    async def _environment(
        self,
        profile: KernelProfile,
        connection: KernelConnection,
        provisioner: CellgateProvisioner,
        info: Mapping[str, Any],
    ) -> Environment | None:
        """Return the kernelspec's environment, as reported by the first kernel without variables."""
        key = profile.kernelspec, _digest(provisioner.image_used)
        if key in self._environments or profile.variables or not self._may_ask(profile):
            return self._environments.get(key)
        if not provisioner.was_alone():
            return None
        environment: Environment | None = None
        if info.get("language_info", {}).get("name") == "python":
            environment = await ask(connection, provisioner.exited)
            if environment is None:
                self._ask_later(profile)
                return None
            if not provisioner.was_alone():
                return None  # another has come meanwhile
        self._environments[key] = environment
        return environment

    async def _undo(self, manager: AsyncKernelManager, folders: Sequence[Path] = ()) -> None:
        """End what was begun. Failures are only logged: the caller raises why the start failed."""
        try:
            await _end_manager(manager)
        except Exception as error:  # any error: the folders must still be removed
            logger.error("A kernel that did not start could not be ended", exc_info=error)
        await self._folders.leftovers.remove(*folders)

    async def _explain(self, manager: AsyncKernelManager, profile: KernelProfile, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            what = f"did not become ready within {self._start_timeout:g} s"
        else:
            what = f"did not start: {in_words(error).removesuffix('.')}"
        provisioner = manager.provisioner
        tail = ""
        try:
            if isinstance(provisioner, CellgateProvisioner):
                tail = await provisioner.log_tail()
        except (OSError, CellgateError) as further:
            logger.warning("The log of a kernel that did not start can't be read: %s", in_words(further))
        return f"A kernel of kernelspec {profile.kernelspec!r} {what}.{last_words(tail)}"
