"""The one place that builds and wires a gateway, from settings to serving, and shuts it down in order.

It opens storage, people, kernels, sessions and the front, each by the module of that name; nothing else makes
pools, journals or managers. On shutdown: no new connections, running cells get their grace period, sessions
end, kernels end, the record is closed. ``cli.serve`` makes the settings from the command line and owns the
signals.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from cellgate.cluster.nodes import Load
from cellgate.doors.table import recover_doors
from cellgate.errors import not_written
from cellgate.http.listener.certificate import Certificate
from cellgate.http.listener.server import Listener
from cellgate.http.metrics import KernelState, Metrics, Problem
from cellgate.http.services import Services
from cellgate.http.tracing import Tracer
from cellgate.identity.principal import DEFAULT
from cellgate.quotas.allotting import Allotting
from cellgate.record.store.opening import record_address
from cellgate.server import tracing
from cellgate.server.acts import ActRecorder
from cellgate.server.allocator import Trimmer
from cellgate.server.front import Announcement, bind, bind_debug, front_url, open_front, open_listeners
from cellgate.server.hop import open_hop
from cellgate.server.hub_activity import HubActivity
from cellgate.server.kernels import open_ground, open_kernels
from cellgate.server.observing import Observer, Sampler
from cellgate.server.people import (
    Changes,
    cluster_users,
    measure_records,
    open_people,
    watch_own_token,
    watch_quotas,
)
from cellgate.server.sessions import open_sessions, recover_sessions
from cellgate.server.settings import GatewaySettings
from cellgate.server.storage import open_storage
from cellgate.server.work_log import WorkLog
from cellgate.sessions.proven_time import ProvenTime
from cellgate.sessions.retention import Retention
from cellgate.sessions.sleep import SleepWatch
from cellgate.wire.found_gateway import RUNNING_FILE
from cellgate_kernels.base.threads import ThreadLanes
from cellgate_kernels.engine.sweep import sweep

SWEEP_SECONDS = 5.0
SWITCH_SECONDS = 0.0005


class RunningGateway:
    """A gateway that is serving at `url`, until `shut_down`. Its first listener is the gateway's own."""

    def __init__(
        self, url: str, services: Services, servers: tuple[Listener, ...], settings: GatewaySettings
    ) -> None:
        self.url = url
        self.services = services
        self._servers = servers
        self._settings = settings

    @property
    def lost(self) -> asyncio.Future[str] | None:
        """Done with the reason once the gateway must stop: another one has its place in the cluster."""
        cluster = self.services.storage.cluster
        return None if cluster is None else cluster.membership.lost

    def console_url(self) -> str:
        """Return an address that signs a browser in as the administrator: once, within a minute."""
        return f"{self.url}/?ticket={self.services.people.sign_ins.ticket(DEFAULT)}"

    @property
    def ports_url(self) -> str | None:
        """The place of programs' ports, in words; None if they are not served."""
        ports = self.services.front.ports
        return None if ports is None else ports.origin.described(self._settings.front.ip)

    @property
    def ports_port(self) -> int | None:
        """The port on which programs' ports are served; None if they are not served."""
        return None if self.services.front.ports is None else self.services.front.ports.listens_on

    def refuse_work(self) -> None:
        """Take no new connections and no new work from now on. Idempotent."""
        for server in self._servers:
            server.stop()
        self.services.kernels.pool.rest()
        self.services.sessions.manager.refuse_work()
        if (cluster := self.services.storage.cluster) is not None:
            cluster.membership.tell_room()

    async def shut_down(self) -> None:
        """Take no new work, give running cells their grace period, end all kernels unless they are kept."""
        self.refuse_work()
        kernels = self._settings.kernels
        await self.services.sessions.manager.close(kernels.shutdown_grace, keep_kernels=kernels.keep_kernels)
        await self.services.sessions.explorer.close()
        for server in self._servers:
            await server.close_all_connections()
        await self.services.kernels.pool.close()

    def abandon(self) -> None:
        """Do the necessary cleanup if the process ends without `shut_down`; blocking, from any thread."""
        engine = self.services.kernels.engine
        if engine is not None and not self._settings.kernels.keep_kernels:
            sweep(engine.url, engine.instance, SWEEP_SECONDS)


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
    lanes = ThreadLanes(settings.kernels.pool.max_kernels)
    lanes.cells.be_default()
    stack.callback(lanes.close)
    stack.callback(settings.manager.session.channels.lane.close)
    front, metrics = settings.front, Metrics(settings.version)
    certificate = None if front.tls is None else await Certificate.open(front.tls, lanes.files)
    storage = await open_storage(settings, lanes, stack)
    sockets = bind(front.ip, front.port, "--port")
    ports_sockets = [] if front.ports_port is None else bind(front.ip, front.ports_port, "--ports-port")
    ground = await open_ground(settings, stack)
    users = await cluster_users(settings, lanes)
    people = await open_people(settings, users, metrics, stack)
    authentication = people.access.authentication
    debug_sockets = bind_debug() if front.e2b_debug else []
    acts = ActRecorder(authentication.directory, storage.journal)
    stack.push_async_callback(acts.close)
    tracer = _tracer(settings, stack)
    observer = Observer(metrics, tracer)
    kernels = open_kernels(settings, ground, observer, stack)
    sessions = await open_sessions(settings, storage, people, kernels, ground.folders, observer, stack)
    hop = open_hop(storage, users, sessions.manager.keys, stack)
    shown = open_front(
        settings, ports_sockets, people, sessions, metrics, tracer or Tracer(), lanes.texts, hop
    )
    services = Services(storage, people, kernels, sessions, shown)
    metrics.watch(lambda: _readings(services))
    _share_quotas(services)
    await measure_records(people.usage, storage.journal, settings.people.quotas)
    stack.push_async_callback(storage.trail.close)
    stack.push_async_callback(people.sign_ins.close)
    workspaces = ground.folders.workspaces
    await ground.folders.leftovers.sweep(*{settings.data_dir, workspaces.parent, workspaces})
    await recover_sessions(services, ground)
    recover_doors(services)
    servers = open_listeners(services, settings, certificate)
    bound = [each for each in (sockets, ports_sockets, debug_sockets) if each]
    for server, its_sockets in zip(servers, bound, strict=True):
        server.add_sockets(its_sockets)
    gateway = RunningGateway(front_url(front, sockets), services, servers, settings)
    stack.push_async_callback(gateway.shut_down)
    kernels.pool.start()
    sessions.manager.start()
    changes = Changes(services, servers, authentication)
    authentication.follow(changes)
    people.sign_ins.follow(changes.end_logins)
    acts.start()
    storage.trail.start()
    watch_quotas(settings.people.quotas, people.usage, stack)
    _begin_upkeep(services, settings, stack)
    _announce(settings, gateway, changes, certificate, stack)
    # The loop waits this long for a computing thread to yield; the default is ten times as long.
    sys.setswitchinterval(SWITCH_SECONDS)
    # Objects loaded now stay: the garbage collector need not scan them each time a large message triggers it.
    gc.freeze()
    return gateway


