"""Opens the gateway's side for clients: sockets, listeners with routes, the console's files, programs' ports.

It also writes the file that says where the gateway serves, for commands of the same user.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tornado.netutil import bind_sockets
from tornado.routing import Rule
from tornado.web import Application, RequestHandler

from cellgate.console.assets import STATIC, Assets
from cellgate.doors.e2b.debug import DEBUG_PORTS, debug_paths, debug_routes
from cellgate.doors.table import door_paths, door_routes
from cellgate.errors import AddressInUse
from cellgate.http.base import NotFoundHandler
from cellgate.http.hop.hop import Hop
from cellgate.http.listener.certificate import Certificate
from cellgate.http.listener.forwarded import TrustedProxies
from cellgate.http.listener.server import Listener
from cellgate.http.listener.settings import BACKLOG, FEWEST_CONNECTIONS, ListenerSettings
from cellgate.http.metrics import Metrics
from cellgate.http.programs import ForPort, ProgramHandler
from cellgate.http.routes import TABLE, paths, routes
from cellgate.http.services import Front, People, Services, Sessions
from cellgate.http.tracing import Tracer
from cellgate.ports.grants import PortTickets, SharedPorts
from cellgate.ports.origin import PortsOrigin
from cellgate.ports.served import ServedPorts
from cellgate.ports.table import SessionPorts
from cellgate.server.kernels import INSTANCE_FILE, gateway_id
from cellgate.server.log import log_program_request, log_request
from cellgate.server.settings import FrontSettings, GatewaySettings
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.threads import Lane

# Handlers limit bodies themselves and answer 413; tornado's limit would cut the connection without an answer.
MAX_REQUEST_BYTES = 1 << 50
MAX_BUFFER_BYTES = 128 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

PATH_OF_PROGRAMS: Final = {ProgramHandler: "/{session}/{port}"}
SHARE_OF_OTHERS = 4
"""The divisor of the connections and their memory for each listener beside the gateway's own."""


def open_front(
    settings: GatewaySettings,
    ports_sockets: list[socket.socket],
    people: People,
    sessions: Sessions,
    metrics: Metrics,
    tracer: Tracer,
    texts: Lane,
    hop: Hop | None,
) -> Front:
    """Open the front, without its listeners. Raises StorageError. `texts`: threads that read files."""
    front = settings.front
    return Front(
        version=settings.version,
        owner=gateway_id(settings.data_dir / INSTANCE_FILE),
        base_url=front.base_url,
        keep_alive=front.keep_alive,
        doors=front.doors,
        assets=Assets(STATIC, texts),
        metrics=metrics,
        tracer=tracer,
        ports=_ports(front, ports_sockets, people, sessions),
        hop=hop,
    )


def bind(ip: str, port: int, option: str) -> list[socket.socket]:
    """Listen at an address. Raises AddressInUse, which names the option that chooses another."""
    try:
        return bind_sockets(port, ip, backlog=BACKLOG)
    except UnicodeError as error:
        raise AddressInUse(f"Can't listen on {ip}: that is no address. Choose another with --ip") from error
    except OSError as error:
        why = in_brief(error)
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


def bind_debug() -> list[socket.socket]:
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
                f"{in_brief(error)}. Stop what has this port, or start without --e2b-debug"
            ) from error
    return sockets


def _ports(
    front: FrontSettings, sockets: list[socket.socket], people: People, sessions: Sessions
) -> ServedPorts | None:
    """Return the settings of served ports; None if there are no sockets for them."""
    if not sockets:
        return None
    scheme = "http" if front.tls is None else "https"
    port = sockets[0].getsockname()[1]
    origin = front.ports_origin or PortsOrigin(scheme, port)
    manager, sign_ins = sessions.manager, people.sign_ins.shared

    def ports_of(owner: str, key: str) -> SessionPorts | None:
        session = manager.get(owner, key)
        return None if session is None else session.ports

    shared = None if sign_ins is None else SharedPorts(sign_ins, origin.place, ports_of)
    return ServedPorts(origin, port, PortTickets(people.access.authentication.is_valid, shared))


