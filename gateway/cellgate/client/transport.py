"""One HTTP/1.1 request at a time from a client to a gateway: connect, send, stream the answer, give up.

It is no general HTTP client: no redirects, no proxies, no connection kept for the next request. It stands
on tornado's `HTTP1Connection` and not on `AsyncHTTPClient`, because that can't close the connection of a
request its caller no longer wants, which is how the gateway learns of it. ``api`` uses it
and knows what the requests mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import msgspec
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httpclient import HTTPRequest
from tornado.httputil import (
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient
from tornado.websocket import WebSocketClientConnection, websocket_connect

from cellgate.client.errors import GatewayError, gateway_error
from cellgate_kernels.errors import InvalidInput

_CONNECT_TIMEOUT = timedelta(seconds=10)
_QUEUED_CHUNKS = 4  # of 64 KiB: a slow reader slows the gateway's sending, not fills our memory
_MAX_PROBLEM = 256 * 1024  # bytes of an error's body


class _Problem(msgspec.Struct):
    """RFC 9457's fields that a client needs."""

    detail: str = ""
    title: str = ""
    reason: str = ""


class Answer(HTTPMessageDelegate):
    """The answer to one request, as it comes in."""

    def __init__(self) -> None:
        self.status = 0
        self.headers = HTTPHeaders()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUED_CHUNKS)
        self._head = asyncio.Event()
        self._complete = False
        self._ended = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        """Called by tornado; an interim answer (1xx) is passed over."""
        assert isinstance(start_line, ResponseStartLine)
        if start_line.code >= 200:
            self.status, self.headers = start_line.code, headers
            self._head.set()
        return None

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Called by tornado, which reads on when the chunk has found room."""
        return self._chunks.put(chunk)

    def finish(self) -> None:
        """Called by tornado at the regular end."""
        self._complete = self.status >= 200
        # Here and not behind `read_response`: that waits for the rest of an upload which a refusal has ended.
        with contextlib.suppress(asyncio.QueueFull):
            self._chunks.put_nowait(None)
            self._ended = True

    async def receive(self, connection: HTTP1Connection) -> None:
        """Reads the whole answer; runs as a task beside the reader of `chunks`."""
        try:
            await connection.read_response(self)
        except (StreamClosedError, HTTPInputError):
            # What came is incomplete, or no HTTP: `chunks` reports both as a lost connection.
            self._complete = False
        self._head.set()
        if not self._ended:
            await self._chunks.put(None)

    async def start(self) -> None:
        """Waits for status and headers. Raises GatewayError for a lost connection and a refusal."""
        await self._head.wait()
        if not self.status:
            raise _lost()
        if self.status >= 300:
            raise self._refusal(await self.body(limit=_MAX_PROBLEM))

    def _refusal(self, body: bytes) -> GatewayError:
        try:
            problem = msgspec.json.decode(body, type=_Problem)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            problem = _Problem(detail=body[:200].decode(errors="replace").strip())
        wait = self.headers.get("Retry-After", "")
        return gateway_error(
            self.status,
            problem.reason or "http_error",
            problem.detail or problem.title or f"HTTP status {self.status}",
            retry_after=float(wait) if wait.isascii() and wait.isdigit() else None,
        )

    async def chunks(self, *, idle_timeout: float | None = None) -> AsyncGenerator[bytes]:
        """The body in parts. Raises GatewayError when it ends early or is silent for `idle_timeout` s."""
        while True:
            try:
                async with asyncio.timeout(idle_timeout):
                    chunk = await self._chunks.get()
            except TimeoutError:
                raise _lost() from None
            if chunk is None:
                break
            yield chunk
        if not self._complete:
            raise gateway_error(
                0,
                "connection_lost",
                "The answer broke off before its end: the gateway gave it up, or the connection was lost",
            )

    async def body(self, *, limit: int | None = None) -> bytes:
        """The whole body, or about `limit` bytes of it."""
        parts: list[bytes] = []
        async for chunk in self.chunks():
            parts.append(chunk)
            if limit is not None and sum(map(len, parts)) >= limit:
                break
        return b"".join(parts)


def _lost() -> GatewayError:
    return gateway_error(0, "connection_lost", "The connection to the gateway was lost")


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body of `length` bytes, sent as its `chunks` come."""

    length: int
    chunks: AsyncGenerator[bytes]


