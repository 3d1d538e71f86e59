"""The Model Context Protocol over HTTP: each MCP session has its own tools and its own gateway session.

An ASGI application in front of the SDK's: it checks Host, Origin and token, creates an MCP server for each
new client, routes a client's later requests to its own server, and ends sessions that were closed or are
idle. A client's token is the gateway's: the gateway decides what it may do, and its sessions belong to its
principal. The tools are in ``tools``; ``cli.mcp`` starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellgate.client import Gateway, GatewayError, NotAuthenticated, Session, Trust
from cellgate.errors import InvalidToken
from cellgate.mcp.briefing import Briefing, SessionWish, ask_for_briefing
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.tasks import Supervisor

PATH = "/mcp"
MAX_SESSIONS = 200
SESSIONS_OF_ONE = 150
_SESSION_ID = "mcp-session-id"
_VERSION = "mcp-protocol-version"
_ATTEMPTS = 1
_IN_CHALLENGE = frozenset(map(chr, range(0x20, 0x7F))) - {'"', "\\"}
"""The letters that a description in a challenge may have."""
_LONGEST_SAID = 300

Serve = Callable[[Session, Briefing], ASGIApp]
"""Creates the MCP application for a gateway session and its briefing; the application has a lifespan."""


class _Client:
    """One MCP session. `owner`: the hash of its token; `used`: when its last request ended (monotonic)."""

    def __init__(self, owner: bytes) -> None:
        self.owner = owner
        self.id: str | None = None
        self.used = time.monotonic()
        self.requests = 0
        self.app: ASGIApp | None = None
        self.over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def live(self, session: Session, app: ASGIApp, ready: asyncio.Event) -> None:
        """Keep the application running until `over` is set, then end the gateway session."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_end, session)
            await stack.enter_async_context(app.router.lifespan_context(app))  # type: ignore[attr-defined]
            self.app = app
            ready.set()
            await self.over.wait()


async def _end(session: Session) -> None:
    # If the gateway is gone, so are its sessions; if it is only unreachable, it will cull them when idle.
    with contextlib.suppress(GatewayError):
        await session.end()