def open_listeners(
    services: Services, settings: GatewaySettings, certificate: Certificate | None
) -> tuple[Listener, ...]:
    """Return the gateway's own listener and, if they are served, those of programs' ports and of E2B's on
    this machine, which have nothing in common.
    """
    limits = settings.front.listener
    known = {"services": services, "known": tuple(path for path, _ in TABLE)}
    # What is for a program must never reach our own interfaces.
    serves_ports = services.front.ports is not None
    for_port = (ProgramHandler, {"services": services}) if serves_ports else (NotFoundHandler, known)
    own = Application(
        [Rule(ForPort(), *for_port), *routes(services), *door_routes(services)],
        default_handler_class=NotFoundHandler,
        default_handler_args=known,
        log_function=_log_any,
        metrics=services.front.metrics,
        is_token=services.people.access.is_token,
        owner=services.front.owner,
        address=None if services.front.hop is None else services.front.hop.address,
        paths=paths() | door_paths() | PATH_OF_PROGRAMS,
        websocket_max_message_size=MAX_MESSAGE_BYTES,
    )
    servers = [_listener(own, services, limits, certificate, services.front.hop)]
    share = replace(
        limits,
        connections=max(FEWEST_CONNECTIONS, limits.connections // SHARE_OF_OTHERS),
        memory=limits.memory // SHARE_OF_OTHERS,
    )
    if services.front.ports is not None:
        programs = Application(
            [(r".*", ProgramHandler, {"services": services})],
            log_function=log_program_request,
            metrics=services.front.metrics,
            is_token=services.people.access.is_token,
            paths=PATH_OF_PROGRAMS,
        )
        servers.append(_listener(programs, services, share, certificate))
    if settings.front.e2b_debug:
        debug = Application(
            debug_routes(services),
            log_function=log_request,
            metrics=services.front.metrics,
            is_token=services.people.access.is_token,
            paths=debug_paths(),
        )
        # No proxy is believed: a page could say what one says, and only the name it asks for gives it away.
        servers.append(_listener(debug, services, replace(share, proxies=TrustedProxies()), None))
    services.front.metrics.watch(lambda: _connections(servers))
    return tuple(servers)


def _log_any(handler: RequestHandler) -> None:
    (log_program_request if isinstance(handler, ProgramHandler) else log_request)(handler)


def _listener(
    application: Application,
    services: Services,
    settings: ListenerSettings,
    certificate: Certificate | None,
    hop: Hop | None = None,
) -> Listener:
    return Listener(
        application,
        settings=settings if hop is None else replace(settings, handed_on=hop.client_of),
        certificate=certificate,
        closed_by_us=lambda reason: services.front.metrics.closed_connections[reason].inc(),
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


def front_url(front: FrontSettings, sockets: list[socket.socket]) -> str:
    """Return the address of the gateway, as programs of this machine reach it."""
    port = sockets[0].getsockname()[1]
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(front.ip, front.ip)  # noqa: S104
    name = f"[{host}]" if ":" in host else host
    scheme = "http" if front.tls is None else "https"
    return f"{scheme}://{name}:{port}{front.base_url}"


class Announcement:
    """The file with this gateway's address, for commands of the same user."""

    def __init__(self, path: Path, found: Mapping[str, str | int], certificate: Certificate | None) -> None:
        self._path = path
        self._found = found
        self._certificate = certificate
        self._lock = threading.Lock()
        self._removed = False

    def write(self) -> None:
        """Write the file, replacing the former one, unless it was removed. Blocks; from any thread."""
        with self._lock:
            if not self._removed:
                self._write()

    def _write(self) -> None:
        found = dict(self._found)
        if self._certificate is not None:
            # Commands accept exactly this certificate, whoever signed it and whatever its name.
            found["certificate"] = self._certificate.leaf
        draft = self._path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
            json.dump(found, file)
        draft.replace(self._path)

    def change_token(self, token: str) -> None:
        """Write the file with another token. Blocks; from any thread."""
        self._found = {**self._found, "token": token}
        self.write()

    def remove(self) -> None:
        """Remove the file, for good."""
        with self._lock:
            self._removed = True
            self._path.unlink(missing_ok=True)
