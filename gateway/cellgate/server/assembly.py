"""The one place that builds and wires a gateway, from settings to serving, and shuts it down in order.

Nothing else creates pools, journals or managers. On shutdown: no new connections, running cells get their
grace period, sessions end, kernels end, the record is closed. ``cli.serve`` makes the settings from the
command line and owns the signals.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import hashlib
import json
import logging
import os
import secrets
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path

from tornado.netutil import bind_sockets
from tornado.web import Application

from cellgate.console.assets import STATIC, Assets
from cellgate.console.sign_ins import SignIns
from cellgate.doors.e2b.debug import DEBUG_PORTS, debug_paths, debug_routes
from cellgate.doors.table import door_paths, door_routes, recover_doors
from cellgate.egress.policy import EgressPolicy
from cellgate.egress.shared import Egress
from cellgate.errors import AddressInUse, StorageError, not_written
from cellgate.files.workspace import WorkspaceStore
from cellgate.http.access import AccessPolicy
from cellgate.http.attempts import LoginAttempts
from cellgate.http.base import NotFoundHandler
from cellgate.http.context import Services
from cellgate.http.listener.certificate import Certificate
from cellgate.http.listener.forwarded import TrustedProxies
from cellgate.http.listener.server import Listener
from cellgate.http.listener.settings import BACKLOG, FEWEST_CONNECTIONS, ListenerSettings
from cellgate.http.metrics import KernelState, Metrics, Problem
from cellgate.http.ports import ProgramHandler
from cellgate.http.routes import TABLE, paths, routes
from cellgate.http.tracing import Tracer
from cellgate.identity.authentication import Authentication, Authenticator
from cellgate.identity.derived import DerivedTokens
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.hub import HubAuthenticator
from cellgate.identity.librechat import open_librechat
from cellgate.identity.oidc import OidcAuthenticator
from cellgate.identity.oidc_sign_in import ProviderSignIn
from cellgate.identity.principal import DEFAULT, Login
from cellgate.identity.provider import open_keys
from cellgate.identity.store.opening import reader_of_users
from cellgate.jobs.jobs import Jobs
from cellgate.packages.installer import Installer, site_folder
from cellgate.ports.origin import PortsOrigin
from cellgate.ports.served import ServedPorts
from cellgate.ports.tickets import PortTickets
from cellgate.quotas.quotas_file import QuotaSettings, QuotasFile
from cellgate.quotas.usage import Usage
from cellgate.record.export.session_export import Exports
from cellgate.record.keys import load_key
from cellgate.record.spill import Spills
from cellgate.record.spill_ledger import SpillLedger, SpillWatch
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.location import RECORD
from cellgate.record.trail_writer import TrailWriter
from cellgate.replay.service import Replayer
from cellgate.server import tracing
from cellgate.server.acts import ActRecorder
from cellgate.server.allocator import Trimmer
from cellgate.server.log import log_program_request, log_request
from cellgate.server.observing import Observer, Sampler
from cellgate.server.settings import GatewaySettings, KernelSettings
from cellgate.sessions.adoption import Recovery
from cellgate.sessions.exploring import Explorer
from cellgate.sessions.files import SessionFiles, UploadSpace
from cellgate.sessions.meter import KernelMeter
from cellgate.sessions.parts import SharedParts
from cellgate.sessions.proven_time import ProvenTime
from cellgate.sessions.reader import Archive
from cellgate.sessions.registry import SessionManager
from cellgate.sessions.retention import Retention
from cellgate.sessions.sleep import SleepWatch
from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import BackendUnavailable, CellgateError, InvalidInput, in_words
from cellgate_kernels.base.leftovers import Leftovers, make_way
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.base.settings import ContainerSettings
from cellgate_kernels.base.threads import Lane, ThreadLanes
from cellgate_kernels.base.trees import half_of_disk
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.engine.engine import Engine
from cellgate_kernels.engine.sweep import sweep
from cellgate_kernels.forking.server import ForkServer
from cellgate_kernels.forking.shared_containers import START_TIMEOUT, Roots, SharedContainers
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.kernel.launcher import KernelFolders, KernelLauncher, SharedBackend, runtime_name
from cellgate_kernels.kernel.stored import KernelStore, StoredKernel
from cellgate_kernels.limits.cgroups import Cgroups
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.manifest import MOST_BYTES, decode_manifest
from cellgate_kernels.walls.kernel_uids import KernelUids

logger = logging.getLogger(__name__)

RUNNING_FILE = "gateway.json"
INSTANCE_FILE = "instance"
MOST_INSTANCE = 64
"""Characters of a gateway's id, as clients take it."""
INSTANCE_BYTES = 1024
PACKAGES = "packages"
SOCKET_PATH_ROOM = 60
SWEEP_SECONDS = 5.0
MANIFEST_SECONDS = 10.0
SWITCH_SECONDS = 0.0005
# Handlers limit bodies themselves and answer 413; tornado's limit would cut the connection without an answer.
MAX_REQUEST_BYTES = 1 << 50
MAX_BUFFER_BYTES = 128 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

