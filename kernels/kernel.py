"""One running kernel: started by a provisioner, ready when handed out, ended for good.

A kernel is never restarted in place: whoever needs a new one takes it from ``pool``. This module knows
nothing of sessions or records. It wraps jupyter_client's AsyncKernelManager, which launches through the
provisioner that the ``specs`` catalog names, and gives out a ``connection``.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from kernels.connection import KernelConnection
from kernels.environment import Environment, ask
from kernels.errors import KernelStartFailed
from kernels.limits import ResourceLimits
from kernels.messages import Channel, Message
from kernels.provisioners.base import CellgateProvisioner, KernelExit
from kernels.provisioners.engine import Engine
from kernels.provisioners.folders import remove_tree
from kernels.readiness import ready
from kernels.specs.catalog import KernelspecCatalog
from kernels.stored import KernelStore, StoredKernel

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 15.0
ADOPTION_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What a kernel is made of. Two kernels of one profile are interchangeable until one was used."""

    kernelspec: str
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelFolders:
    """Where kernels keep files: `runtime` for sockets (short: see unix(7)), `workspaces` for user files.

    `packages`: where each has a folder that modules can be put into while it runs; None when none has one.
    """

    runtime: Path
    workspaces: Path
    packages: Path | None = None


class Kernel:
    """A ready kernel. Make it by `KernelLauncher.start`; it lives until `shutdown` or its own end."""

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
        self._manager = manager
        self._provisioner = provisioner
        self._store = store
        self._shutdown: asyncio.Task[None] | None = None

    @property
    def isolation(self) -> str:
        """What stands between this kernel and the host: ``none``, ``sandbox``, ``container``, ``gvisor``."""
        return self._provisioner.isolation

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
    def exited(self) -> asyncio.Future[KernelExit]:
        """Completed once, when the kernel's process has ended. Shield it when you await it."""
        return self._provisioner.exited

    @property
    def stored(self) -> bool:
        """Whether another gateway could adopt it."""
        return self._store is not None and self.alive

    @property
    def alive(self) -> bool:
        """Whether the process runs and nobody has begun to shut it down."""
        return self._shutdown is None and not self.exited.done()

    async def files_given(self) -> None:
        """To be called when files were put into the workspace, before the first cell."""
        await self._provisioner.files_given()

    def interrupt(self) -> asyncio.Future[Message]:
        """Ask the kernel to interrupt what it runs (control channel, interrupt_request).

        Once it has answered, as the future tells, the interrupt hits nothing any more.
        """
        return self.connection.ask(Channel.CONTROL, "interrupt_request", {})

    async def shutdown(self) -> None:
        """Kill the kernel and remove all it had but its workspace folder. Concurrent calls share one end.

        No shutdown_request is sent: ipykernel 7.4 may hang on it, and a used kernel keeps nothing that
        a kind word would save.
        """
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(self._end(), name=f"shutdown {self.id}")
        await asyncio.shield(self._shutdown)

    async def discard(self) -> None:
        """Shut down, and remove the folders of its files and packages with what is left in them."""
        await self.shutdown()
        await remove_tree(self.workspace)
        if self.packages is not None:
            await remove_tree(self.packages)

    def let_go(self) -> None:
        """Close the connection and nothing more: the kernel goes on, for the next gateway to adopt."""
        self.connection.close()
        # jupyter_client opens one for its shutdown; left open it would keep the context from ending.
        self._manager._close_control_socket()
        self._provisioner.let_go()

    async def remember(self) -> None:
        """Store what the next gateway needs to adopt this kernel, where there is a store for it."""
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
            environment=self.environment,
            provisioner=await self._provisioner.get_provisioner_info(),
            packages=None if self.packages is None else str(self.packages),
        )
        try:
            await asyncio.to_thread(self._store.save, stored)
        except OSError as error:
            logger.warning("Kernel %s would not survive a crash of the gateway: %s", self.id, error)

    async def _end(self) -> None:
        self.connection.close()
        await _end_manager(self._manager)
        if self._store is not None:
            self._store.remove(self.id)