def _announce(
    settings: GatewaySettings,
    gateway: RunningGateway,
    changes: Changes,
    certificate: Certificate | None,
    stack: AsyncExitStack,
) -> None:
    """Publish the gateway's address for commands of the same user, while it accepts work."""
    services, lane = gateway.services, gateway.services.storage.lanes.files
    token = settings.people.token or ""
    found: dict[str, str | int] = {"url": gateway.url, "token": token, "pid": os.getpid()}
    if gateway.ports_url is not None and gateway.ports_port is not None:
        found |= {"ports_url": gateway.ports_url, "ports_port": gateway.ports_port}
    if settings.cluster is not None:
        found["cluster"] = str(record_address(settings.cluster.address, "--cluster"))
    announcement = Announcement(settings.data_dir / RUNNING_FILE, found, certificate)
    announcement.write()
    stack.callback(announcement.remove)
    if certificate is not None:
        stack.push_async_callback(certificate.close)
        certificate.start(partial(lane.run, announcement.write))
        services.front.metrics.watch(
            lambda: {"cellgate_certificate_expiry_timestamp_seconds": {"": certificate.expires}}
        )

    async def token_changed(token: str) -> None:
        changes.end_logins()
        await lane.run(announcement.change_token, token)

    administrator = services.people.access.authentication.directory.administrator
    watch_own_token(settings.people, administrator, token_changed, stack)
    # Before all other steps of the end, because some take their time.
    stack.callback(gateway.refuse_work)