SHARE_OF_OTHERS = 4
"""One in so many connections, and of their memory, is for each listener beside the gateway's own."""


class RunningGateway:
    """A gateway that is serving at `url`, until `shut_down`. Its first listener is the gateway's own."""

    def __init__(
        self, url: str, services: Services, servers: tuple[Listener, ...], settings: GatewaySettings
    ) -> None:
        self.url = url
        self.services = services
        self._servers = servers
        self._settings = settings

    def console_url(self) -> str:
        """Return an address at which a browser is signed in as the administrator: once, within a minute."""
        return f"{self.url}/?ticket={self.services.sign_ins.ticket(DEFAULT)}"

    @property
    def ports_url(self) -> str | None:
        """The place of programs' ports, in words; None if they are not served."""
        if self.services.ports is None:
            return None
        return self.services.ports.origin.described(self._settings.front.ip)

    @property
    def ports_port(self) -> int | None:
        """The port that is listened on for that; None if they are not served."""
        return None if self.services.ports is None else self.services.ports.listens_on

    def refuse_work(self) -> None:
        """Take no new connections and no new work from now on. Idempotent."""
        for server in self._servers:
            server.stop()
        self.services.pool.rest()
        self.services.manager.refuse_work()

    async def shut_down(self) -> None:
        """Take no new work, give running cells their grace period, end all kernels unless they are kept."""
        self.refuse_work()
        kernels = self._settings.kernels
        await self.services.manager.close(kernels.shutdown_grace, keep_kernels=kernels.keep_kernels)
        await self.services.explorer.close()
        for server in self._servers:
            await server.close_all_connections()
        await self.services.pool.close()

    def abandon(self) -> None:
        """Do what must be done if the process ends without `shut_down`; blocking, from any thread."""
        engine = self.services.engine
        if engine is not None and not self._settings.kernels.keep_kernels:
            sweep(engine.url, engine.instance, SWEEP_SECONDS)


class _Changes:
    """What follows from a change of users and tokens: connections and sessions end, quotas are others."""

    def __init__(
        self, services: Services, servers: tuple[Listener, ...], authentication: Authentication
    ) -> None:
        self._manager = services.manager
        self._usage = services.usage
        self._sign_ins = services.sign_ins
        self._derived_tokens = services.derived_tokens
        self._servers = servers
        self._authentication = authentication

    def logins_changed(self) -> None:
        """Close the connections that logins opened which have ended, and look roles up again."""
        self.end_logins()
        self._usage.refresh()

    def end_logins(self) -> None:
        """Close the connections that logins opened which have ended."""
        for server in self._servers:
            server.end_logins(self._authentication.is_valid)

    def open_logins(self) -> Iterator[Login]:
        """Return the logins of open connections, and of browsers and derived tokens used lately."""
        of_connections = chain.from_iterable(server.open_logins() for server in self._servers)
        return chain(of_connections, self._sign_ins.logins_in_use(), self._derived_tokens.logins_in_use())

    def role_changed(self, name: str) -> None:
        """Apply the quotas of the principal's role."""
        self._usage.refresh_account(name)

    def user_gone(self, name: str, cause: str) -> None:
        """End a user's sessions; their records and files stay."""
        self._manager.end_all(name, cause)