def runtime_name(kernel_id: str) -> str:
    """The name of a kernel's runtime folder: short, for the paths of its sockets."""
    return kernel_id[:13]


async def _end_manager(manager: AsyncKernelManager) -> None:
    """Kill what the manager started; a launch that failed half way is undone by its provisioner."""
    if manager.provisioner is None:
        return
    # Interrupting first, as jupyter_client's own shutdown does, would open a control socket for nothing.
    try:
        async with asyncio.timeout(SHUTDOWN_TIMEOUT):
            await manager.provisioner.kill()
            await manager.provisioner.wait()
    except TimeoutError:
        logger.error("Kernel %s did not end within %s s of being killed", manager.kernel_id, SHUTDOWN_TIMEOUT)
    await manager._async_cleanup_resources()


class KernelLauncher:
    """Starts kernels of the catalog's kernelspecs and waits until they are ready."""

    def __init__(
        self,
        catalog: KernelspecCatalog,
        context: zmq.Context[zmq.Socket[bytes]],
        folders: KernelFolders,
        *,
        start_timeout: float = 60.0,
        preload: Sequence[str] = (),
        engine: Engine | None = None,
        store: KernelStore | None = None,
    ) -> None:
        self.catalog = catalog
        self._store = store
        self._context = context
        # AsyncKernelManager insists on this class; a shadow shares the one context's threads and sockets.
        self._manager_context = zmq.asyncio.Context(context)
        self._folders = folders
        self._start_timeout = start_timeout
        # One connection to the container engine for all kernels; the other backends have no use for it.
        self._backend_options = {} if engine is None else {"engine": engine}
        # Read and removed by the bootstrap of Python kernels before user code runs.
        self._preload = {"CELLGATE_PRELOAD": ",".join(preload)} if preload else {}
        self._environments: dict[str, Environment | None] = {}

    async def start(self, profile: KernelProfile) -> Kernel:
        """A ready kernel: it has answered kernel_info_request and its iopub reaches us.

        Raises KernelspecNotFound, BackendUnavailable or KernelStartFailed; then nothing is left behind.
        """
        self.catalog.get_kernel_spec(profile.kernelspec)
        kernel_id = str(uuid.uuid4())
        runtime = self._folders.runtime / runtime_name(kernel_id)
        workspace = self._folders.workspaces / kernel_id
        packages = None if self._folders.packages is None else self._folders.packages / kernel_id
        made = [folder for folder in (runtime, workspace, packages) if folder is not None]
        manager = self._manager(profile.kernelspec, runtime)
        try:
            runtime.mkdir(mode=0o700)
            workspace.mkdir(mode=0o700)
            if packages is not None:
                # Readable by the user that the kernel runs as; the folder above is not.
                packages.mkdir()
                packages.chmod(0o755)
            async with asyncio.timeout(self._start_timeout):
                return await self._launch(manager, kernel_id, profile, runtime, workspace, packages)
        except (TimeoutError, OSError, RuntimeError, ValueError) as error:
            try:
                # Before its end, because what a container wrote goes with it.
                failure = KernelStartFailed(await self._explain(manager, profile, error))
            finally:
                await asyncio.shield(self._undo(manager, made))
            raise failure from error
        except BaseException:
            await asyncio.shield(self._undo(manager, made))
            raise

    def _manager(self, kernelspec: str, runtime: Path) -> AsyncKernelManager:
        manager = AsyncKernelManager(
            kernel_name=kernelspec,
            kernel_spec_manager=self.catalog,
            connection_file=str(runtime / "manager.json"),
            transport="ipc",
            context=self._manager_context,
            autorestart=False,
        )
        # jupyter_client logs a failed start with its stack; we raise one that says what to do.
        manager.log = logging.getLogger("cellgate.jupyter_client")
        return manager

    async def adopt(self, stored: StoredKernel, attend: Callable[[KernelConnection], None]) -> Kernel:
        """Take over a kernel that a former gateway started, running cell and all.

        `attend` is called before the connection opens, to listen from the first message on. When this
        returns, all that is sent on iopub from now on reaches it. Raises KernelStartFailed when
        the kernel does not live or does not answer, BackendUnavailable, KernelspecNotFound; then the kernel
        is ended, but its workspace is left.
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
            connection = KernelConnection(
                stored.provisioner["connection_info"], self._context, session=stored.identity
            )
            attend(connection)
            connection.open()
            async with asyncio.timeout(ADOPTION_TIMEOUT):
                # A kernel that runs a cell answers on its control channel only.
                await ready(connection, provisioner.exited, Channel.CONTROL)
        except BaseException as error:
            if connection is not None:
                connection.close()
            await asyncio.shield(_end_manager(manager))
            if isinstance(error, (TimeoutError, RuntimeError)):
                raise KernelStartFailed(f"The kernel does not answer: {error}") from error
            raise
        profile = KernelProfile(stored.kernelspec, stored.limits, stored.env)
        return Kernel(
            profile,
            manager,
            connection,
            Path(stored.workspace),
            stored.info,
            stored.environment,
            self._store,
            None if stored.packages is None else Path(stored.packages),
        )

    async def _launch(
        self,
        manager: AsyncKernelManager,
        kernel_id: str,
        profile: KernelProfile,
        runtime: Path,
        workspace: Path,
        packages: Path | None,
    ) -> Kernel:
        try:
            await manager.start_kernel(
                kernel_id=kernel_id,
                limits=profile.limits,
                extra_env={**self._preload, **dict(profile.env)},
                runtime_dir=runtime,
                workspace=workspace,
                packages=packages,
                **self._backend_options,
            )
        finally:
            if manager.ready.done():
                manager.ready.exception()  # retrieved here: the same error is raised to us
        connection = KernelConnection(manager.get_connection_info(), self._context)
        try:
            connection.open()
            provisioner = manager.provisioner
            assert isinstance(provisioner, CellgateProvisioner)
            info = await ready(connection, provisioner.exited)
            environment = await self._environment(profile, connection, provisioner.exited, info)
            kernel = Kernel(profile, manager, connection, workspace, info, environment, self._store, packages)
            await kernel.remember()
            return kernel
        except BaseException:
            connection.close()
            raise

    async def _environment(
        self,
        profile: KernelProfile,
        connection: KernelConnection,
        exited: asyncio.Future[KernelExit],
        info: Mapping[str, Any],
    ) -> Environment | None:
        """What the kernelspec's environment holds, asked once; again where variables may have changed it."""
        language = info.get("language_info")
        if not isinstance(language, dict) or language.get("name") != "python":
            return None
        if profile.env:
            return await ask(connection, exited)
        if profile.kernelspec not in self._environments:
            self._environments[profile.kernelspec] = await ask(connection, exited)
        return self._environments[profile.kernelspec]

    async def _undo(self, manager: AsyncKernelManager, folders: Sequence[Path]) -> None:
        await _end_manager(manager)
        for folder in folders:
            await remove_tree(folder)

    async def _explain(self, manager: AsyncKernelManager, profile: KernelProfile, error: Exception) -> str:
        what = (
            f"did not become ready within {self._start_timeout:g} s"
            if isinstance(error, TimeoutError)
            else f"did not start: {error}"
        )
        provisioner = manager.provisioner
        tail = await provisioner.log_tail() if isinstance(provisioner, CellgateProvisioner) else ""
        said = f" Its last words: {tail[-500:].strip()}" if tail.strip() else ""
        return f"A kernel of kernelspec {profile.kernelspec!r} {what}.{said}"
