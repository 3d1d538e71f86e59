"""``cellgate serve``: turns settings into a running gateway, and signals into an orderly shutdown.

It builds nothing itself: ``server.assembly`` does. It chooses the backend, prints where the gateway serves,
and waits for SIGTERM or SIGINT; a second signal cuts the orderly shutdown short (``forced_exit``).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from cellgate.cli.base import UsageError, absolute, users_folder
from cellgate.cli.serve.given_settings import GivenSettings
from cellgate.cli.serve.identity_options import IdentityOptions
from cellgate.cli.serve.options import aliases_of, flags_of, is_given, read, told, traits_of
from cellgate.cli.serve.package_options import PackageOptions
from cellgate.cli.serve.removed import REMOVED
from cellgate.cli.serve.sizing import kernels_for, too_many
from cellgate.cli.serve.start_message import StartMessage
from cellgate.cluster.settings import ClusterSettings, check_cluster
from cellgate.execution.limits import LimitCeilings, SessionLimits, check_seconds
from cellgate.http.listener.settings import ListenerSettings, connections_for, raise_open_files, too_few
from cellgate.server.settings import (
    FrontSettings,
    GatewaySettings,
    KernelSettings,
    PeopleSettings,
    StorageSettings,
)
from cellgate.sessions.settings import ManagerSettings, RetentionSettings
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.resources import MIB, MOST_BYTES, ResourceLimits
from cellgate_kernels.base.settings import ContainerSettings, PoolSettings
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.protocol.outputs import OutputCaps

if TYPE_CHECKING:
    from pathlib import Path

    from cellgate.cli.serve.backends import Backend
    from cellgate.http.listener.certificate import TlsFiles
    from cellgate.identity.hub_settings import HubSettings
    from cellgate.ports.origin import PortsOrigin
    from cellgate.quotas.quotas_file import QuotaSettings
    from cellgate.server.log import PacedHandler

logger = logging.getLogger(__name__)

SPAWNED: Mapping[str, object] = MappingProxyType({"pool_size": 0, "shutdown_grace": 5.0})
"""Defaults of a server that a Hub spawned. After ten seconds a Hub's signals become less kind."""
LOG_SECONDS = 60.0
"""Between two looks at how many lines the log left out."""