@asynccontextmanager
async def running(settings: GatewaySettings) -> AsyncIterator[RunningGateway]:
    """Yield a serving gateway, and shut it down in order at the end. Raises CellgateError."""
    async with AsyncExitStack() as stack:
        try:
            gateway = await _start(settings, stack)
        except OSError as error:
            where = error.filename2 or error.filename or settings.data_dir
            full = f"There is no space left to start a gateway with the data folder {settings.data_dir}"
            raise not_written(error, full, f"The gateway can't start because of {where}") from error
        yield gateway


async def _start(settings: GatewaySettings, stack: AsyncExitStack) -> RunningGateway:
    """Open what a gateway needs, in order, and serve. Raises CellgateError and OSError."""
    front, storage = settings.front, settings.storage
    lanes = ThreadLanes(settings.kernels.pool.max_kernels)
    lanes.cells.be_default()
    stack.callback(lanes.close)
    stack.callback(settings.manager.session.channels.lane.close)
    certificate = None if front.tls is None else await Certificate.open(front.tls, lanes.files)
    data = settings.data_dir
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Can't make the data folder {data}: {in_words(error, file=False)}") from error
    journal = await Journal.open(data / RECORD, sync=storage.journal_sync, reserve=storage.reserve)
    stack.push_async_callback(journal.close)
    sockets = _bind(front.ip, front.port, "--port")
    ports_sockets = [] if front.ports_port is None else _bind(front.ip, front.ports_port, "--ports-port")
    store = KernelStore(data / "kernels")
    left = store.load()
    folders = _folders(settings, store, stack)
    stack.push_async_callback(folders.leftovers.close)
    engine = await _engine(settings, left, stack)
    launcher = await _launcher(settings, folders, engine, store, stack)
    directory, authentication, provider = await _authentication(settings, stack)
    debug_sockets = _bind_debug() if front.e2b_debug else []
    acts = ActRecorder(directory, journal)
    stack.push_async_callback(acts.close)
    services = _build(settings, journal, folders, launcher, engine, authentication, lanes, stack)
    services = replace(services, ports=_ports(settings, ports_sockets, authentication), provider=provider)
    await _measure_records(services.usage, journal, settings.people.quotas)
    stack.push_async_callback(services.trail.close)
    stack.push_async_callback(services.sign_ins.close)
    await folders.leftovers.sweep(data, folders.workspaces)
    await _recover(services, launcher, left, folders, store)
    servers = _servers(services, settings, certificate)
    bound = [each for each in (sockets, ports_sockets, debug_sockets) if each]
    for server, its_sockets in zip(servers, bound, strict=True):
        server.add_sockets(its_sockets)
    gateway = RunningGateway(_url(settings, sockets), services, servers, settings)
    stack.push_async_callback(gateway.shut_down)
    services.pool.start()
    services.manager.start()
    changes = _Changes(services, servers, authentication)
    authentication.follow(changes)
    services.sign_ins.follow(changes.end_logins)
    acts.start()
    services.trail.start()
    _watch_quotas(settings.people.quotas, services.usage, stack)
    _begin_upkeep(services, settings, stack)
    _announce(settings, gateway, certificate, lanes, stack)
    # The loop waits this long for a computing thread to yield; the default is ten times as long.
    sys.setswitchinterval(SWITCH_SECONDS)
    # What is loaded now stays: the garbage collector need not scan it each time a large message triggers it.
    gc.freeze()
    return gateway