def _begin_upkeep(services: Services, settings: GatewaySettings, stack: AsyncExitStack) -> None:
    """Start the tasks beside the requests: old records, samples for metrics, free memory, sleep, load."""
    cluster = services.storage.cluster
    if cluster is not None:
        cluster.membership.measure = partial(_load, services)
    lanes, purger = services.storage.lanes, services.sessions.manager.purger
    clock = ProvenTime(settings.data_dir)
    retention = Retention(services.storage.journal, purger, settings.storage.retention, clock, lanes.bulk)
    services.front.metrics.watch(
        lambda: {"cellgate_unproven_clock_leaps": {"": float(retention.unproven_leaps)}}
    )
    for work in (
        retention,
        Sampler(
            services.front.metrics,
            settings.data_dir,
            services.storage.journal,
            services.sessions.archive.meter,
            lanes.bulk,
        ),
        WorkLog(services.problems, settings.data_dir),
        Trimmer(lanes.bulk),
        SleepWatch(services.sessions.manager.everybodys, settings.kernels.sleep_after, lanes.sleep),
    ):
        stack.push_async_callback(work.close)
        work.start()
    hub = settings.people.hub
    if hub is not None and hub.activity_url:
        activity = HubActivity(hub, services.sessions.manager.everybodys)
        stack.push_async_callback(activity.close)
        activity.start()


def _tracer(settings: GatewaySettings, stack: AsyncExitStack) -> Tracer | None:
    """Return the maker of spans, if a collector is configured."""
    provider = tracing.provider(settings.version, asked=settings.tracing, environment=os.environ)
    if provider is None:
        return None
    stack.push_async_callback(tracing.close, provider)
    return tracing.OpenTelemetry(provider)


def _share_quotas(services: Services) -> None:
    """Let quotas hold for what sessions use at all gateways of the cluster, if it is one."""
    usage, cluster = services.people.usage, services.storage.cluster
    if cluster is not None:
        usage.cluster = cluster.uses
        cluster.uses.publish_own = usage.publish
        allotting = Allotting(usage, cluster.allotments)
        usage.allotting = allotting
        cluster.allotments.top_up, cluster.allotments.renew = allotting.top_up, allotting.renew


def _load(services: Services) -> Load:
    """Return the kernels of this node for the others of its cluster: no further one if it takes no work."""
    pool = services.kernels.pool
    most = pool.settings.max_kernels
    used = most - pool.room() + services.sessions.manager.keys.unmade
    return Load(used if services.problems() else most, used, pool.statistics().warm)


def _readings(services: Services) -> Mapping[str, Mapping[str, float]]:
    """Return the gauges that are read at each scrape."""
    pool = services.kernels.pool.statistics()
    journal = services.storage.journal
    problems = services.problems()
    cluster = services.storage.cluster
    return {
        "cellgate_kernels": {state: float(getattr(pool, state)) for state in KernelState},
        "cellgate_sessions": {
            state: float(number) for state, number in services.sessions.manager.counts().items()
        },
        "cellgate_tasks": {"": float(len(asyncio.all_tasks()))},
        "cellgate_pool_places": {"": float(services.kernels.pool.settings.max_kernels)},
        "cellgate_pool_waiting_claims": {"": float(pool.waiting)},
        "cellgate_pool_longest_wait_seconds": {"": pool.longest_wait},
        "cellgate_queued_executions": {"": float(services.sessions.manager.queued())},
        "cellgate_problems": {problem: float(problem in problems) for problem in Problem},
        "cellgate_unrecorded_sessions": {"": float(journal.not_recorded)},
        "cellgate_record_pending_bytes": {"": float(journal.pending_bytes)},
        "cellgate_record_appended_bytes_total": {"": float(journal.appended_bytes)},
        "cellgate_record_write_failures_total": {"": float(journal.write_failures)},
        "cellgate_sessions_taken_over_total": {
            "": float(0 if cluster is None else cluster.membership.takeovers)
        },
    }
