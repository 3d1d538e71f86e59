"""Opens the sources of kernels: their folders, the engine, the fork server, the launcher, and the pool.

It knows no sessions and no users. ``assembly`` opens the `KernelGround` first, and the pool once it is known
who may come in.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cellgate.errors import StorageError
from cellgate.files.former import WORKSPACES, workspaces_of
from cellgate.http.services import Kernels
from cellgate.packages.installer import Installer, site_folder
from cellgate.server.settings import GatewaySettings, KernelSettings
from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import BackendUnavailable, CellgateError, in_brief, in_words
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.forking.server import ForkServer
from cellgate_kernels.forking.shared_containers import START_TIMEOUT, SharedContainers
from cellgate_kernels.forking.shared_places import Roots
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.kernel.launcher import KernelFolders, KernelLauncher, SharedBackend
from cellgate_kernels.kernel.stored import KernelStore, StoredKernel
from cellgate_kernels.limits.cgroups import Cgroups
from cellgate_kernels.limits.swap import has_swap
from cellgate_kernels.pool.pool import KernelPool, PoolObserver
from cellgate_kernels.specs.added_environments import keep_in_use
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.manifest import MOST_BYTES, decode_manifest
from cellgate_kernels.walls.kernel_uids import KernelUids

logger = logging.getLogger(__name__)

INSTANCE_FILE = "instance"
MOST_INSTANCE = 64
"""The most characters of a gateway's id, as clients accept."""
INSTANCE_BYTES = 1024
PACKAGES = "packages"
SOCKET_PATH_ROOM = 60
MANIFEST_SECONDS = 10.0
_NOT_ROOT = "only a gateway that is root, with an engine that is, can keep their folders apart"


@dataclass(frozen=True, slots=True)
class KernelGround:
    """The sources of kernels. `left`: the previous gateway's kernels, by their ids, as `store` has them."""

    store: KernelStore
    left: Mapping[str, StoredKernel]
    folders: KernelFolders
    engine: Engine | None
    launcher: KernelLauncher


async def open_ground(settings: GatewaySettings, stack: AsyncExitStack) -> KernelGround:
    """Open the folders, the engine and the launcher of kernels. Raises CellgateError and OSError."""
    store = KernelStore(settings.data_dir / "kernels")
    left = store.load()
    folders = _folders(settings, store, stack)
    stack.push_async_callback(folders.leftovers.close)
    engine = await _engine(settings, left, stack)
    launcher = await _launcher(settings, folders, engine, store, stack)
    return KernelGround(store, left, folders, engine, launcher)


def open_kernels(
    settings: GatewaySettings, ground: KernelGround, observer: PoolObserver, stack: AsyncExitStack
) -> Kernels:
    """Open the pool, which starts nothing yet. Raises CellgateError."""
    kernels, launcher, catalog = settings.kernels, ground.launcher, ground.launcher.catalog
    named = (settings.manager.default_kernel, *kernels.warm_kernels)
    warm = [KernelProfile(catalog.resolve(name), settings.manager.limits.resources) for name in named]
    pool = KernelPool(launcher, kernels.pool, warm, observer=observer)
    stack.push_async_callback(pool.close)
    return Kernels(
        backend=kernels.backend,
        isolation=kernels.isolation,
        gaps=kernels.gaps,
        open_network=networked(kernels) is not None,
        catalog=catalog,
        pool=pool,
        ways=launcher.ways,
        containers=launcher.containers,
        engine=ground.engine,
        installer=_installer(settings, catalog, ground.folders.leftovers),
    )


def without_proxy(settings: KernelSettings) -> str | None:
    """Return why kernels can't be given a way to some hosts, if so."""
    if settings.backend == "landlock":
        return "kernels behind Landlock reach no proxy; use --backend sandbox"
    return networked(settings)


def networked(settings: KernelSettings) -> str | None:
    """Return why kernels have a network in any case, if so."""
    if settings.backend == "process":
        return "kernels are processes of this machine, with its network"
    if settings.container is not None and settings.container.network_mode != "none":
        return f"kernels are in the container engine's network {settings.container.network_mode!r}"
    return None


def _installer(
    settings: GatewaySettings, catalog: KernelspecCatalog, leftovers: Leftovers
) -> Installer | None:
    """Return the installer of packages; None if the operator allows no packages."""
    if not settings.packages.allowed:
        return None
    token = settings.people.token
    try:
        secrets = frozenset({token} if token else ())
        return Installer(settings.packages, catalog, settings.data_dir / PACKAGES, leftovers, secrets)
    except OSError as error:
        raise StorageError(f"Can't use {settings.data_dir / PACKAGES}: {in_brief(error)}") from error