async def _authentication(
    settings: GatewaySettings, stack: AsyncExitStack
) -> tuple[PrincipalDirectory, Authentication, ProviderSignIn | None]:
    """Return the users of the data folder, and all ways to log in. Raises InvalidInput and StorageError."""
    people = settings.people
    directory = PrincipalDirectory(reader_of_users(settings.data_dir), people.token)
    others: list[Authenticator] = []
    provider = None
    if people.librechat_key is not None:
        # Before the provider, which takes every other token of this form for its own.
        others.append(await open_librechat(people.librechat_key))
    if people.oidc is not None:
        keys = await open_keys(people.oidc)
        others.append(OidcAuthenticator(people.oidc, keys))
        if people.oidc.client_id:
            provider = ProviderSignIn(people.oidc, keys)
            stack.push_async_callback(provider.close)
    if people.hub is not None:
        # The last: it asks the Hub about every token that nobody else knows.
        others.append(HubAuthenticator(people.hub))
    authentication = Authentication(directory, tuple(others))
    stack.push_async_callback(authentication.close)
    await directory.refresh()
    tokenless = "--no-auth" if directory.is_open else "--e2b-debug" if settings.front.e2b_debug else None
    if tokenless is not None and authentication.is_shared:
        whose = "This data folder has" if directory.has_users else "Others vouch for"
        raise InvalidInput(
            f"{whose} users, and {tokenless} would make everybody the administrator: start without it, or"
            " with another --data-dir"
        )
    return directory, authentication, provider


def _announce(
    settings: GatewaySettings,
    gateway: RunningGateway,
    certificate: Certificate | None,
    lanes: ThreadLanes,
    stack: AsyncExitStack,
) -> None:
    """Tell commands of the same user where the gateway is, as long as it takes work."""
    token = settings.people.token or ""
    found: dict[str, str | int] = {"url": gateway.url, "token": token, "pid": os.getpid()}
    if gateway.ports_url is not None and gateway.ports_port is not None:
        found |= {"ports_url": gateway.ports_url, "ports_port": gateway.ports_port}
    announcement = Announcement(settings.data_dir / RUNNING_FILE, found, certificate)
    announcement.write()
    stack.callback(announcement.remove)
    if certificate is not None:
        stack.push_async_callback(certificate.close)
        certificate.start(partial(lanes.files.run, announcement.write))
    # Before all other steps of the end, some of which take their time.
    stack.callback(gateway.refuse_work)


def _bind(ip: str, port: int, option: str) -> list[socket.socket]:
    try:
        return bind_sockets(port, ip, backlog=BACKLOG)
    except UnicodeError as error:
        raise AddressInUse(f"Can't listen on {ip}: that is no address. Choose another with --ip") from error
    except OSError as error:
        why = in_words(error, file=False)
        if error.errno == errno.EADDRNOTAVAIL:
            raise AddressInUse(
                f"Can't listen on {ip}: that is no address of this machine. Choose another with --ip:"
                " 127.0.0.1 is for this machine alone, 0.0.0.0 all its addresses"
            ) from error
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"Can't listen on {ip}:{port}: {why}. A gateway may run there already, or another program,"
                f" such as JupyterLab, whose port 8888 is too. Stop it, or choose another port with {option}"
                " (0: any that is free); commands with the same data folder find the gateway there"
            ) from error
        raise AddressInUse(
            f"Can't listen on {ip}:{port}: {why}. Choose another port with {option}, or another --ip"
        ) from error


def _bind_debug() -> list[socket.socket]:
    """Listen where E2B's SDKs look for their own machine's sandbox."""
    sockets = []
    for port in DEBUG_PORTS:
        try:
            sockets += bind_sockets(port, "localhost", backlog=BACKLOG)
        except OSError as error:
            for each in sockets:
                each.close()
            raise AddressInUse(
                f"Can't listen on localhost:{port}, where E2B's SDKs look with E2B_DEBUG: "
                f"{in_words(error, file=False)}. Stop what has this port, or start without --e2b-debug"
            ) from error
    return sockets


def _ports(
    settings: GatewaySettings, sockets: list[socket.socket], authentication: Authentication
) -> ServedPorts | None:
    """Return the ports that are served; None if there are no sockets for them."""
    if not sockets:
        return None
    front = settings.front
    scheme = "http" if front.tls is None else "https"
    port = sockets[0].getsockname()[1]
    return ServedPorts(
        front.ports_origin or PortsOrigin(scheme, port), port, PortTickets(authentication.is_valid)
    )


