"""``cellgate serve``: turns settings into a running gateway, and signals into an orderly shutdown.

It builds nothing itself: ``server.assembly`` does. It chooses the backend, prints where the gateway serves,
and waits for SIGTERM or SIGINT; a second signal cuts the orderly shutdown short (``forced_exit``).
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from traitlets import Bool, Float, Integer, List, Unicode
from traitlets import Enum as EnumTrait

from cellgate.cli.base import RUNNING_FILE, UsageError, absolute, users_folder
from cellgate.cli.serve.identity_options import IdentityOptions
from cellgate.cli.serve.package_options import PackageOptions
from cellgate.cli.setting_checks import Size, plain, settings_of_kind
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.tasks import Supervisor

if TYPE_CHECKING:
    from cellgate.cli.serve.backends import Backend
    from cellgate.execution.limits import Ceilings, SessionLimits
    from cellgate.server.assembly import RunningGateway
    from cellgate.server.log import PacedHandler

logger = logging.getLogger(__name__)

LOG_SECONDS = 60.0
"""Between two looks at how many lines the log left out."""


class ServeApp(IdentityOptions, PackageOptions):
    """The command and all settings of a gateway."""

    name = "cellgate-serve"
    usage = "[options]"
    description = """
        Starts the gateway: it serves the HTTP interface and keeps kernels warm until it is stopped.

        On SIGTERM or Ctrl-C it takes no new work, gives running cells some time to end, ends all kernels and
        exits with 0. The record of every session stays in the data folder.
    """
    examples = """
        cellgate serve
        cellgate serve --port 9000 --backend sandbox --pool-size 4
        CELLGATE_TOKEN=... cellgate serve --ip 0.0.0.0 --allow-host gateway.example.org
    """

    ip = Unicode("127.0.0.1", help="The address to listen on.").tag(config=True, metavar="ADDRESS")
    port = Integer(8888, min=0, max=65535, help="The port to listen on; 0: a free one.").tag(
        config=True, metavar="PORT"
    )
    ports_port = Integer(
        None,
        allow_none=True,
        min=0,
        max=65535,
        help="A second port to listen on, at which browsers reach what programs inside sessions show; 0: a "
        "free one; default: none.",
    ).tag(config=True, metavar="PORT")
    ports_url = Unicode(
        help="Where browsers find that, if not at http://HOST:PORT, such as https://*.ports.example.org, by "
        "which each port of each session has an origin of its own."
    ).tag(config=True, metavar="URL")
    token = Unicode(
        help="The administrator's token, at least 8 printable ASCII characters, no spaces; default: a new one"
        " at each start, in gateway.json in the data folder. Users have theirs."
    ).tag(config=True, metavar="TOKEN")
    no_auth = Bool(False, help="Ask for no token; on loopback addresses only.").tag(config=True)
    backend = EnumTrait(
        ("auto", "docker", "sandbox", "process"),
        "auto",
        help="What isolates kernels: docker (containers), sandbox (bubblewrap), process (nothing), or auto: "
        "the best that works.",
    ).tag(config=True, metavar="NAME")
    image = Unicode("cellgate/kernel:latest", help="The image of kernels in containers.").tag(
        config=True, metavar="NAME"
    )
    runtime = Unicode(help="The container engine's runtime, such as runsc; default: the engine's own.").tag(
        config=True, metavar="NAME"
    )
    docker_url = Unicode("unix:///var/run/docker.sock", help="The container engine's address.").tag(
        config=True, metavar="URL"
    )
    network = Unicode(help="The container engine's network for kernels; default: none at all.").tag(
        config=True
    )
    mounts = List(
        Unicode(), help="Additional folders for kernels in containers: SOURCE:TARGET or SOURCE:TARGET:rw."
    ).tag(config=True, metavar="MOUNT")
    allow_unsandboxed = Bool(
        False, help="Serve kernels without isolation on an address that other machines can reach."
    ).tag(config=True)
    allowed_hosts = List(
        Unicode(), help="Host names that clients may use for this gateway, in addition to loopback."
    ).tag(config=True, metavar="NAME")
    allowed_origins = List(Unicode(), help="Origins of web pages that may use this gateway.").tag(
        config=True, metavar="ORIGIN"
    )
    tls_cert = Unicode(
        help="A PEM file with a certificate and those that signed it, to serve HTTPS; needs --tls-key. It is "
        "read again when it changes."
    ).tag(config=True, metavar="FILE")
    tls_key = Unicode(help="The PEM file with the certificate's private key.").tag(
        config=True, metavar="FILE"
    )
    trusted_proxies = List(
        Unicode(),
        help="Addresses or networks, such as 10.0.0.0/8, of proxies whose X-Forwarded-For, -Proto and -Host "
        "are believed; commas may separate them.",
    ).tag(config=True, metavar="CIDR")
    base_url = Unicode("/", help="The path below which everything is served, such as /cellgate.").tag(
        config=True, metavar="PATH"
    )
    doors = List(
        Unicode(),
        help="Doors for clients of other systems: agentrun, azure, dify, e2b, librechat, piston, replit, "
        "terrarium, or all; commas may separate them.",
    ).tag(config=True, metavar="NAME")
    e2b_debug = Bool(
        False,
        help="Serve E2B's SDKs with E2B_DEBUG, at three ports of localhost without a token.",
    ).tag(config=True)
    kernel_dirs = List(Unicode(), help="Folders of kernelspecs; default: those of cellgate setup.").tag(
        config=True, metavar="DIR"
    )
    default_kernel = Unicode("python3", help="The kernelspec of sessions that ask for none.").tag(config=True)
    warm_kernels = List(Unicode(), help="Additional kernelspecs to keep warm kernels of.").tag(config=True)
    pool_size = Integer(
        None,
        allow_none=True,
        min=0,
        help="Warm kernels kept ready; default: 2, or 1 where they are forked.",
    ).tag(config=True, metavar="N")
    burst_size = Integer(
        None,
        allow_none=True,
        min=0,
        help=(
            "The most warm kernels kept ready after a burst of sessions; default: 8, or 2 where they are "
            "forked."
        ),
    ).tag(config=True)
    max_kernels = Integer(64, min=1, help="The most kernels that exist at once.").tag(
        config=True, metavar="N"
    )
    concurrent_starts = Integer(
        0, min=0, help="The most kernels that start at once; 0: 2, or 4 with a fork server."
    ).tag(config=True)
    claim_timeout = Float(
        30.0, min=0.1, help="Seconds that a request waits for a kernel when none is free."
    ).tag(config=True)
    start_timeout = Float(60.0, min=1, help="Seconds that a kernel may take to start.").tag(config=True)
    fork_server = Bool(
        True,
        help=(
            "Start Python kernels in sandboxes and shared containers as forks of an interpreter that has "
            "loaded numpy, pandas and matplotlib."
        ),
    ).tag(config=True)
    container_per = EnumTrait(
        ("session", "principal"),
        "session",
        help="What each container is for: one session, or all of one user's: more fit, without walls between "
        "them.",
    ).tag(config=True)
    preload = List(Unicode(), help="Modules that warm Python kernels import in advance, such as numpy.").tag(
        config=True, metavar="MODULE"
    )
    memory = Size("1g", help="Memory of a kernel.").tag(config=True, metavar="SIZE")
    cpus = Float(1.0, help="Processors of a kernel.").tag(config=True, metavar="N")
    pids = Integer(256, help="Processes and threads of a kernel.").tag(config=True)
    disk = Size("1g", help="Disk space of a session, its largest file, and the size of /tmp.").tag(
        config=True, metavar="SIZE"
    )
    cell_timeout = Float(
        60.0, min=0.01, help="Seconds a cell may run unless its request says otherwise."
    ).tag(config=True, metavar="SECONDS")
    idle_timeout = Float(1800.0, min=0.1, help="Seconds without use after which a session ends.").tag(
        config=True, metavar="SECONDS"
    )
    sleep_after = Float(
        0.0,
        min=0.0,
        help="Seconds without use after which a kernel is frozen and its memory given back; 0: never.",
    ).tag(config=True, metavar="SECONDS")
    lifetime = Float(86400.0, min=1, help="Seconds after which a session ends, used or not.").tag(config=True)
    max_memory = Size("", help="The most memory a session may ask for; default: the machine's.").tag(
        config=True, metavar="SIZE"
    )
    max_cpus = Float(0.0, help="The most processors a session may ask for; default: the machine's.").tag(
        config=True, metavar="N"
    )
    max_pids = Integer(4096, help="The most processes and threads a session may ask for.").tag(
        config=True, metavar="N"
    )
    max_disk = Size(
        "", help="The most disk space a session may ask for; default: half of the data folder's disk."
    ).tag(config=True, metavar="SIZE")
    max_cell_timeout = Float(
        86400.0, help="The most seconds a cell may run, whatever its request or session says."
    ).tag(config=True, metavar="SECONDS")
    max_lifetime = Float(
        30 * 86400.0, help="The most seconds after which a session ends, whatever it asked for."
    ).tag(config=True, metavar="SECONDS")
    quotas = Unicode(
        help="The file of quotas, in TOML: what each role and each principal may use; default: no quotas."
    ).tag(config=True, metavar="FILE")
    interrupt_grace = Float(
        5.0, min=0.05, help="Seconds from a cell's interrupt at its deadline until its kernel is killed."
    ).tag(config=True)
    max_queue = Integer(64, min=1, help="The most executions that wait in one session.").tag(config=True)
    channel_cell_timeout = Float(
        0.0, min=0, help="Seconds a Jupyter client's cell may run; 0: as long as max_cell_timeout says."
    ).tag(config=True, metavar="SECONDS")
    channel_queue = Integer(
        1000, min=1, help="The most cells of Jupyter clients that wait in one session."
    ).tag(config=True)
    channel_compression = Bool(False, help="Offer compression (permessage-deflate) to WebSockets.").tag(
        config=True
    )
    slow_client_memory = Size(
        "8m",
        help="How much may wait in memory for the slow WebSockets of one kernel; the rest waits on disk.",
    ).tag(config=True, metavar="SIZE")
    slow_client_disk = Size(
        "1g", help="How much may wait for a slow WebSocket in all; above that, it is closed."
    ).tag(config=True, metavar="SIZE")
    replay_seconds = Float(
        60.0,
        min=0,
        help="Seconds that messages are kept for a WebSocket that returns with its session_id.",
    ).tag(config=True, metavar="SECONDS")
    replay_size = Size("16m", help="Size of the messages that are kept for it.").tag(
        config=True, metavar="SIZE"
    )
    client_silence = Float(
        180.0,
        min=0.1,
        help="Seconds after which a Jupyter client's WebSocket is closed if its machine answers nothing.",
    ).tag(config=True, metavar="SECONDS")
    max_connections = Integer(
        0,
        min=0,
        help="The most connections at once; 0: up to 4096, depending on how many open files are allowed.",
    ).tag(config=True, metavar="N")
    connections_per_address = Integer(
        0, min=0, help="The most connections of one remote address; 0: half of all; loopback has no limit."
    ).tag(config=True, metavar="N")
    login_attempts = Integer(
        10,
        min=0,
        help="Wrong tokens that an address may show at once; then one each 2 seconds. 0: no limit.",
    ).tag(config=True, metavar="N")
    head_timeout = Float(10.0, min=0.1, help="Seconds in which a request's head must arrive.").tag(
        config=True, metavar="SECONDS"
    )
    connection_idle_timeout = Float(
        120.0, min=0.1, help="Seconds that a connection may wait for its next request."
    ).tag(config=True, metavar="SECONDS")
    body_timeout = Float(
        60.0,
        min=0.1,
        help="Seconds in which a request's body, or a message on a WebSocket, must end or grow by body_rate.",
    ).tag(config=True, metavar="SECONDS")
    body_rate = Integer(
        1024, min=0, help="Bytes a second that a body or message must bring in each body_timeout."
    ).tag(config=True)
    answer_timeout = Float(
        180.0, min=0.1, help="Seconds in which a client must take some of its answer."
    ).tag(config=True, metavar="SECONDS")
    client_memory = Size(
        "512m", help="Memory for all clients' unfinished requests and untaken answers together."
    ).tag(config=True, metavar="SIZE")
    text_cap = Size("10m", help="Text output kept of one cell.").tag(config=True, metavar="SIZE")
    data_cap = Size("50m", help="Images and other data kept of one cell.").tag(config=True, metavar="SIZE")
    cull_interval = Float(5.0, min=0.05, help="Seconds between checks for idle sessions.").tag(config=True)
    shutdown_grace = Float(10.0, min=0, help="Seconds that running cells get at a shutdown.").tag(
        config=True, metavar="SECONDS"
    )
    keep_kernels = Bool(
        False,
        help="Leave the containers of sessions running at a shutdown; the next start adopts them.",
    ).tag(config=True)
    keep_alive = Float(15.0, min=0.05, help="Seconds between keepalives on a quiet stream.").tag(config=True)
    journal_sync = EnumTrait(
        ("normal", "full"),
        "normal",
        help="normal: the record survives a crash of the gateway; full: also one of the machine, by fsync.",
    ).tag(config=True, metavar="MODE")
    storage_reserve = Size(
        "64m",
        zero=True,
        help="Free space on the data folder's disk below which nothing new begins; 0: no reserve.",
    ).tag(config=True, metavar="SIZE")
    upload_space = Size(
        "", help="Size of all uploads in progress together; default: half of the data folder's disk."
    ).tag(config=True, metavar="SIZE")
    retention_days = Float(
        0.0, min=0, help="Days after its last use that an ended session's record is kept; 0: for ever."
    ).tag(config=True, metavar="DAYS")
    retention_size = Size(
        "",
        help="Size of the record above which the oldest records of ended sessions are removed; default: no "
        "limit.",
    ).tag(config=True, metavar="SIZE")
    retention_interval = Float(600.0, min=0.05, help="Seconds between checks for old records.").tag(
        config=True
    )
    log_json = Bool(False, help="Write logs as JSON lines.").tag(config=True)
    tracing = Bool(
        False,
        help="Send traces to an OpenTelemetry collector, as OTEL_* variables say; needs the extra otel.",
    ).tag(config=True)

    aliases = {  # noqa: RUF012
        "ip": "ServeApp.ip",
        "port": "ServeApp.port",
        "ports-port": "ServeApp.ports_port",
        "ports-url": "ServeApp.ports_url",
        "token": "ServeApp.token",
        "backend": "ServeApp.backend",
        "image": "ServeApp.image",
        "runtime": "ServeApp.runtime",
        "docker-url": "ServeApp.docker_url",
        "allow-host": "ServeApp.allowed_hosts",
        "allow-origin": "ServeApp.allowed_origins",
        "tls-cert": "ServeApp.tls_cert",
        "tls-key": "ServeApp.tls_key",
        "trusted-proxies": "ServeApp.trusted_proxies",
        "base-url": "ServeApp.base_url",
        "doors": "ServeApp.doors",
        "pool-size": "ServeApp.pool_size",
        "max-kernels": "ServeApp.max_kernels",
        "memory": "ServeApp.memory",
        "cpus": "ServeApp.cpus",
        "cell-timeout": "ServeApp.cell_timeout",
        "idle-timeout": "ServeApp.idle_timeout",
        "sleep-after": "ServeApp.sleep_after",
        "max-memory": "ServeApp.max_memory",
        "max-cpus": "ServeApp.max_cpus",
        "max-pids": "ServeApp.max_pids",
        "max-disk": "ServeApp.max_disk",
        "max-cell-timeout": "ServeApp.max_cell_timeout",
        "max-lifetime": "ServeApp.max_lifetime",
        "quotas": "ServeApp.quotas",
        "preload": "ServeApp.preload",
        "container-per": "ServeApp.container_per",
        "journal-sync": "ServeApp.journal_sync",
        **IdentityOptions.aliases,
        **PackageOptions.aliases,
    }
    flags = {  # noqa: RUF012
        **IdentityOptions.flags,
        "no-auth": ({"ServeApp": {"no_auth": True}}, "Ask for no token; on loopback addresses only."),
        "e2b-debug": (
            {"ServeApp": {"e2b_debug": True}},
            "Serve E2B's SDKs with E2B_DEBUG, at three ports of localhost without a token.",
        ),
        "allow-unsandboxed": (
            {"ServeApp": {"allow_unsandboxed": True}},
            "Serve kernels without isolation on an address that other machines can reach.",
        ),
        "fork-server": (
            {"ServeApp": {"fork_server": True}},
            "Start Python kernels in sandboxes and shared containers as forks of a loaded interpreter.",
        ),
        "no-fork-server": (
            {"ServeApp": {"fork_server": False}},
            "Start each kernel as a program of its own.",
        ),
        "keep-kernels": (
            {"ServeApp": {"keep_kernels": True}},
            "Leave the containers of sessions running at a shutdown; the next start adopts them.",
        ),
        "log-json": ({"ServeApp": {"log_json": True}}, "Write logs as JSON lines."),
        "tracing": (
            {"ServeApp": {"tracing": True}},
            "Send traces to an OpenTelemetry collector, as OTEL_* variables say; needs the extra otel.",
        ),
    }

    def start(self) -> NoReturn:
        """Serve until a signal, then exit with 0."""
        from cellgate.server.allocator import give_back_large_pieces  # noqa: PLC0415 - --help needs none of it
        from cellgate.server.log import configure  # noqa: PLC0415

        if self.extra_args:
            raise UsageError(f"unexpected argument {self.extra_args[0]!r}; see cellgate serve --help")
        handler = configure(
            self.log.getEffectiveLevel() if self.log_level is None else _level(self.log_level),
            json=self.log_json,
        )
        give_back_large_pieces()
        self._take_address_of_hub()
        raise SystemExit(asyncio.run(self._serve(handler)))

    def _take_address_of_hub(self) -> None:
        """Listen where a Hub's proxy expects its service, whatever the settings say."""
        address = self.hub_address()
        if address is None:
            return
        self.ip = address.ip
        self.port = address.port
        self.base_url = address.prefix
        if address.public_host is not None:
            self.allowed_hosts = [*self.allowed_hosts, address.public_host]

    async def _serve(self, log: PacedHandler) -> int:
        from cellgate.cli.serve.forced_exit import STOP_SIGNALS, leave_on_next_signal  # noqa: PLC0415
        from cellgate.server.assembly import running  # noqa: PLC0415

        backend = await self._choose_backend()
        token = self._token()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop.set)
        try:
            settings = self._settings(backend, token)
        except InvalidInput as error:
            raise self._in_options(error) from error
        async with running(settings) as gateway:
            telling = Supervisor()
            telling.repeat(partial(_tell_left_out, log), "log", pause=LOG_SECONDS)
            self._print_block(gateway, backend, token)
            await stop.wait()
            await telling.cancel()
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
            leave_on_next_signal(gateway.abandon)
            _say(f"Stopping: running cells have {self.shutdown_grace:g} s. Press Ctrl-C again to leave now.")
        _say("Stopped. The record of all sessions is kept.")
        return 0

    async def _choose_backend(self) -> Backend:
        """The backend of the settings. Raises BackendUnavailable or UsageError."""
        from cellgate.cli.serve.backends import choose_backend  # noqa: PLC0415
        from cellgate_kernels.engine.container import ContainerSettings  # noqa: PLC0415

        settings = ContainerSettings(self.image, self.runtime, self.network, tuple(self.mounts))
        backend = await choose_backend(self.backend, settings, self.docker_url)
        if backend.name == "process":
            self._refuse_exposed("serve kernels without isolation", allowed=self.allow_unsandboxed)
        return backend

    def _refuse_exposed(self, what: str, *, allowed: bool) -> None:
        from cellgate.identity.addresses import is_loopback  # noqa: PLC0415

        if not allowed and not is_loopback(self.ip):
            raise UsageError(
                f"refusing to {what} on {self.ip}, which other machines may reach; use --ip 127.0.0.1"
                + (", --backend sandbox or --allow-unsandboxed" if "isolation" in what else " or a token")
            )

    def _token(self) -> str | None:
        if self.no_auth:
            self._refuse_exposed("serve without a token", allowed=False)
            return None
        # All that clients can send, in every form: with a space our own commands refuse it.
        fits = self.token.isascii() and self.token.isprintable() and " " not in self.token
        if self.token and (len(self.token) < 8 or not fits):
            raise UsageError("the token must have at least 8 printable ASCII characters, and no spaces")
        return self.token or secrets.token_urlsafe(24)

    def _settings(self, backend: Backend, token: str | None) -> Any:
        from cellgate.doors.table import check_doors  # noqa: PLC0415
        from cellgate.execution.limits import SessionLimits, check_seconds  # noqa: PLC0415
        from cellgate.execution.run import ExecutionSettings  # noqa: PLC0415
        from cellgate.http.access import check_hosts, check_origins  # noqa: PLC0415
        from cellgate.http.routes import check_base_url  # noqa: PLC0415
        from cellgate.server.assembly import GatewaySettings, why_unshared  # noqa: PLC0415
        from cellgate.sessions.parts import SessionSettings  # noqa: PLC0415
        from cellgate.sessions.registry import ManagerSettings  # noqa: PLC0415
        from cellgate_kernels.base.resources import ResourceLimits  # noqa: PLC0415
        from cellgate_kernels.pool.pool import PoolSettings  # noqa: PLC0415
        from cellgate_kernels.protocol.outputs import OutputCaps  # noqa: PLC0415

        for name in ("claim_timeout", "start_timeout", "cell_timeout", "idle_timeout", "lifetime"):
            check_seconds(getattr(self, name), name)
        caps = OutputCaps(plain(self, "text_cap"), plain(self, "data_cap"))
        ceilings = self._ceilings(backend)
        limits = settings_of_kind(SessionLimits, self, resources=settings_of_kind(ResourceLimits, self))
        session = settings_of_kind(
            SessionSettings,
            self,
            execution=settings_of_kind(ExecutionSettings, self, caps=caps),
            channels=self._channels(ceilings.cell_timeout),
            gateway_version=self.version,
            ceilings=ceilings,
        )
        manager = settings_of_kind(
            ManagerSettings, self, session=session, limits=self._lowered(limits, ceilings)
        )
        # A fork has little to do besides.
        forking = self.fork_server and backend.name == "sandbox"
        if self.container_per == "principal" and backend.container is not None:
            forking |= not why_unshared(backend.container, fork_server=self.fork_server)
        pool = settings_of_kind(
            PoolSettings,
            self,
            size=self.pool_size,
            concurrent_starts=self.concurrent_starts or (4 if forking else 2),
            refill_pause=0.1,
        )
        doors = check_doors(self.doors)
        if self.e2b_debug and "e2b" not in doors:
            raise UsageError("--e2b-debug needs --doors e2b")
        return settings_of_kind(
            GatewaySettings,
            self,
            data_dir=self.data_path,
            manager=manager,
            backend=backend.name,
            isolation=backend.isolation,
            container=backend.container,
            version=self.version,
            token=token,
            allowed_hosts=check_hosts(self.allowed_hosts),
            allowed_origins=check_origins(self.allowed_origins),
            base_url=check_base_url(self.base_url),
            doors=doors,
            ports_origin=self._ports_origin(),
            kernel_dirs=tuple(map(absolute, self.kernel_dirs)),
            pool=pool,
            warm_kernelspecs=(self.default_kernel, *self.warm_kernels),
            packages=self.package_settings(self.environment),
            retention=self._retention(),
            listener=self._listener(),
            quotas=self._quotas(),
            tls=self._tls(),
            oidc=self.oidc_settings(),
            librechat_key=self.librechat_file(doors),
            hub=self.hub_settings(),
        )

    def _ports_origin(self) -> Any:
        """Where browsers find programs' ports, if the operator says so. Raises InvalidInput."""
        from cellgate.ports.origin import parse_ports_url  # noqa: PLC0415

        if not self.ports_url:
            return None
        if self.ports_port is None:
            raise UsageError("--ports-url needs --ports-port: where to listen for that")
        return parse_ports_url(self.ports_url)

    def _quotas(self) -> Any:
        """The quotas in their file. Raises UsageError that names the file and what is wrong with it."""
        from cellgate.quotas.quotas_file import QuotaSettings, read_quotas  # noqa: PLC0415

        if not self.quotas:
            return QuotaSettings()
        file = absolute(self.quotas)
        try:
            return QuotaSettings(file, read_quotas(file))
        except InvalidInput as error:
            raise UsageError(error.message) from error

    def _in_options(self, error: InvalidInput) -> UsageError:
        """A refusal of settings in the user's terms: with options instead of fields, and their values."""

        def name_of(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name not in self.traits(config=True):
                return match[0]
            value = getattr(self, name)
            return f"{self.option(name)} ({f'{value:.15g}' if isinstance(value, float) else value})"

        return UsageError(re.sub(r"\blimits\.(\w+)|^(\w+)(?= must)", name_of, error.message))

    def _tls(self) -> Any:
        from cellgate.http.listener.certificate import TlsFiles  # noqa: PLC0415

        if not (self.tls_cert or self.tls_key):
            return None
        if not (self.tls_cert and self.tls_key):
            raise UsageError("--tls-cert and --tls-key are needed together")
        return TlsFiles(absolute(self.tls_cert), absolute(self.tls_key))

    def _listener(self) -> Any:
        from cellgate.http.listener.forwarded import parse_proxies  # noqa: PLC0415
        from cellgate.http.listener.settings import (  # noqa: PLC0415
            ListenerSettings,
            connections_for,
            raise_open_files,
            too_few,
        )

        files = raise_open_files()
        connections = self.max_connections or connections_for(files, self.max_kernels)
        warning = too_few(files, self.max_kernels, connections)
        if warning is not None:
            logger.warning("%s", warning)
        return settings_of_kind(
            ListenerSettings,
            self,
            connections=connections,
            per_address=self.connections_per_address or None,
            idle_timeout=self.connection_idle_timeout,
            memory=plain(self, "client_memory"),
            proxies=parse_proxies(self.trusted_proxies),
        )

    def _retention(self) -> Any:
        from cellgate.sessions.retention import RetentionSettings  # noqa: PLC0415

        age = self.retention_days * 86400 or None
        return RetentionSettings(age, plain(self, "retention_size"), self.retention_interval)

    def _ceilings(self, backend: Backend) -> Ceilings:
        """The ceilings of the options, and by default the machine's resources. Raises InvalidInput."""
        from cellgate.execution.limits import Ceilings  # noqa: PLC0415
        from cellgate.server import machine  # noqa: PLC0415
        from cellgate_kernels.base.resources import MIB, MOST_BYTES, ResourceLimits  # noqa: PLC0415

        # Containers are in the engine's control groups, not in the gateway's.
        groups = None if backend.name == "docker" else machine.CGROUPS
        try:
            resources = ResourceLimits(
                memory=plain(self, "max_memory") or max(machine.memory(groups), 64 * MIB),
                cpus=self.max_cpus or max(machine.processors(groups), 0.05),
                pids=self.max_pids,
                disk=plain(self, "max_disk") or max((machine.disk(self.data_path) or MOST_BYTES) // 2, MIB),
            )
            return Ceilings(resources, self.max_cell_timeout, self.max_lifetime)
        except InvalidInput as error:
            raise InvalidInput(error.message.replace("limits.", "limits.max_")) from error

    @staticmethod
    def _lowered(limits: SessionLimits, ceilings: Ceilings) -> SessionLimits:
        lowered, changes = ceilings.lower(limits)
        for what in changes:
            logger.warning("A default is above its ceiling and was lowered: %s", what)
        return lowered

    def _channels(self, most_cell_timeout: float) -> Any:
        from cellgate.channels.client import ChannelSettings  # noqa: PLC0415
        from cellgate.channels.frame_log import OutboxLimits  # noqa: PLC0415
        from cellgate_kernels.base.threads import Lane  # noqa: PLC0415

        outbox = OutboxLimits(memory=plain(self, "slow_client_memory"), total=plain(self, "slow_client_disk"))
        return settings_of_kind(
            ChannelSettings,
            self,
            folder=self.data_path,
            lane=Lane("outboxes", 4),
            outbox=outbox,
            replay_bytes=plain(self, "replay_size"),
            max_queue=self.channel_queue,
            cell_timeout=min(self.channel_cell_timeout or most_cell_timeout, most_cell_timeout),
            compression=self.channel_compression,
            silence=self.client_silence,
        )

    def _print_block(self, gateway: RunningGateway, backend: Backend, token: str | None) -> None:
        from cellgate.doors.e2b.debug import DEBUG_PORTS  # noqa: PLC0415

        if token is None:
            shown = "none is asked for"
        elif token == self.token:
            shown = "the one you gave"
        elif sys.stdout.isatty():
            shown = token
        else:
            # This may be a log, which others read and which is kept.
            shown = f"a new one, in {self.data_path / RUNNING_FILE}"
        lines = [
            "",
            f"  Cellgate {self.version} serves at {gateway.url}",
            "",
            *self._console_lines(gateway, token),
            f"    token      {shown}",
            f"    backend    {backend.name}",
            f"    isolation  {backend.isolation}",
            f"    data       {self.data_path}",
            "",
            f"  Try:  {self._command('exec', 'print(6 * 7)')}     Stop:  Ctrl-C",
            "",
        ]
        if (ports := _ports_line(gateway)) is not None:
            lines.insert(3, f"    ports      {ports}")
        if self.e2b_debug:
            asked = ", ".join(map(str, DEBUG_PORTS))
            lines.insert(3, f"    E2B_DEBUG  localhost:{asked}; programs of this machine need no token there")
        if backend.note:
            lines[-3:-3] = ["", f"  {backend.note}"]
        if backend.warning:
            lines[2:2] = ["", f"    WARNING: {backend.warning}"]
        _say("\n".join(lines))

    def _console_lines(self, gateway: RunningGateway, token: str | None) -> list[str]:
        """Where the console is. A link that signs in goes to a terminal only: logs are read by others."""
        if token is None:
            return [f"    console    {gateway.url}/"]
        if not sys.stdout.isatty():
            return [f"    console    {gateway.url}/ ({self._command('open')} signs you in)"]
        return [
            f"    console    {gateway.console_url()}",
            f"               works once, within a minute; then: {self._command('open')}",
        ]

    def _command(self, *words: str) -> str:
        """A command that works as it is printed, in another terminal of the same user in the same folder."""
        called = Path(sys.argv[0])
        found = shutil.which("cellgate")
        if called.name != "cellgate" or (found is not None and Path(found).resolve() == called.resolve()):
            program = "cellgate"
        else:
            here = Path.cwd()
            program = str(called.relative_to(here) if called.is_relative_to(here) else called)
        where = [] if self.data_path == users_folder() else ["--data-dir", str(self.data_path)]
        return shlex.join([program, *words, *where])


def _level(level: int | str) -> int:
    return level if isinstance(level, int) else logging.getLevelNamesMapping()[level]


def _ports_line(gateway: RunningGateway) -> str | None:
    """Where browsers find programs' ports; with a URL of the operator's also where we listen for them."""
    ports = gateway.services.ports
    if ports is None:
        return None
    behind_proxy = ports.listens_on != ports.origin.port
    return f"{gateway.ports_url}" + (f" (listening on port {ports.listens_on})" if behind_proxy else "")


async def _tell_left_out(log: PacedHandler) -> float:
    log.tell_left_out()
    return LOG_SECONDS


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