def _folders(settings: GatewaySettings, store: KernelStore, stack: AsyncExitStack) -> KernelFolders:
    """Private folders: sockets where paths are short (unix(7): 108 bytes), workspaces with the data or, of a
    cluster, on the disk that its gateways share.

    Whatever the previous gateway left in them stays for now: `recover_sessions` cleans up.
    """
    workspaces = own = settings.data_dir / WORKSPACES
    if (disk := shared_disk(settings)) is not None:
        workspaces = workspaces_of(disk, gateway_id(settings.data_dir / INSTANCE_FILE))
        try:
            workspaces.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"Can't use the folder {disk} of --workspaces-shared: {in_brief(error)}"
            ) from error
    workspaces.mkdir(mode=0o700, exist_ok=True)
    if workspaces != own and own.is_dir() and trees.names_in(own):
        logger.warning(
            "Sessions have files in %s that they do not get: stop the gateway and move them to %s",
            own,
            workspaces,
        )
    runtime = settings.data_dir.resolve() / "run"
    if len(os.fsencode(runtime)) > SOCKET_PATH_ROOM:
        # Named after the data folder, which only one gateway uses: the next one finds a crash's leftovers.
        name = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16]
        runtime = Path(tempfile.gettempdir()) / f"cellgate-{os.getuid()}-{name}"
    ours = runtime.is_dir() and not runtime.is_symlink() and runtime.lstat().st_uid == os.getuid()
    try:
        runtime.mkdir(mode=0o700, exist_ok=ours)
        runtime.chmod(0o700)
    except OSError as error:
        raise StorageError(
            f"Can't make the folder {runtime} for the kernels' sockets: {in_brief(error)}"
        ) from error

    def leave() -> None:
        with suppress(OSError):
            if not store.load():
                trees.remove(runtime)

    stack.callback(leave)
    packages = site_folder(settings.data_dir / PACKAGES) if settings.packages.allowed else None
    return KernelFolders(runtime=runtime, workspaces=workspaces, packages=packages)


def shared_disk(settings: GatewaySettings) -> Path | None:
    """Return the folder with the workspaces of all gateways of a cluster; None if each has its own."""
    return Path(settings.cluster.workspaces) if settings.cluster and settings.cluster.workspaces else None


async def _engine(
    settings: GatewaySettings, left: Mapping[str, StoredKernel], stack: AsyncExitStack
) -> Engine | None:
    """Return the engine, which removes the previous gateway's containers except these kernels'."""
    if settings.kernels.backend != "docker":
        return None
    spared = [kernel.provisioner["container"] for kernel in left.values()]
    engine = Engine(settings.kernels.docker_url, gateway_id(settings.data_dir / INSTANCE_FILE), spared=spared)
    await engine.open()
    stack.push_async_callback(engine.close)
    return engine


async def _read_manifests(engine: Engine, catalog: KernelspecCatalog) -> None:
    """Look into the images for what their environments have; without that a gateway serves as well."""
    for (image, path), names in catalog.in_images().items():
        try:
            async with asyncio.timeout(MANIFEST_SECONDS):
                data = await engine.read_from_image(image, path, MOST_BYTES + 1)
            if data is None:
                continue
            manifest = decode_manifest(data)
        except (CellgateError, TimeoutError, ValueError) as error:
            logger.warning("The packages of the image %s can't be read: %s", image, in_words(error))
            continue
        for name in names:
            catalog.add_manifest(name, manifest)


def gateway_id(path: Path) -> str:
    """Return the id of this data folder's gateway, in its answers and on its containers.

    Raises StorageError for a file that can't be read, or has anything else: a line break would be one of the
    header's.
    """
    try:
        if not path.exists():
            path.write_text(secrets.token_hex(16))
        told = read_regular(path, INSTANCE_BYTES).strip()
    except OSError as error:
        raise StorageError(f"Can't read or write {path}: {in_brief(error)}") from error
    if not told or len(told) > MOST_INSTANCE or told.strip(b"0123456789abcdef"):
        raise StorageError(f"{path} is damaged; remove it while no container of this gateway runs")
    return told.decode()