async def _recover(
    services: Services,
    launcher: KernelLauncher,
    left: Mapping[str, StoredKernel],
    folders: KernelFolders,
    store: KernelStore,
) -> None:
    """Adopt the previous gateway's sessions whose kernels are alive, and remove whatever else it left."""
    kernels = left if services.engine is not None else {}
    adopted, ended = await Recovery(services.journal, launcher, kernels, services.manager.opener).recover()
    if adopted or ended:
        logger.info("Sessions of the previous gateway: %d go on, %d have ended", adopted, ended)
    if services.engine is not None:
        await services.engine.reap()
    in_use = services.manager.kernel_ids()
    if services.installer is not None:
        await services.installer.tidy(in_use, services.manager.session_ids())
    for kernel_id in left.keys() - in_use:
        store.remove(kernel_id)
    await folders.leftovers.empty(folders.runtime, {runtime_name(kernel_id) for kernel_id in in_use})
    recover_doors(services)


async def _engine(
    settings: GatewaySettings, left: Mapping[str, StoredKernel], stack: AsyncExitStack
) -> Engine | None:
    """Return the engine, which is to remove the previous gateway's containers but these kernels'."""
    if settings.kernels.backend != "docker":
        return None
    spared = [kernel.provisioner["container"] for kernel in left.values()]
    engine = Engine(settings.kernels.docker_url, _instance(settings.data_dir / INSTANCE_FILE), spared=spared)
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


def _instance(path: Path) -> str:
    """Return the id of this data folder's gateway, in its answers and on its containers.

    Raises StorageError for a file that can't be read, or has anything else: a line break would be one of the
    header's.
    """
    try:
        if not path.exists():
            path.write_text(secrets.token_hex(16))
        told = read_regular(path, INSTANCE_BYTES).strip()
    except OSError as error:
        raise StorageError(f"Can't read or write {path}: {in_words(error, file=False)}") from error
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
    # Named after the data folder, which only one gateway uses: the next one finds what a crash left.
    name = hashlib.sha256(os.fsencode(settings.data_dir.resolve())).hexdigest()[:16]
    try:
        cgroups = await asyncio.to_thread(Cgroups.find, f"cellgate-{name}", freezing=kernels.sleep_after > 0)
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


_NOT_ROOT = "only a gateway that is root, with an engine that is, can keep their folders apart"


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
        # A kernel that waits for it must have time left to learn that there will be none.
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