class McpDoor:
    """The application; it needs a server that supports the ASGI lifespan protocol.

    `url`: the gateway's; `trust`: of its certificate; `new`: what new sessions are; `idle`: how many
    seconds a client may be away.
    """

    def __init__(
        self,
        url: str,
        serve: Serve,
        security: TransportSecuritySettings,
        *,
        trust: Trust,
        new: SessionWish,
        idle: float,
    ) -> None:
        self._url = url
        self._trust = trust
        self._serve = serve
        self._security = TransportSecurityMiddleware(security)
        self._new = new
        self._idle = idle
        self._clients: set[_Client] = set()
        self._by_id: dict[str, _Client] = {}
        self._tasks = Supervisor()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Run from the server's start to its shutdown, which ends all sessions."""
        await receive()
        pause = min(30.0, self._idle / 4)
        reaper = self._tasks.repeat(self._reap, "reaper", pause=pause)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        reaper.cancel()
        await asyncio.wait([reaper])
        await asyncio.gather(*(self._close(client) for client in list(self._clients)))
        await send({"type": "lifespan.shutdown.complete"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        assert scope["type"] == "http"
        request = Request(scope, receive)
        refusal = await self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        wanted = request.headers.get(_SESSION_ID)
        token = _token(request)
        if wanted is None:
            await self._begin(token, scope, receive, send)
            return
        client = self._by_id.get(wanted)
        if client is None or not hmac.compare_digest(client.owner, _hash(token)):
            await _problem(404, INVALID_REQUEST, "Session not found")(scope, receive, send)
            return
        await self._forward(client, scope, receive, send)
        if request.method == "DELETE":
            await self._close(client)

    async def _refusal(self, request: Request) -> Response | None:
        if request.url.path != PATH:
            return _problem(404, INVALID_REQUEST, f"The server is at {PATH}")
        refusal = await self._security.validate_request(request, is_post=request.method == "POST")
        if refusal is not None:
            return refusal
        version = request.headers.get(_VERSION)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            # Newer versions have no sessions, which the tools need for their variables. Clients fall back.
            data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version}
            return _problem(400, UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", data)
        if request.headers.get(_SESSION_ID) is None:
            return await self._refused_token(_token(request))
        return None

    async def _refused_token(self, token: str | None) -> Response | None:
        """Why a client without a session may not start one; None if it may."""
        mine = sum(client.owner == _hash(token) for client in self._clients)
        if len(self._clients) >= MAX_SESSIONS or mine >= SESSIONS_OF_ONE:
            return _problem(503, INTERNAL_ERROR, "There are as many sessions as this server takes")
        try:
            await Gateway(self._url, token, attempts=_ATTEMPTS, trust=self._trust).me()
        except (NotAuthenticated, InvalidInput) as error:
            return _unauthorized(None if token is None else error.message)
        except GatewayError as error:
            return _problem(503, INTERNAL_ERROR, f"{error.reason}: {error.message}")
        return None

    async def _begin(self, token: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request without a session; if it succeeds, a new session has started."""
        gateway = Gateway(self._url, token, trust=self._trust)
        session = gateway.session(
            kernel=self._new.kernel,
            network=self._new.network,
            checkpoint=self._new.checkpoint,
            environment=self._new.environment,
        )
        client = _Client(_hash(token))
        self._clients.add(client)
        ready = asyncio.Event()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                headers = {name.lower(): value for name, value in message["headers"]}
                client.id = headers.get(_SESSION_ID.encode(), b"").decode() or None
                if client.id is not None:
                    self._by_id[client.id] = client
            await send(message)

        try:
            app = self._serve(session, await ask_for_briefing(gateway, self._new))
            client.task = self._tasks.start(client.live(session, app, ready), "MCP session")
            client.task.add_done_callback(lambda _: ready.set())
            await ready.wait()
            await self._forward(client, scope, receive, watched)
        finally:
            if client.id is None:
                await self._close(client)

    async def _forward(self, client: _Client, scope: Scope, receive: Receive, send: Send) -> None:
        if client.app is None:
            await _problem(503, INTERNAL_ERROR, "The session could not be made")(scope, receive, send)
            return
        client.requests += 1
        try:
            await client.app(scope, receive, send)
        finally:
            client.requests -= 1
            client.used = time.monotonic()

    async def _reap(self) -> float:
        """End sessions whose clients have been away too long; return the seconds until the next run."""
        before = time.monotonic() - self._idle
        for client in list(self._clients):
            if not client.requests and client.used < before:
                await self._close(client)
        return min(30.0, self._idle / 4)

    async def _close(self, client: _Client) -> None:
        self._by_id.pop(client.id or "", None)
        client.over.set()
        if client.task is not None:
            await asyncio.wait([client.task])
        self._clients.discard(client)


def _unauthorized(why: str | None) -> Response:
    """Return the refusal of a token, because of `why`, or of a request without one (RFC 6750, section 3)."""
    challenge = 'Bearer realm="cellgate"'
    if why is None:
        refused = _problem(401, INVALID_REQUEST, "A token of the gateway is needed, as a bearer token")
    else:
        refused = _problem(401, INVALID_REQUEST, f"{InvalidToken.reason}: {why}")
        said = "".join(letter for letter in why if letter in _IN_CHALLENGE)[:_LONGEST_SAID]
        challenge += f', error="invalid_token", error_description="{said}"'
    refused.headers["WWW-Authenticate"] = challenge
    return refused


def _token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _hash(token: str | None) -> bytes:
    return hashlib.sha256((token or "").encode()).digest()


def _problem(status: int, code: int, text: str, data: object = None) -> Response:
    error = {"code": code, "message": text} | ({} if data is None else {"data": data})
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status)
