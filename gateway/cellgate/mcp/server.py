"""Runs ``http``'s application as a web server: which hosts and origins it accepts, how it starts and stops.

uvicorn serves it, because the SDK's applications are ASGI, which tornado does not support.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from cellgate.client import Gateway, GatewayError, NotAuthenticated, Session, Trust
from cellgate.mcp.briefing import Briefing, SessionWish
from cellgate.mcp.door import PATH, McpDoor
from cellgate.mcp.tools import McpTools
from cellgate_kernels.base.errors import InvalidInput

_LAST_WORDS = 2  # seconds that open requests get when the server stops


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served: tools for sessions of the gateway at `url`; see ``tools`` and ``http``."""

    url: str
    trust: Trust
    version: str
    new: SessionWish
    notebooks: Path | None
    max_text: int
    hosts: Sequence[str]
    origins: Sequence[str]
    idle: float


async def serve(listener: socket.socket, what: Serving, ready: Callable[[str], object]) -> None:
    """Serve clients on `listener` until SIGINT or SIGTERM. `ready` is called with the URL.

    Raises InvalidInput when anybody on the network could use a gateway that requires no token.
    """
    ip, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(ip).is_loopback and await _open_to_all(what):
        raise InvalidInput(
            f"The gateway at {what.url} does not ask for a token, or is not there: serve on loopback only"
        )

    def application(session: Session, about: Briefing) -> ASGIApp:
        server = McpTools(session, what.notebooks, what.max_text).server(what.version, about)
        # `McpDoor` does these checks and the idle timeout for all sessions.
        free = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        return server.streamable_http_app(
            streamable_http_path=PATH, transport_security=free, session_idle_timeout=None
        )

    security = _security(ip, port, what.hosts, what.origins)
    config = uvicorn.Config(
        McpDoor(what.url, application, security, trust=what.trust, new=what.new, idle=what.idle),
        lifespan="on",
        log_level="warning",
        ws="none",
        timeout_graceful_shutdown=_LAST_WORDS,
        server_header=False,
    )
    ready(f"http://{f'[{ip}]' if ':' in ip else ip}:{port}{PATH}")
    await uvicorn.Server(config).serve(sockets=[listener])


async def _open_to_all(what: Serving) -> bool:
    try:
        async for _ in Gateway(what.url, trust=what.trust).sessions():
            break
    except GatewayError as error:
        return not isinstance(error, NotAuthenticated)
    return True


def _security(ip: str, port: int, hosts: Sequence[str], origins: Sequence[str]) -> TransportSecuritySettings:
    """Loopback names with the port, and the given hosts and origins. Hosts match with or without a port."""
    bracketed = f"[{ip}]" if ":" in ip else ip
    own = [f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", bracketed)]
    return TransportSecuritySettings(
        allowed_hosts=[*own, *hosts, *(f"{host}:*" for host in hosts)],
        allowed_origins=[*(f"http://{name}" for name in own), *origins],
    )