def _build(
    settings: GatewaySettings,
    journal: Journal,
    folders: KernelFolders,
    launcher: KernelLauncher,
    engine: Engine | None,
    authentication: Authentication,
    lanes: ThreadLanes,
    stack: AsyncExitStack,
) -> Services:
    front, kernels, storage = settings.front, settings.kernels, settings.storage
    catalog = launcher.catalog
    limits = settings.manager.limits.resources
    named = (settings.manager.default_kernel, *kernels.warm_kernels)
    warm = [KernelProfile(catalog.resolve(name), limits) for name in named]
    metrics = Metrics()
    tracer = _tracer(settings, stack)
    observer = Observer(metrics, tracer)
    pool = KernelPool(launcher, kernels.pool, warm, observer=observer)
    stack.push_async_callback(pool.close)
    workspaces = WorkspaceStore(folders.workspaces, folders.leftovers, reserve=storage.reserve)
    installer = _installer(settings, catalog, folders.leftovers)
    usage = Usage(settings.people.quotas.policy, authentication.role_of, refused=metrics.quota_refused)
    egress = Egress(
        lanes.lookups, partial(_policy_of, usage), unfit=_networked(kernels), pass_bytes=usage.pass_network
    )
    stack.push_async_callback(egress.close)
    spilled = SpillLedger(settings.data_dir, storage.reserve)
    watch = SpillWatch(spilled)
    stack.push_async_callback(watch.close)
    watch.start()
    parts = SharedParts(
        pool,
        workspaces,
        spilled,
        installer,
        lanes.record,
        weight_of=lambda principal: usage.quotas(principal).weight,
        admits=lambda principal: not authentication.directory.is_shut_out(principal),
        usage=usage,
        observer=observer,
        secrets=authentication.directory,
        egress=egress,
    )
    manager = SessionManager(journal, catalog, parts, settings.manager)
    staging = _staging(settings)
    spills = Spills(staging, spilled, lanes.files)
    stack.push_async_callback(spills.finished)
    exports = Exports(journal, settings.version, load_key(settings.data_dir), spills)
    stack.push_async_callback(exports.close)
    meter = KernelMeter(pool.processes, lanes.bulk)
    archive = Archive(journal, manager, exports, lanes.texts, meter)
    files = SessionFiles(
        journal,
        manager,
        workspaces,
        lanes,
        UploadSpace(
            staging,
            reserve=storage.reserve,
            most=half_of_disk(staging) if storage.upload_space is None else storage.upload_space,
        ),
    )
    stack.push_async_callback(files.close)
    jobs = Jobs(staging, spilled, lanes.files)
    stack.push_async_callback(jobs.finished)
    services = Services(
        version=settings.version,
        backend=kernels.backend,
        isolation=kernels.isolation,
        open_network=_networked(kernels) is not None,
        access=_access(settings, authentication),
        attempts=LoginAttempts(front.login_attempts),
        trail=TrailWriter(journal),
        catalog=catalog,
        pool=pool,
        journal=journal,
        manager=manager,
        archive=archive,
        explorer=Explorer(manager, journal),
        files=files,
        metrics=metrics,
        lanes=lanes,
        jobs=jobs,
        replayer=Replayer(manager, archive, files, jobs, settings.version),
        usage=usage,
        assets=Assets(STATIC, lanes.texts),
        sign_ins=SignIns(authentication.is_valid),
        derived_tokens=DerivedTokens(authentication.is_valid),
        ways=launcher.ways,
        containers=launcher.containers,
        engine=engine,
        installer=installer,
        tracer=tracer or Tracer(),
        keep_alive=front.keep_alive,
        base_url=front.base_url,
        owner=_instance(settings.data_dir / INSTANCE_FILE),
        doors=front.doors,
    )
    metrics.watch(lambda: _readings(services))
    return services


def _policy_of(usage: Usage, principal: str) -> EgressPolicy | None:
    """Return the policy of a principal's network by the file of quotas; None without one."""
    quotas = usage.quotas(principal)
    return EgressPolicy(quotas.network, quotas.allow_private) if quotas.network else None


def _networked(settings: KernelSettings) -> str | None:
    """Why kernels can't be kept to some hosts, if so: they have a network in any case."""
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
        raise StorageError(
            f"Can't use {settings.data_dir / PACKAGES}: {in_words(error, file=False)}"
        ) from error


async def _measure_records(usage: Usage, journal: Journal, settings: QuotaSettings) -> None:
    """Before anything is recorded: what is recorded later is added. Without a file nobody has quotas."""
    if settings.file is not None:
        usage.load_records(await journal.reads.record_sizes())


def _watch_quotas(settings: QuotaSettings, usage: Usage, stack: AsyncExitStack) -> None:
    """Apply the file of quotas, if there is one, whenever it changes."""
    if settings.file is None:
        return
    lane = Lane("quotas", 1)
    stack.callback(lane.close)
    watched = QuotasFile(settings.file, settings.policy, usage.change, lane)
    stack.push_async_callback(watched.close)
    watched.start()


def _begin_upkeep(services: Services, settings: GatewaySettings, stack: AsyncExitStack) -> None:
    """Start what goes on beside the requests: old records, samples for metrics, free memory, sleep."""
    lanes = services.lanes
    clock = ProvenTime(settings.data_dir)
    retention = Retention(
        services.journal, services.manager.purger, settings.storage.retention, clock, lanes.bulk
    )
    services.metrics.watch(lambda: {"cellgate_unproven_clock_leaps": {"": float(retention.unproven_leaps)}})
    for work in (
        retention,
        Sampler(services.metrics, settings.data_dir, services.journal, services.pool.processes, lanes.bulk),
        Trimmer(lanes.bulk),
        SleepWatch(services.manager.everybodys, settings.kernels.sleep_after, lanes.sleep),
    ):
        stack.push_async_callback(work.close)
        work.start()


