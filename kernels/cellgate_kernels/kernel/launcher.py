"""Starts kernels of the catalog's kernelspecs and waits until they are ready.

It launches through jupyter_client and the provisioner that the ``specs`` catalog names, in a sandbox or
container of the kernel's own or with others of its principal. ``forks`` makes kernels from kernels,
``adopting`` takes over kernels of a former gateway; ``pool`` decides how many there are.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cellgate_kernels.base.branching import BRANCHES, BranchSpec
from cellgate_kernels.base.errors import CellgateError, KernelStartFailed, in_words
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.base.resources import HASH_SEED
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.readiness import ready
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import ForkServer, can_fork
from cellgate_kernels.forking.shared_containers import Seat, SharedContainers
from cellgate_kernels.forking.shared_places import Sharers
from cellgate_kernels.kernel import adopting
from cellgate_kernels.kernel.branch_request import FEATURE
from cellgate_kernels.kernel.environment import Environment, ask
from cellgate_kernels.kernel.forks import KernelForks
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import Kernel, KernelFacts, KernelProfile
from cellgate_kernels.kernel.manager import Manager, Workshop
from cellgate_kernels.kernel.questions import FEATURE as TELLS_VARIABLES
from cellgate_kernels.kernel.stored import KernelStore, StoredKernel
from cellgate_kernels.launch.base import CellgateProvisioner, last_words
from cellgate_kernels.launch.folders import LaunchFolders
from cellgate_kernels.limits.disk_watch import DiskWatch
from cellgate_kernels.limits.memory import MemoryGroup
from cellgate_kernels.limits.use_meter import UseMeter
from cellgate_kernels.protocol.kernel_info import known_info
from cellgate_kernels.protocol.masking import Masker
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.named_environment import NamedEnvironment, named_environment

logger = logging.getLogger(__name__)

ASK_AGAIN = 60.0
"""Seconds before kernels of a profile that did not report their environment are asked again."""


@dataclass(frozen=True, slots=True)
class KernelFolders:
    """Where kernels keep files: `runtime` for sockets (short: see unix(7)), `workspaces` for user files.

    `packages`: the place of folders to which modules can be added while a kernel runs; None: no kernel has
    one. `leftovers` removes folders that can't be removed at once.
    """

    runtime: Path
    workspaces: Path
    packages: Path | None = None
    leftovers: Leftovers = field(default_factory=Leftovers)


@dataclass(frozen=True, slots=True)
class SharedBackend:
    """The parts of the isolation backend that a gateway's kernels share: one connection to the container
    engine, which also watches their disks, or a watch of disks, and the fork servers.

    `containers`: each holds the kernels of one principal; None where each kernel has one.
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