class Server:
    """Where a gateway listens: the parts of its URL, and the token for it.

    Raises InvalidInput for a URL that is not http or https, and for a token that fits no header.
    """

    def __init__(self, url: str, token: str | None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidInput(f"{url!r} is not a gateway's URL: {error}") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidInput(f"{url!r} is not a gateway's URL, such as http://127.0.0.1:8888")
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidInput("the token holds characters that no token has")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": "cellgate"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: str,
        *,
        body: bytes | Body | None = None,
        accept: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Answer]:
        """Sends a request; gives its answer when the headers are in. Leaving closes the connection.

        `body`: JSON as bytes, or any bytes as a Body.

        Raises GatewayError for all that goes wrong, a refusal (status 300 and above) included.
        """
        stream = await self._connect()
        answer = Answer()
        tasks: list[asyncio.Task[None]] = []
        try:
            connection = HTTP1Connection(
                stream, True, HTTP1ConnectionParameters(no_keep_alive=True, max_body_size=sys.maxsize)
            )
            sent = HTTPHeaders({**self._headers, "Accept": accept, "Connection": "close", **(headers or {})})
            if body is not None or method in {"POST", "PUT"}:
                raw = isinstance(body, Body)
                sent["Content-Type"] = "application/octet-stream" if raw else "application/json"
                sent["Content-Length"] = str(body.length if isinstance(body, Body) else len(body or b""))
            start = RequestStartLine(method, self._prefix + target, "")
            sending = asyncio.create_task(_send(connection, start, sent, body))
            tasks.append(sending)
            starting = asyncio.create_task(answer.start())
            tasks += (starting, asyncio.create_task(answer.receive(connection)))
            # A refusal may come while we still write: it is the answer, and the rest need not be sent.
            await asyncio.wait([sending, starting], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and (error := sending.exception()) is not None:
                raise error
            await starting
            yield answer
        finally:
            stream.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def websocket(self, target: str) -> WebSocketClientConnection:
        """An open WebSocket. Raises OSError and tornado's HTTPError and StreamClosedError."""
        url = "ws" + self.url.removeprefix("http") + target
        headers = {name: value for name, value in self._headers.items() if name != "Host"}
        return await websocket_connect(HTTPRequest(url, headers=headers, ssl_options=self._tls))

    async def _connect(self) -> IOStream:
        try:
            stream = await TCPClient().connect(
                self._host, self._port, ssl_options=self._tls, timeout=_CONNECT_TIMEOUT
            )
        except (OSError, StreamClosedError, TimeoutError) as error:
            cause = getattr(error, "real_error", None) or error
            text = getattr(cause, "strerror", None) or str(cause) or "no answer"
            raise gateway_error(
                0,
                "unreachable",
                f"No gateway answers at {self.url} ({text}). Start one with `cellgate serve`, "
                "or name another with --url.",
            ) from error
        stream.set_nodelay(True)
        return stream


async def _send(
    connection: HTTP1Connection, start: RequestStartLine, headers: HTTPHeaders, body: bytes | Body | None
) -> None:
    """Writes a request. A connection that is closed meanwhile is the reader's to tell of."""
    with contextlib.suppress(StreamClosedError):
        if isinstance(body, Body):
            await connection.write_headers(start, headers)
            async with aclosing(body.chunks) as chunks:
                async for chunk in chunks:
                    await connection.write(chunk)
        else:
            await connection.write_headers(start, headers, body)
        connection.finish()


async def lines(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The lines of a body, without their ends; a last one that has no end is left out."""
    parts: list[bytes] = []
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            yield b"".join([*parts, piece])
            parts = []
        parts.append(rest)