def _tracer(settings: GatewaySettings, stack: AsyncExitStack) -> Tracer | None:
    """Return what makes spans, if somebody collects them."""
    provider = tracing.provider(settings.version, asked=settings.tracing, environment=os.environ)
    if provider is None:
        return None
    stack.push_async_callback(tracing.close, provider)
    return tracing.OpenTelemetry(provider)


def _readings(services: Services) -> Mapping[str, Mapping[str, float]]:
    """Return the gauges that are read at each scrape."""
    pool = services.pool.statistics()
    journal = services.journal
    problems = services.problems()
    return {
        "cellgate_kernels": {state: float(getattr(pool, state)) for state in KernelState},
        "cellgate_sessions": {state: float(number) for state, number in services.manager.counts().items()},
        "cellgate_tasks": {"": float(len(asyncio.all_tasks()))},
        "cellgate_pool_places": {"": float(services.pool.settings.max_kernels)},
        "cellgate_pool_waiting_claims": {"": float(pool.waiting)},
        "cellgate_pool_longest_wait_seconds": {"": pool.longest_wait},
        "cellgate_queued_executions": {"": float(services.manager.queued())},
        "cellgate_problems": {problem: float(problem in problems) for problem in Problem},
        "cellgate_unrecorded_sessions": {"": float(journal.not_recorded)},
        "cellgate_record_pending_bytes": {"": float(journal.pending_bytes)},
        "cellgate_record_appended_bytes_total": {"": float(journal.appended_bytes)},
        "cellgate_record_write_failures_total": {"": float(journal.write_failures)},
    }


def _access(settings: GatewaySettings, authentication: Authentication) -> AccessPolicy:
    front = settings.front
    everywhere = front.ip in {"", "0.0.0.0", "::"}  # noqa: S104
    own = frozenset() if everywhere else frozenset({front.ip})
    return AccessPolicy(
        authentication, front.allowed_hosts | own, front.allowed_origins, any_address=everywhere
    )


def _folders(settings: GatewaySettings, store: KernelStore, stack: AsyncExitStack) -> KernelFolders:
    """Private folders: sockets where paths are short (unix(7): 108 bytes), workspaces with the data.

    Whatever the previous gateway left in them stays for now: `_recover` cleans up.
    """
    workspaces = settings.data_dir / "workspaces"
    workspaces.mkdir(mode=0o700, exist_ok=True)
    runtime = settings.data_dir.resolve() / "run"
    if len(os.fsencode(runtime)) > SOCKET_PATH_ROOM:
        # Named after the data folder, which only one gateway uses: the next one finds what a crash left.
        name = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16]
        runtime = Path(tempfile.gettempdir()) / f"cellgate-{os.getuid()}-{name}"
    ours = runtime.is_dir() and not runtime.is_symlink() and runtime.lstat().st_uid == os.getuid()
    try:
        runtime.mkdir(mode=0o700, exist_ok=ours)
        runtime.chmod(0o700)
    except OSError as error:
        raise StorageError(
            f"Can't make the folder {runtime} for the kernels' sockets: {in_words(error, file=False)}"
        ) from error

    def leave() -> None:
        with suppress(OSError):
            if not store.load():
                trees.remove(runtime)

    stack.callback(leave)
    packages = site_folder(settings.data_dir / PACKAGES) if settings.packages.allowed else None
    return KernelFolders(runtime=runtime, workspaces=workspaces, packages=packages)


def _staging(settings: GatewaySettings) -> Path:
    """Return an empty folder on the workspaces' file system, for uploads and inputs of jobs."""
    staging = settings.data_dir / "uploads"
    make_way(staging)
    staging.mkdir(mode=0o700)
    return staging