class ServeApp(IdentityOptions, PackageOptions):
    """The command and all settings of a gateway."""

    name = "cellgate-serve"
    usage = "[options]"
    description = """
        Starts the gateway: it serves the HTTP interface and keeps kernels warm until it is stopped. The first
        start makes the environment of kernels, as "cellgate setup" does, unless they run in containers.

        On SIGTERM or Ctrl-C it takes no new work, gives running cells some time to end, ends all kernels and
        exits with 0. The record of every session stays in the data folder.
    """
    examples = """
        cellgate serve
        cellgate serve --port 9000 --backend sandbox --pool-size 4
        CELLGATE_TOKEN=... cellgate serve --ip 0.0.0.0 --allow-host gateway.example.org
    """

    removed = REMOVED
    each_by_variable = True
    vars().update(
        traits_of(
            *(GivenSettings, FrontSettings, ListenerSettings, StorageSettings, RetentionSettings),
            *(KernelSettings, ContainerSettings, PoolSettings, ResourceLimits, OutputCaps),
            *(SessionLimits, ManagerSettings, ClusterSettings),
        )
    )

    aliases = {  # noqa: RUF012 - in the order of the help
        **aliases_of(
            "ServeApp",
            *(
                "ip",
                "port",
                "ports_port",
                "ports_url",
                "token",
                "token_file",
                "backend",
                "image",
                "runtime",
                "docker_url",
            ),
            *("allowed_hosts", "allowed_origins", "tls_cert", "tls_key", "trusted_proxies", "base_url"),
            *("doors", "pool_size", "max_kernels", "memory", "cpus", "cell_timeout", "idle_timeout"),
            *("sleep_after", "max_memory", "max_cpus", "max_pids", "max_disk", "max_cell_timeout"),
            *("max_lifetime", "quotas", "cell_hook", "preload", "container_per", "record", "journal_sync"),
            *("cluster", "advertise", "lease", "beat", "workspaces_shared"),
            allowed_hosts="allow-host",
            allowed_origins="allow-origin",
        ),
        **IdentityOptions.aliases,
        **PackageOptions.aliases,
    }
    flags = {  # noqa: RUF012
        **IdentityOptions.flags,
        **flags_of("ServeApp", GivenSettings, "no_auth"),
        **flags_of("ServeApp", FrontSettings, "e2b_debug"),
        **flags_of("ServeApp", GivenSettings, "allow_unsandboxed"),
        "fork-server": (
            {"ServeApp": {"fork_server": True}},
            "Start Python kernels in sandboxes and shared containers as forks of a loaded interpreter.",
        ),
        "no-fork-server": (
            {"ServeApp": {"fork_server": False}},
            "Start each kernel as a program of its own.",
        ),
        **flags_of("ServeApp", KernelSettings, "keep_kernels"),
        **flags_of("ServeApp", GivenSettings, "log_json", "tracing"),
    }

    @property
    def given(self) -> GivenSettings:
        """The settings that operators give in words of their own."""
        return read(GivenSettings, self)

    def start(self) -> NoReturn:
        """Serve until a signal, then exit with 0."""
        from cellgate.cli.serve.setup import set_up_first  # noqa: PLC0415
        from cellgate.server.allocator import give_back_large_pieces  # noqa: PLC0415 - --help needs none of it
        from cellgate.server.log import configure  # noqa: PLC0415

        if self.extra_args:
            raise UsageError(f"unexpected argument {self.extra_args[0]!r}; see cellgate serve --help")
        handler = configure(
            self.log.getEffectiveLevel() if self.log_level is None else _level(self.log_level),
            json=self.given.log_json,
        )
        give_back_large_pieces()
        self._take_address_of_hub()
        try:
            backend = asyncio.run(self._choose_backend())
            if backend.container is None and not self.trait_values()["kernel_dirs"]:
                # The reader of the log reads lines of JSON alone.
                set_up_first(logger.info if self.given.log_json else None)
            code = asyncio.run(self._serve(handler, backend))
        except CellgateError as error:
            if not self.given.log_json:
                raise
            logger.critical("The gateway can't serve: %s", error.message, extra={"reason": error.reason})
            code = 2 if isinstance(error, InvalidInput) else 1
        raise SystemExit(code)

    def _take_address_of_hub(self) -> None:
        """Listen where a Hub's proxy expects us, whatever the settings say. Raises InvalidInput."""
        address, hub = self.hub_address(), self.hub_settings()
        if address is None or hub is None:
            return
        self.set_trait("ip", address.ip)
        self.set_trait("port", address.port)
        self.set_trait("base_url", address.prefix)
        if address.tls and hub.tls is not None:
            self.set_trait("tls_cert", str(hub.tls.certificate))
            self.set_trait("tls_key", str(hub.tls.key))
        if address.public_host is not None:
            self.set_trait("allowed_hosts", [*self.given.allowed_hosts, address.public_host])
        if hub.is_spawned:
            self._become_a_server(hub)

    def _become_a_server(self, hub: HubSettings) -> None:
        """Take the defaults of a server that a Hub spawned: lean, and under names that the Hub knows."""
        # Tokens of the Hub or its sign-in are asked for in any case, and cookies are bound to the name.
        self.set_trait("allowed_hosts", ["*"])
        for name, value in SPAWNED.items():
            if not is_given(self, name):
                self.set_trait(name, value)
        folder = users_folder()
        if hub.server and folder is not None and self.data_dir == str(folder):
            name = quote(hub.server, safe="").replace(".", "%2E")
            self.set_trait("data_dir", str(folder / "servers" / name))

    async def _serve(self, log: PacedHandler, backend: Backend) -> int:
        from cellgate.cli.serve.forced_exit import STOP_SIGNALS, leave_on_next_signal  # noqa: PLC0415
        from cellgate.server.assembly import running  # noqa: PLC0415

        token = self._token()
        stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, _stop, stop, number.name)
        try:
            settings = self._settings(backend, token)
        except InvalidInput as error:
            raise self._in_options(error) from error
        self._log_start(backend)
        async with running(settings) as gateway:
            logger.info("The gateway serves at %s", gateway.url)
            telling = Supervisor()
            telling.repeat(partial(_tell_left_out, log), "log", pause=LOG_SECONDS)
            own_token = token is not None and bool(self.given.token or self.given.token_file)
            cluster = settings.cluster
            record = settings.storage.record if cluster is None else cluster.address
            advertised = "" if cluster is None else cluster.advertise
            message = StartMessage(
                self.version, self.data_path, token, own_token, settings.front.e2b_debug, record, advertised
            )
            _say(message.text(gateway, backend))
            why, lost = await _until(stop, gateway.lost)
            await telling.cancel()
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
            leave_on_next_signal(gateway.abandon)
            grace = settings.kernels.shutdown_grace
            logger.log(
                logging.WARNING if lost else logging.INFO,
                "The gateway stops because of %s: it takes no new work, and running cells have %g s",
                *(why, grace),
            )
            _say(f"Stopping: running cells have {grace:g} s. Press Ctrl-C again to leave now.")
        logger.info("The gateway has stopped; the record of all sessions is kept")
        _say(f"Stopped. The record of all sessions is kept.{f' {lost}.' if lost else ''}")
        return 1 if lost else 0

    def _log_start(self, backend: Backend) -> None:
        """Log what starts: the version, the data folder, kernels' walls, and settings that were changed."""
        where = ("data_dir", "backend", "token")
        logger.info(
            "Cellgate %s starts with the data folder %s and the backend %s (%s); settings: %s",
            *(self.version, self.data_path, backend.name, backend.isolation, told(self, *where)),
        )

    async def _choose_backend(self) -> Backend:
        """Return the backend of the settings. Raises BackendUnavailable or UsageError."""
        from cellgate.cli.serve.backends import choose_backend  # noqa: PLC0415

        given, hub = self.given, self.hub_settings()
        engine = str(self.trait_values()["docker_url"])
        backend = await choose_backend(given.backend, read(ContainerSettings, self), engine)
        if backend.name == "process":
            self._refuse_exposed("serve kernels without isolation", allowed=given.allow_unsandboxed)
            if hub is not None and not hub.is_spawned and not given.allow_unsandboxed:
                raise UsageError(
                    "refusing to serve kernels without isolation to the users of a Hub; use --backend sandbox"
                    " or --allow-unsandboxed"
                )
        return backend

    def _refuse_exposed(self, what: str, *, allowed: bool) -> None:
        from cellgate.identity.addresses import is_loopback  # noqa: PLC0415

        ip = read(FrontSettings, self).ip
        if not allowed and not is_loopback(ip):
            where = ip or "all addresses"
            raise UsageError(
                f"refusing to {what} on {where}, which other machines may reach; use --ip 127.0.0.1"
                + (", --backend sandbox or --allow-unsandboxed" if "isolation" in what else " or a token")
            )

    def _token(self) -> str | None:
        from cellgate.identity.administrator import check_own_token, read_own_token  # noqa: PLC0415

        given = self.given
        if given.token_file and (given.token or given.no_auth):
            other = "--no-auth" if given.no_auth else "--token, or CELLGATE_TOKEN"
            raise UsageError(f"--token-file, or {other}: not both")
        if given.no_auth:
            self._refuse_exposed("serve without a token", allowed=False)
            return None
        if given.token_file:
            return read_own_token(absolute(given.token_file))
        return check_own_token(given.token) if given.token else secrets.token_urlsafe(24)

    def _settings(self, backend: Backend, token: str | None) -> GatewaySettings:
        """Make all settings. Raises InvalidInput."""
        for name in ("claim_timeout", "start_timeout", "cell_timeout", "idle_timeout", "lifetime"):
            check_seconds(self.trait_values()[name], name)
        self._choose_size(backend)
        manager = self._manager(self._ceilings(backend))
        kernels = self._kernels(backend)
        front = self._front()
        retention = read(RetentionSettings, self, age=self.given.retention_days * 86400 or None)
        return GatewaySettings(
            data_dir=self.data_path,
            version=self.version,
            manager=manager,
            kernels=kernels,
            people=PeopleSettings(
                token=token,
                quotas=self._quotas(),
                token_file=absolute(self.given.token_file) if self.given.token_file else None,
                oidc=self.oidc_settings(),
                librechat_key=self.librechat_file(front.doors),
                hub=self.hub_settings(),
                cluster_key=absolute(self.vouchers.cluster_key) if self.vouchers.cluster_key else None,
            ),
            front=front,
            storage=read(StorageSettings, self, retention=retention),
            packages=self.package_settings(self.environment),
            cluster=self._cluster(),
            tracing=self.given.tracing,
            cell_hook=_program_of(self.given.cell_hook),
        )

    def _choose_size(self, backend: Backend) -> None:
        """Choose how many kernels there may be, unless the operator did; warn of far too many."""
        from cellgate.server import machine  # noqa: PLC0415

        memory = machine.memory(_groups_of(backend))
        if not is_given(self, "max_kernels"):
            self.set_trait("max_kernels", kernels_for(memory))
        limit = min(read(ResourceLimits, self).memory, memory)
        if (warning := too_many(self.trait_values()["max_kernels"], limit, memory)) is not None:
            logger.warning("%s", warning)

    def _manager(self, ceilings: LimitCeilings) -> ManagerSettings:
        """Make the settings of sessions, with defaults that no ceiling forbids."""
        from cellgate.channels.client import ChannelSettings  # noqa: PLC0415
        from cellgate.execution.run import ExecutionSettings  # noqa: PLC0415
        from cellgate.sessions.parts import SessionSettings  # noqa: PLC0415
        from cellgate_kernels.base.threads import Lane  # noqa: PLC0415

        session = SessionSettings(
            ExecutionSettings(read(OutputCaps, self)),
            ChannelSettings(self.data_path, Lane("outboxes", 4)),
            gateway_version=self.version,
            ceilings=ceilings,
        )
        limits = read(SessionLimits, self, resources=read(ResourceLimits, self))
        return read(ManagerSettings, self, session=session, limits=self._lowered(limits, ceilings))

    def _kernels(self, backend: Backend) -> KernelSettings:
        from cellgate.server.kernels import why_unshared  # noqa: PLC0415

        kernels = read(
            KernelSettings,
            self,
            backend=backend.name,
            isolation=backend.isolation,
            gaps=backend.gaps,
            container=backend.container,
        )
        # A fork has little to do besides.
        forking = kernels.fork_server and backend.name == "sandbox"
        if kernels.container_per == "principal" and backend.container is not None:
            forking |= not why_unshared(backend.container, fork_server=kernels.fork_server)
        pool = read(PoolSettings, self, refill_pause=0.1)
        if not is_given(self, "concurrent_starts"):
            pool = replace(pool, concurrent_starts=4 if forking else 2)
        folders = tuple(str(absolute(folder)) for folder in kernels.kernel_dirs)
        return replace(kernels, pool=pool, kernel_dirs=folders)

    def _front(self) -> FrontSettings:
        """Make the settings of listening. Raises InvalidInput, UsageError."""
        from cellgate.doors.table import check_doors  # noqa: PLC0415
        from cellgate.http.access import check_hosts, check_origins  # noqa: PLC0415
        from cellgate.http.routes import check_base_url  # noqa: PLC0415

        front = read(FrontSettings, self)
        doors = check_doors(front.doors)
        if front.e2b_debug and "e2b" not in doors:
            raise UsageError("--e2b-debug needs --doors e2b")
        given = self.given
        return replace(
            front,
            doors=doors,
            allowed_hosts=check_hosts(given.allowed_hosts),
            allowed_origins=check_origins(given.allowed_origins),
            base_url=check_base_url(front.base_url),
            ports_origin=self._ports_origin(front.ports_port),
            listener=self._listener(),
            tls=self._tls(),
        )

    def _cluster(self) -> ClusterSettings | None:
        """Make the settings of a cluster, if one is named. Raises InvalidInput, UsageError."""
        given = read(ClusterSettings, self)
        if given.address:
            if read(StorageSettings, self).record not in {"", given.address}:
                raise UsageError("--cluster has the record as well: leave --record out")
            if not given.advertise:
                raise UsageError(
                    "--advertise is missing: with --cluster, give the address at which the other gateways"
                    " reach this one, such as --advertise http://10.0.0.7:8888"
                )
            disk = str(absolute(given.workspaces)) if given.workspaces else ""
            return check_cluster(replace(given, workspaces=disk))
        for name in ("advertise", "lease", "beat", "workspaces_shared", "cluster_key"):
            if is_given(self, name):
                raise UsageError(f"{self.option(name)} needs --cluster")
        return None

    def _ports_origin(self, port: int | None) -> PortsOrigin | None:
        """Return where browsers find programs' ports, if the operator says so. Raises InvalidInput."""
        from cellgate.ports.origin import parse_ports_url  # noqa: PLC0415

        url = self.given.ports_url
        if not url:
            return None
        if port is None:
            raise UsageError("--ports-url needs --ports-port: where to listen for that")
        return parse_ports_url(url)

    def _quotas(self) -> QuotaSettings:
        """Read the file of quotas. Raises UsageError that names the file and what is wrong with it."""
        from cellgate.quotas.quotas_file import QuotaSettings, read_quotas  # noqa: PLC0415

        if not self.given.quotas:
            return QuotaSettings()
        file = absolute(self.given.quotas)
        try:
            return QuotaSettings(file, read_quotas(file))
        except InvalidInput as error:
            raise UsageError(error.message) from error

    def _in_options(self, error: InvalidInput) -> UsageError:
        """Return a refusal of settings in the user's terms: options and their values in place of fields."""

        def name_of(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name not in self.traits(config=True):
                return match[0]
            value = getattr(self, name)
            return f"{self.option(name)} ({f'{value:.15g}' if isinstance(value, float) else value})"

        return UsageError(re.sub(r"\blimits\.(\w+)|^(\w+)(?= must)", name_of, error.message))

    def _tls(self) -> TlsFiles | None:
        from cellgate.http.listener.certificate import TlsFiles  # noqa: PLC0415

        certificate, key = self.given.tls_cert, self.given.tls_key
        if not (certificate or key):
            return None
        if not (certificate and key):
            raise UsageError("--tls-cert and --tls-key are needed together")
        hub, address = self.hub_settings(), self.hub_address()
        by_hub = hub is not None and address is not None and address.tls
        clients = hub.tls.authorities if by_hub and hub is not None and hub.tls is not None else None
        return TlsFiles(absolute(certificate), absolute(key), clients)

    def _listener(self) -> ListenerSettings:
        from cellgate.http.listener.forwarded import parse_proxies  # noqa: PLC0415

        files = raise_open_files()
        kernels = read(PoolSettings, self).max_kernels
        proxies = parse_proxies(self.given.trusted_proxies)
        if (hub := self.hub_settings()) is not None:
            # Where the Hub's proxy is, a server that it spawned does not know.
            proxies = replace(proxies, of_hub=True, anybody=hub.is_spawned and not proxies.networks)
        listener = read(ListenerSettings, self, proxies=proxies)
        if not is_given(self, "max_connections"):
            listener = replace(listener, connections=connections_for(files, kernels))
        warning = too_few(files, kernels, listener.connections)
        if warning is not None:
            logger.warning("%s", warning)
        return listener

    def _ceilings(self, backend: Backend) -> LimitCeilings:
        """Return the ceilings of the options, by default the machine's resources. Raises InvalidInput."""
        from cellgate.server import machine  # noqa: PLC0415

        groups, given = _groups_of(backend), self.given
        try:
            resources = ResourceLimits(
                memory=given.max_memory or max(machine.memory(groups), 64 * MIB),
                cpus=given.max_cpus or max(machine.processors(groups), 0.05),
                pids=given.max_pids,
                disk=given.max_disk or max((machine.disk(self.data_path) or MOST_BYTES) // 2, MIB),
            )
            return LimitCeilings(resources, given.max_cell_timeout, given.max_lifetime)
        except InvalidInput as error:
            raise InvalidInput(error.message.replace("limits.", "limits.max_")) from error

    @staticmethod
    def _lowered(limits: SessionLimits, ceilings: LimitCeilings) -> SessionLimits:
        lowered, changes = ceilings.lower(limits)
        for what in changes:
            logger.warning("A default is above its ceiling and was lowered: %s", what)
        return lowered


def _groups_of(backend: Backend) -> Path | None:
    """Return the folder of the control groups that limit kernels; containers are in the engine's own."""
    from cellgate.server import machine  # noqa: PLC0415

    return None if backend.name == "docker" else machine.CGROUPS


def _level(level: int | str) -> int:
    return level if isinstance(level, int) else logging.getLevelNamesMapping()[level]


def _stop(stop: asyncio.Future[str], why: str) -> None:
    if not stop.done():
        stop.set_result(why)


async def _until(stop: asyncio.Future[str], lost: asyncio.Future[str] | None) -> tuple[str, str]:
    """Return why to stop, a signal's name or a reason, and that reason once the gateway has no place."""
    if lost is not None:
        lost.add_done_callback(lambda done: None if done.cancelled() else _stop(stop, done.result()))
    why = await stop
    return why, lost.result() if lost is not None and lost.done() else ""


async def _tell_left_out(log: PacedHandler) -> float:
    log.tell_left_out()
    return LOG_SECONDS


def _program_of(cell_hook: str) -> Path | None:
    """Return the program that sees cells before they run, if there is one. Raises InvalidInput."""
    from cellgate.hook.program import check_program  # noqa: PLC0415

    return check_program(absolute(cell_hook)) if cell_hook else None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