async def _fork_server(
    settings: GatewaySettings, folders: KernelFolders, stack: AsyncExitStack
) -> ForkServer | None:
    """Return the fork server of sandboxes; None with other backends, and where it is switched off."""
    kernels = settings.kernels
    if not kernels.fork_server or kernels.backend != "sandbox":
        return None
    # Named after the data folder, which only one gateway uses: the next one finds the leftovers of a crash.
    name = hashlib.sha256(os.fsencode(settings.data_dir.resolve())).hexdigest()[:16]
    try:
        # Without swap kernels sleep only if the operator asks for it.
        freezing = (
            await asyncio.to_thread(has_swap) if kernels.sleep_after is None else kernels.sleep_after > 0
        )
        cgroups = await asyncio.to_thread(Cgroups.find, f"cellgate-{name}", freezing=freezing)
    except BackendUnavailable as error:
        logger.warning(
            "Kernels get no cgroups of their own, so memory is limited for each process, processors are not:"
            " %s",
            error.message,
        )
        cgroups = None
    sessions = [(folders.runtime, True), (folders.workspaces, True)]
    if folders.packages is not None:
        sessions.append((folders.packages, False))
    server = ForkServer(sessions, cgroups, uids=await _kernel_uids(name, sessions))
    stack.push_async_callback(server.close)
    return server


def why_unshared(container: ContainerSettings, *, fork_server: bool) -> str:
    """Return why no container can hold several sessions; "" if it can where its engine is root."""
    if not fork_server:
        return "--no-fork-server lets no kernel be forked"
    if container.isolation != "container":
        return "kernels can't be forked under gVisor"
    return "" if os.geteuid() == 0 else _NOT_ROOT


def _shared_containers(
    settings: KernelSettings, folders: KernelFolders, engine: Engine | None, stack: AsyncExitStack
) -> SharedContainers | None:
    """Return containers of one principal each; None if each session has one, by choice or necessity."""
    container = settings.container
    if settings.container_per != "principal" or engine is None or container is None:
        return None
    why = why_unshared(container, fork_server=settings.fork_server)
    if not why and engine.rootless:
        why = _NOT_ROOT
    if why:
        logger.warning("Each session has a container of its own, not each principal: %s", why)
        return None
    shared = SharedContainers(
        engine,
        Roots(folders.runtime, folders.workspaces, folders.packages),
        # A kernel that waits for a container must have time left to learn that there will be none.
        patience=min(START_TIMEOUT, settings.start_timeout * 2 / 3),
    )
    stack.push_async_callback(shared.close)
    return shared


async def _kernel_uids(name: str, sessions: Sequence[tuple[Path, bool]]) -> KernelUids | None:
    """Return the uids of forked kernels; None where kernels can't have their own."""
    if os.geteuid() != 0:
        return None
    try:
        return await KernelUids.find(name, [folder for folder, _ in sessions])
    except BackendUnavailable as error:
        logger.warning("Kernels have root's uid outside of their user namespaces: %s", error.message)
        return None


async def _keep_environments(catalog: KernelspecCatalog, stack: AsyncExitStack) -> None:
    """Keep `cellgate environment` from removing what kernels of this gateway use."""
    for folder in catalog.kernel_dirs:
        try:
            stack.callback(os.close, await asyncio.to_thread(keep_in_use, folder))
        except OSError as error:
            logger.debug("The environments of %s are not kept for this gateway: %s", folder, in_words(error))
    catalog.refresh()  # one that was removed before that is not offered


async def _launcher(
    settings: GatewaySettings,
    folders: KernelFolders,
    engine: Engine | None,
    store: KernelStore,
    stack: AsyncExitStack,
) -> KernelLauncher:
    kernels = settings.kernels
    folder = {"kernel_dirs": list(kernels.kernel_dirs)} if kernels.kernel_dirs else {}
    config = {} if kernels.container is None else asdict(kernels.container)
    catalog = KernelspecCatalog(backend=kernels.backend, provisioner_config=config, **folder)
    if engine is not None:
        await _read_manifests(engine, catalog)
    else:
        await _keep_environments(catalog, stack)
    reception = Reception(settings.manager.session.execution.caps)
    stack.push_async_callback(asyncio.to_thread, reception.close, wait=True)
    return KernelLauncher(
        catalog,
        folders,
        start_timeout=kernels.start_timeout,
        preload=kernels.preload,
        shared=SharedBackend(
            engine,
            await _fork_server(settings, folders, stack),
            _shared_containers(kernels, folders, engine, stack),
        ),
        # Kernels of the other backends end with the gateway.
        store=None if engine is None else store,
        reception=reception,
    )