def _servers(
    services: Services, settings: GatewaySettings, certificate: Certificate | None
) -> tuple[Listener, ...]:
    """Return the gateway's own listener and, if they are served, those of programs' ports and of E2B's on
    this machine, which have nothing in common.
    """
    limits = settings.front.listener
    own = Application(
        [*routes(services), *door_routes(services)],
        default_handler_class=NotFoundHandler,
        default_handler_args={"services": services, "known": tuple(path for path, _ in TABLE)},
        log_function=log_request,
        metrics=services.metrics,
        is_token=services.access.is_token,
        owner=services.owner,
        paths=paths() | door_paths(),
        websocket_max_message_size=MAX_MESSAGE_BYTES,
    )
    servers = [_listener(own, services, limits, certificate)]
    share = replace(
        limits,
        connections=max(FEWEST_CONNECTIONS, limits.connections // SHARE_OF_OTHERS),
        memory=limits.memory // SHARE_OF_OTHERS,
    )
    if services.ports is not None:
        programs = Application(
            [(r".*", ProgramHandler, {"services": services})],
            log_function=log_program_request,
            metrics=services.metrics,
            is_token=services.access.is_token,
            paths={ProgramHandler: "/{session}/{port}"},
        )
        servers.append(_listener(programs, services, share, certificate))
    if settings.front.e2b_debug:
        debug = Application(
            debug_routes(services),
            log_function=log_request,
            metrics=services.metrics,
            is_token=services.access.is_token,
            paths=debug_paths(),
        )
        # No proxy is believed: a page could say what one says, and only the name it asks for gives it away.
        servers.append(_listener(debug, services, replace(share, proxies=TrustedProxies()), None))
    services.metrics.watch(lambda: _connections(servers))
    return tuple(servers)


def _listener(
    application: Application, services: Services, settings: ListenerSettings, certificate: Certificate | None
) -> Listener:
    return Listener(
        application,
        settings=settings,
        certificate=certificate,
        closed_by_us=lambda reason: services.metrics.closed_connections[reason].inc(),
        gateway=application.settings.get("owner"),
        max_body_size=MAX_REQUEST_BYTES,
        max_buffer_size=MAX_BUFFER_BYTES,
        max_header_size=MAX_HEAD_BYTES,
    )


def _connections(servers: Sequence[Listener]) -> Mapping[str, Mapping[str, float]]:
    phases: Counter[str] = Counter()
    received = sent = 0
    for server in servers:
        phases.update(server.connections())
        received += server.transferred()[0]
        sent += server.transferred()[1]
    return {
        "cellgate_connections": phases,
        "cellgate_http_received_bytes_total": {"": float(received)},
        "cellgate_http_sent_bytes_total": {"": float(sent)},
    }


def _url(settings: GatewaySettings, sockets: list[socket.socket]) -> str:
    front = settings.front
    port = sockets[0].getsockname()[1]
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(front.ip, front.ip)  # noqa: S104
    name = f"[{host}]" if ":" in host else host
    scheme = "http" if front.tls is None else "https"
    return f"{scheme}://{name}:{port}{front.base_url}"


class Announcement:
    """The file that says where this gateway serves, for commands of the same user."""

    def __init__(self, path: Path, found: Mapping[str, str | int], certificate: Certificate | None) -> None:
        self._path = path
        self._found = found
        self._certificate = certificate
        self._lock = threading.Lock()
        self._removed = False

    def write(self) -> None:
        """Write it, also in place of the former one, unless it has been removed. Blocks; from any thread."""
        with self._lock:
            if not self._removed:
                self._write()

    def _write(self) -> None:
        found = dict(self._found)
        if self._certificate is not None:
            # Commands accept this very certificate, whoever signed it and whatever name it is for.
            found["certificate"] = self._certificate.leaf
        draft = self._path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
            json.dump(found, file)
        draft.replace(self._path)

    def remove(self) -> None:
        """Remove it, for good."""
        with self._lock:
            self._removed = True
            self._path.unlink(missing_ok=True)