class KernelLauncher:
    """Starts kernels, and offers the other ways to get one: `restore`, `adopt`."""

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
        self._folders = folders
        shared = SharedBackend() if shared is None else shared
        self._fork_server = shared.fork_server
        self._containers = shared.containers
        options = {"leftovers": folders.leftovers, **shared.options()}
        self._workshop = Workshop(catalog, folders.leftovers, options, start_timeout, store, reception)
        self._forks = KernelForks(self._workshop)
        # Read and removed by the bootstrap of Python kernels before user code runs.
        self._preload = {"CELLGATE_PRELOAD": ",".join(preload)} if preload else {}
        # By kernelspec and digest, of the image or of the environment; None where the kernel is not Python.
        self._environments: dict[tuple[str, str], Environment | None] = {}
        # By whole profile, because clients choose limits: kernels with too little memory to answer must not
        # delay others.
        self._ask_at: dict[KernelProfile, float] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._tasks = self._workshop.tasks

    def ways(self) -> dict[str, str]:
        """Return how each kernelspec's kernels start, ``fork`` or ``cold``, if nothing prevents a fork."""
        return {name: "fork" if self.forks(name) else "cold" for name in self.catalog.find_kernel_specs()}

    def forks(self, kernelspec: str) -> bool:
        """Return whether this kernelspec's kernels are forked if possible. Raises KernelspecNotFound."""
        argv = self.catalog.get_kernel_spec(kernelspec).argv
        if self._containers is not None:
            return can_fork(argv) and self._containers.trials.forks(kernelspec)
        return self._fork_server is not None and self._fork_server.forks(argv)

    def keeps_warm(self, profile: KernelProfile) -> bool:
        """Return whether such a kernel can start before its owner is known. Raises KernelspecNotFound."""
        if self._containers is None:
            return True
        argv = self.catalog.get_kernel_spec(profile.kernelspec).argv
        return not (can_fork(argv) and self._containers.trials.forks(profile.kernelspec, profile.limits))

    def is_current(self, kernel: Kernel) -> bool:
        """Return whether a new kernel of its kernelspec would have the same environment."""
        return self.catalog.environment_of(kernel.profile.kernelspec) == kernel.facts.named

    def placed(self, profile: KernelProfile, principal: str) -> KernelProfile:
        """Return a profile for this principal's kernel, which may share a container with its others.

        One with a network does not share: all in its container would have one. Raises KernelspecNotFound.
        """
        if not principal or profile.egress or profile.workspace is not None or self.keeps_warm(profile):
            return profile
        return replace(profile, principal=principal)

    def shares_workspaces(self) -> bool:
        """Return whether a kernel can start in the workspace of another kernel that has its own sandbox.

        Kernels that share a container have their files in a folder of that container, each as its own user.
        """
        return self._containers is None

    def containers(self) -> tuple[str, str] | None:
        """Return whether a container is a ``session``'s or a ``principal``'s, and whether limits are for each
        ``kernel`` or for the ``container``; None without containers.
        """
        if "engine" not in self._workshop.backend:
            return None
        if self._containers is None:
            return "session", "kernel"
        return "principal", "container" if self._containers.trials.divides is False else "kernel"

    async def start(self, profile: KernelProfile) -> Kernel:
        """Return a ready kernel: it has answered kernel_info_request and its iopub messages arrive.

        Raises KernelspecNotFound, BackendUnavailable or KernelStartFailed; then nothing is left behind. A
        client's variables can run code in a kernel before it is asked anything. So a kernel with variables is
        never asked for its environment: another kernel is, once, and ended.
        """
        self.catalog.get_kernel_spec(profile.kernelspec)
        if not profile.variables:
            kernel = await self._start(profile)
            await self._ask_elsewhere(kernel)
            return kernel
        await self._learn(profile.kernelspec)
        kernel = await self._start(profile)
        digest = _digest(kernel)
        if self._knows(profile.kernelspec, digest) or not self._may_ask(KernelProfile(profile.kernelspec)):
            return kernel
        # It has a different image from the asked one (the tag has moved), or an environment built since.
        await self._discard(kernel)
        await self._learn(profile.kernelspec, digest)
        return await self._start(profile)

    async def adopt(
        self,
        stored: StoredKernel,
        attend: Callable[[KernelConnection], None],
        secrets: tuple[tuple[str, str], ...] = (),
    ) -> Kernel:
        """Take over a kernel of a former gateway; see `adopting.adopt`."""
        return await adopting.adopt(self._workshop, self._forks, stored, attend, secrets)

    async def restore(self, held: HeldFork, spec: BranchSpec, *, like: Kernel | None = None) -> Kernel:
        """Return a kernel made from a held fork; see ``KernelPool.restore``. `like`: which it replaces."""
        return await self._forks.restore(held, spec, like=like)

    async def _learn(self, kernelspec: str, digest: str | None = None) -> None:
        """Ask a kernel of this kernelspec for its environment, unless one (of `digest`, or any) was asked."""
        # Without variables or limits that a client chose.
        profile = KernelProfile(kernelspec)
        async with self._asking.setdefault(kernelspec, asyncio.Lock()):
            if self._knows(kernelspec, digest) or not self._may_ask(profile):
                return
            try:
                kernel = await self._start(profile)
            except CellgateError as error:
                self._ask_later(profile)
                logger.warning("The environment of kernelspec %s is unknown: %s", kernelspec, error.message)
            else:
                await self._discard(kernel)

    async def _ask_elsewhere(self, kernel: Kernel) -> None:
        """Learn the environment of a kernel that was not asked, because neighbours could answer for it."""
        digest = _digest(kernel)
        if kernel.provisioner.was_alone() or kernel.environment is not None:
            return
        try:
            await self._learn(kernel.profile.kernelspec, digest)
        except BaseException:
            await self._discard(kernel)
            raise
        kernel.environment = self._environments.get((kernel.profile.kernelspec, digest))

    def _knows(self, kernelspec: str, digest: str | None) -> bool:
        if digest is not None:
            return (kernelspec, digest) in self._environments
        return any(name == kernelspec for name, _ in self._environments)

    def _may_ask(self, profile: KernelProfile) -> bool:
        return time.monotonic() >= self._ask_at.get(profile, 0.0)

    def _ask_later(self, profile: KernelProfile) -> None:
        moment = time.monotonic()
        self._ask_at = {each: at for each, at in self._ask_at.items() if at > moment}
        self._ask_at[profile] = moment + ASK_AGAIN

    async def _discard(self, kernel: Kernel) -> None:
        """End a kernel that nobody has got. Returns when it is gone, even if the caller is cancelled."""
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
            # If there was a kernel to end, it has left the seat by now. The folders have been removed since.
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
        manager = self._workshop.manager(profile.kernelspec, runtime)
        try:
            runtime.mkdir(mode=0o700)
            if own is not None:
                own.mkdir(mode=0o700)
            branches.mkdir(mode=0o700)
            if packages is not None:
                # Readable by the user that the kernel runs as, unlike the folder above.
                packages.mkdir()
                packages.chmod(0o755)
            async with asyncio.timeout(self._workshop.start_timeout):
                return await self._launch(manager, kernel_id, profile, folders, seat)
        except (TimeoutError, OSError, RuntimeError, ValueError) as error:
            try:
                # Before the kernel ends, because a container's log is removed with it.
                explained = await self._explain(manager, profile, error)
                failure = KernelStartFailed(Masker(profile.secrets).text(explained))
            finally:
                await self._workshop.undo(manager, kernel_id, made)
            raise failure from (None if profile.secrets else error)
        except BaseException as error:
            await self._workshop.undo(manager, kernel_id, made)
            if isinstance(error, KernelStartFailed) and profile.secrets:
                # The message contains the kernel's last words.
                raise KernelStartFailed(Masker(profile.secrets).text(error.message)) from None
            raise

    async def _launch(
        self,
        manager: Manager,
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
                **self._workshop.backend,
            )
        finally:
            if manager.ready.done():
                manager.ready.exception()  # marks it as retrieved: the same error is raised to us
        connection = self._workshop.connection(manager.get_connection_info(), kernel_id)
        try:
            connection.open()
            provisioner = manager.provisioner
            assert isinstance(provisioner, CellgateProvisioner)
            told = await ready(connection, provisioner.exited)
            info = known_info(told)
            spec = manager.kernel_spec
            assert spec is not None
            named = named_environment(spec.metadata)
            digest = _digest_of(provisioner.image_used, named)
            environment = await self._environment((profile, digest), connection, provisioner, info)
            facts = KernelFacts(
                info,
                spec.display_name,
                {"PYTHONHASHSEED": HASH_SEED, **spec.env, **profile.variables}["PYTHONHASHSEED"],
                can_branch=provisioner.can_share and _says_that_it_has(FEATURE, told),
                tells_variables=_says_that_it_has(TELLS_VARIABLES, told),
                memory=MemoryGroup.of(provisioner.process),
                meter=UseMeter.of(provisioner),
                named=named,
            )
            place, packages = folders.workspace, folders.packages
            store = self._workshop.store if provisioner.adoptable else None
            kernel = Kernel(profile, facts, manager, connection, place, self._forks, packages, store)
            kernel.environment = environment
            if store is not None:
                await _remember(kernel, store, folders.runtime)
            return kernel
        except BaseException:
            connection.close()
            raise

    async def _environment(
        self,
        asked: tuple[KernelProfile, str],
        connection: KernelConnection,
        provisioner: CellgateProvisioner,
        info: Mapping[str, Any],
    ) -> Environment | None:
        """Return the environment of a kernelspec at a digest, as its first kernel without variables says."""
        profile, digest = asked
        key = profile.kernelspec, digest
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
                return None  # Another kernel has reported meanwhile.
        self._environments[key] = environment
        return environment

    async def _explain(self, manager: Manager, profile: KernelProfile, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            what = f"did not become ready within {self._workshop.start_timeout:g} s"
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


async def _remember(kernel: Kernel, store: KernelStore, runtime: Path) -> None:
    """Store the data that the next gateway needs to adopt this kernel."""
    stored = StoredKernel(
        id=kernel.id,
        identity=kernel.connection.session,
        kernelspec=kernel.profile.kernelspec,
        limits=kernel.profile.limits,
        env=kernel.profile.env,
        workspace=str(kernel.workspace),
        runtime=str(runtime),
        info=dict(kernel.facts.info),
        environment=None if kernel.environment is None else kernel.environment.told(),
        provisioner=await kernel.provisioner.get_provisioner_info(),
        packages=None if kernel.packages is None else str(kernel.packages),
        hash_seed=kernel.facts.hash_seed,
        secrets=tuple(name for name, _ in kernel.profile.secrets),
        egress=kernel.profile.egress,
        can_branch=kernel.facts.can_branch,
        tells_variables=kernel.facts.tells_variables,
    )
    try:
        await asyncio.to_thread(store.save, stored)
    except OSError as error:
        logger.warning("Kernel %s would not survive a crash of the gateway: %s", kernel.id, in_words(error))


def _says_that_it_has(feature: str, told: Mapping[str, Any]) -> bool:
    features = told.get("supported_features")
    return isinstance(features, list) and feature in features


def runtime_name(kernel_id: str) -> str:
    """Return the name of a kernel's runtime folder: short, for the paths of its sockets."""
    return kernel_id[:13]


def _digest(kernel: Kernel) -> str:
    """Return the digest that identifies a kernel's image or environment; empty without one."""
    return _digest_of(kernel.image, kernel.facts.named)


def _digest_of(image: Mapping[str, str], named: NamedEnvironment | None) -> str:
    return image.get("image_digest", "") if named is None else named.digest
