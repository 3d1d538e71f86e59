"""One HTTP/1.1 request at a time from a client to a gateway: connect, send, stream the answer, cancel.

It uses httpcore2, the layer of httpx2 below its client: connections, TLS, HTTP/1.1 and timeouts. httpx2
itself does not fit: it rewrites paths, while only the gateway interprets a file's path; and it loses an
answer that arrives while the body is still being sent, such as the refusal of a large upload. Consequently
there are no redirects, which would take the token elsewhere, and nothing is read from the environment: no
proxies, no netrc; only OpenSSL reads its own variables, which say what the system trusts. A connection is not
reused for the next request, and leaving an exchange closes it, which tells the gateway that nobody wants the
answer any more.

``api`` uses it and knows what the requests mean; ``owners`` says which gateway each is for. The token is sent
in a header only: it is in no URL, and httpcore2 does not log request headers.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpcore2
import msgspec

from cellgate.client.errors import CannotBranch, GatewayError, InvalidInput, gateway_error
from cellgate.client.owners import Owners, session_in
from cellgate.client.silence import socket_options
from cellgate.wire.obstacle import Obstacle
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.resources import MIB

if TYPE_CHECKING:
    from tornado.websocket import WebSocketClientConnection

E = TypeVar("E", bound=BaseException)

_CONNECT_TIMEOUT = 10.0
_OWNER_TIMEOUT = 1.0
"""Seconds to connect to the gateway of a cluster that has a session, before the given address is used."""
_FULL_PAUSES = (0.2, 0.5)
"""Seconds before a gateway that had no room is asked again."""
_MAX_PROBLEM = 256 * 1024  # bytes of an error's body
MOST_LINE = 512 * MIB
"""The longest event, in bytes. A gateway's caps are far below that: a server that sends more is not one."""
MOST_ANSWER = 64 * MIB
"""The longest answer without outputs, in bytes."""
MOST_RESULT = MOST_LINE
"""The longest answer with outputs, in bytes, and the longest file whose length is not told."""
MOST_FILE = 4096 * MIB
"""The longest file that is read into memory."""
SESSIONS = "/v1/sessions"
_OF_AN_OWNER = (SESSIONS, "/v1/usage/")
"""The beginnings of what can be asked for another principal."""
_SMALL = 64 * 1024
"""A write of this size is taken by the system at once: no answer can arrive in the middle of it."""

_DIGITS = 18
"""Of a length that can be true."""

_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"})
"""OpenSSL's reasons for a handshake that is answered with something else than TLS, such as HTTP."""

_NOT_REACHED = "see that the gateway runs, and that the proxy has its address"
_OF_PROXIES: Mapping[int, str] = MappingProxyType(
    dict.fromkeys((502, 503), _NOT_REACHED)
    | {504: "the proxy did not wait for the answer: raise its time limit for reading"}
    | {413: "it allows no bodies of this size: raise its limit"}
)
"""Statuses that a proxy gives for itself, and what to do."""

_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)


class _Problem(msgspec.Struct):
    """The fields of RFC 9457 that a client needs."""

    detail: str = ""
    title: str = ""
    reason: str = ""
    obstacles: list[Obstacle] = []


_Request = tuple[str, str, Mapping[str, str], "bytes | RequestBody | None", "_Backend"]
"""Method, target, headers and body of a request, and what opens its connection."""


class HttpAnswer:
    """The answer to one request: its head, and its body as it arrives. Names of headers are lower-case."""

    def __init__(self, response: httpcore2.Response, url: str) -> None:
        self._url = url
        self.status = response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
        }
        assert isinstance(response.stream, AsyncIterable)
        self._stream = response.stream

    async def check(self) -> None:
        """Raise GatewayError for a refusal (status 300 and above), and for an informational answer."""
        if self.status < 200:
            raise _lost()
        if self.status >= 300:
            raise self._refusal(await self._beginning(_MAX_PROBLEM))

    def _refusal(self, body: bytes) -> GatewayError:
        try:
            problem = msgspec.json.decode(body, type=_Problem)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            problem = _Problem(detail=self._foreign(body[:200].decode(errors="replace").strip()))
        wait = self.headers.get("retry-after", "")
        error = gateway_error(
            self.status,
            problem.reason or "http_error",
            problem.detail or problem.title or f"HTTP status {self.status}",
            retry_after=float(wait) if wait.isascii() and wait.isdigit() else None,
        )
        if isinstance(error, CannotBranch):
            error.obstacles = problem.obstacles
        return error

    def _foreign(self, text: str) -> str:
        """Return the message for a refusal that is not a gateway's: another program may have the port."""
        said = f": {text}" if text and not text.startswith("<") else ""
        if self.status in _OF_PROXIES:
            return (
                f"A proxy at {self._url} answers in the place of the gateway behind it"
                f" (HTTP status {self.status}{said}): {_OF_PROXIES[self.status]}"
            )
        return (
            f"What answers at {self._url} is no gateway, such as JupyterLab, or a proxy before one"
            f" (HTTP status {self.status}{said})"
        )

    async def chunks(self, *, idle_timeout: float | None = None) -> AsyncGenerator[bytes]:
        """Yield the body in parts. Raises GatewayError if it ends early or is silent for `idle_timeout` s."""
        parts = aiter(self._stream)
        while True:
            try:
                async with asyncio.timeout(idle_timeout):
                    part = await anext(parts, None)
            except TimeoutError:
                raise _lost() from None
            except _FAILURES as error:
                raise gateway_error(
                    0,
                    "connection_lost",
                    "The answer ended early: the gateway stopped it, or the connection was lost",
                ) from error
            if part is None:
                return
            yield part

    async def body(self, *, most: int = MOST_ANSWER) -> bytes:
        """Return the whole body. Raises GatewayError (``bad_answer``) for one of more than `most` bytes."""
        said = self.headers.get("content-length", "")
        if said.isascii() and said.isdecimal() and (len(said) > _DIGITS or int(said) > most):
            raise self._too_long(most)
        body = await self._beginning(most + 1)
        if len(body) > most:
            raise self._too_long(most)
        return body

    async def _beginning(self, enough: int) -> bytes:
        """Return the body; no more of it than arrives until there is `enough`."""
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if size >= enough:
                    break
        return b"".join(parts)

    def _too_long(self, most: int) -> GatewayError:
        return gateway_error(
            0,
            "bad_answer",
            f"The answer is longer than {most // MIB} MiB, the most that is taken: what answers at"
            f" {self._url} may be no gateway",
        )


def _lost() -> GatewayError:
    return gateway_error(0, "connection_lost", "The connection to the gateway was lost")


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A request's body of `length` bytes, None if nobody knows, sent as its `chunks` are produced."""

    length: int | None
    chunks: AsyncGenerator[bytes]


@dataclass(frozen=True, slots=True)
class Trust:
    """Which gateways' certificates are accepted; by default those that the system trusts.

    `ca_file`: only those signed by the certificates in this PEM file, or one of these itself. `certificate`:
    only this very one, as PEM, whatever name it is for.
    """

    ca_file: str | os.PathLike[str] | None = None
    certificate: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context that enforces it. Raises InvalidInput."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=self.certificate)
        except OSError as error:  # ssl.SSLError is one
            source = "the gateway's certificate" if self.ca_file is None else os.fspath(self.ca_file)
            raise InvalidInput(f"{source} can't be used to check certificates: {in_brief(error)}") from error
        if self.ca_file is not None or self.certificate is not None:
            # A gateway's own certificate may stand there without the one that signed it.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.certificate is not None:
            context.check_hostname = False
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


SYSTEM_TRUST = Trust()


class Server:
    """Where a gateway listens: the parts of its URL, and the token for it.

    `principal`: the owner of the sessions that requests are about, if not the token's principal.

    Raises InvalidInput for a URL that is not http or https, for a token that fits no header, and for files
    of `trust` that can't be used.
    """

    def __init__(
        self, url: str, token: str | None, trust: Trust = SYSTEM_TRUST, principal: str | None = None
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
            host = (parts.hostname or "").encode("idna")
        except UnicodeError as error:
            raise InvalidInput(f"{url!r} is not a gateway's URL: its name can't be one") from error
        except ValueError as error:
            raise InvalidInput(f"{url!r} is not a gateway's URL: {error}") from error
        if parts.scheme not in {"http", "https"} or not host:
            raise InvalidInput(f"{url!r} is not a gateway's URL, such as http://127.0.0.1:8888")
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidInput("the token holds characters that no token has")
        path = without_version(parts.path)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        scheme = parts.scheme.encode()
        self._origin = httpcore2.Origin(scheme, host, port or (443 if scheme == b"https" else 80))
        self._tls = trust.context() if scheme == b"https" else None
        self._prefix = quote(path, safe="/%:@!$&'()*+,;=~")
        name = f"[{host.decode()}]" if b":" in host else host.decode()
        self._headers = {"Host": name if port is None else f"{name}:{port}", "User-Agent": "cellgate"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._owners = Owners()
        self._principal = principal
        self.asks_again = True
        """Whether a gateway without room is asked again."""

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: str,
        *,
        body: bytes | RequestBody | None = None,
        accept: str = "application/json",
        headers: Mapping[str, str] | None = None,
        on_send: Callable[[], object] | None = None,
        session: str | None = None,
    ) -> AsyncIterator[HttpAnswer]:
        """Send a request; yield its answer once the headers have arrived. Leaving closes the connection.

        `body`: JSON as bytes, or any bytes as a Body. `on_send` is called when its first byte is sent:
        before that, the gateway can't have acted. `session`: the path of the session that it is about, where
        the target does not say: it is asked of the gateway that has it, and of no other.

        Raises GatewayError for every failure, including a refusal (status 300 and above), and NotOwner.
        """
        session = session or session_in(target)
        path = target.partition("?")[0]
        target = self._of_principal(method, target)
        sent = {**self._headers, "Accept": accept, "Connection": "close", **(headers or {})}
        sent |= self._owners.headers(session)
        if body is not None or method in {"POST", "PUT"}:
            raw = isinstance(body, RequestBody)
            sent["Content-Type"] = "application/octet-stream" if raw else "application/json"
            length = body.length if isinstance(body, RequestBody) else len(body or b"")
            sent |= {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
        async with AsyncExitStack() as stack:
            if isinstance(body, RequestBody):
                await stack.enter_async_context(aclosing(body.chunks))
            backend = _Backend(on_send or _ignore)
            answer = await self._answered(stack, session, method, target, sent, body, backend)
            await answer.check()
            self.learn(session, answer)
            self.learn(session_in(answer.headers.get("location", "")), answer)
            if method == "DELETE" and session is not None and session == path:
                self._owners.forget(session)
            yield answer

    def _of_principal(self, method: str, target: str) -> str:
        """Return the target of a request with the owner of its session. Raises InvalidInput for a new one."""
        if self._principal is None or not target.startswith(_OF_AN_OWNER):
            return target
        if (method, target) == ("POST", SESSIONS):
            raise InvalidInput("Sessions are created for the principal of the token, and for no other")
        return f"{target}{'&' if '?' in target else '?'}{urlencode({'principal': self._principal})}"

    def learn(self, session: str | None, answer: HttpAnswer) -> None:
        """Note which gateway has the session with this path. Raises NotOwner if it was another's."""
        self._owners.learn(session, answer.headers)

    def knows(self, session: str | None, target: str) -> bool:
        """Return whether it is known which gateway has the session of a request; see ``exchange``."""
        return self._owners.knows(session or session_in(target))

    def learn_branch(self, session: str, branch: str) -> None:
        """Note that a session's branch is where the session is, both by their paths. Raises NotOwner."""
        self._owners.learn_branch(session, branch)

    async def _answered(self, stack: AsyncExitStack, session: str | None, *request: *_Request) -> HttpAnswer:
        """Return the answer. One that is full has done nothing: a proxy in front asks another next time."""
        for pause in _FULL_PAUSES:
            async with AsyncExitStack() as attempt:
                answer = HttpAnswer(await self._ask_owner(attempt, session, *request), self.url)
                is_full = "cellgate-full" in answer.headers and self.asks_again
                if not is_full or isinstance(request[3], RequestBody):
                    stack.push_async_exit(attempt.pop_all())
                    return answer
            await asyncio.sleep(pause)
        return HttpAnswer(await self._ask_owner(stack, session, *request), self.url)

    async def _ask_owner(
        self, stack: AsyncExitStack, session: str | None, *request: *_Request
    ) -> httpcore2.Response:
        """Ask the gateway of the cluster that has the session; if it can't be reached, the given one."""
        address = self._owners.address(session)
        owner = None if address is None else self._origin_at(address)
        if address is not None and owner is not None:
            async with AsyncExitStack() as attempt:
                try:
                    response = await self._request(attempt, owner, _OWNER_TIMEOUT, *request)
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                    self._owners.is_out_of_reach(address)
                except _FAILURES as error:
                    raise _lost() from error
                else:
                    stack.push_async_exit(attempt.pop_all())
                    return response
        return await self._ask(stack, *request)

    def _origin_at(self, address: str) -> httpcore2.Origin | None:
        """Return another gateway's origin; None if it is this one's, or may be somebody else's.

        In a private network of the cluster's an address may be anybody's in ours. Over https only the gateway
        gets the token, as its certificate is checked; otherwise only the given host does.
        """
        try:
            parts = urlsplit(address)
            host, port = (parts.hostname or "").encode("ascii"), parts.port
        except ValueError:
            return None
        origin = httpcore2.Origin(
            parts.scheme.encode(), host, port or (443 if parts.scheme == "https" else 80)
        )
        is_safe = origin.scheme == b"https" or origin.host == self._origin.host
        is_other = origin.scheme == self._origin.scheme and origin != self._origin
        return origin if host and is_other and is_safe else None

    async def _ask(
        self,
        stack: AsyncExitStack,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | RequestBody | None,
        backend: _Backend,
    ) -> httpcore2.Response:
        """Return the response once its head has arrived. `stack` closes its connection and body."""
        try:
            return await self._request(
                stack, self._origin, _CONNECT_TIMEOUT, method, target, headers, body, backend
            )
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            if (untrusted := _find(ssl.SSLCertVerificationError, error)) is not None:
                raise gateway_error(
                    0,
                    "unreachable",
                    f"The certificate of {self.url} is not trusted: {untrusted.verify_message}. Name the "
                    "file with the certificates that signed it: --ca-file, or `trust` in Python.",
                ) from error
            if (foreign := _find(ssl.SSLError, error)) is not None and foreign.reason in _NOT_TLS:
                raise gateway_error(
                    0,
                    "unreachable",
                    f"What answers at {self.url} is not HTTPS: if it is a gateway without a certificate, its "
                    "address begins with http://",
                ) from error
            raise gateway_error(
                0,
                "unreachable",
                f"No gateway answers at {self.url} ({_why(error)}). Start one with `cellgate serve`, "
                "or name another: --url, or `Gateway(url)` in Python.",
            ) from error
        except _FAILURES as error:
            raise _lost() from error

    async def _request(
        self, stack: AsyncExitStack, origin: httpcore2.Origin, patience: float, *request: *_Request
    ) -> httpcore2.Response:
        """Return the response of the gateway at `origin`. `patience`: seconds to connect."""
        method, target, headers, body, backend = request
        is_small = not isinstance(body, RequestBody) and len(body or b"") <= _SMALL
        connection = httpcore2.AsyncHTTPConnection(
            origin,
            ssl_context=self._tls,
            network_backend=backend,
            socket_options=socket_options(is_small=is_small),
        )
        stack.push_async_callback(connection.aclose)
        url = httpcore2.URL(
            scheme=origin.scheme, host=origin.host, port=origin.port, target=(self._prefix + target).encode()
        )
        sending = connection.stream(
            method,
            url,
            headers=list(headers.items()),
            content=body.chunks if isinstance(body, RequestBody) else body,
            extensions={"timeout": {"connect": patience}},
        )
        return await stack.enter_async_context(sending)

    async def websocket(self, target: str, session: str) -> WebSocketClientConnection:
        """Return an open WebSocket, of the gateway that has the session with this path.

        Raises OSError and tornado's HTTPError and StreamClosedError.
        """
        from tornado.httpclient import HTTPRequest  # noqa: PLC0415 - for prompts only
        from tornado.websocket import websocket_connect  # noqa: PLC0415

        url = "ws" + self.url.removeprefix("http") + self._of_principal("GET", target)
        headers = {name: value for name, value in self._headers.items() if name != "Host"}
        headers |= self._owners.headers(session)
        return await websocket_connect(HTTPRequest(url, headers=headers, ssl_options=self._tls))


def without_version(url: str) -> str:
    """Return a gateway's URL or path without a final slash and ``/v1``, which each call adds."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _ignore() -> None:
    """Do nothing: for callers that need not know when a request is sent."""


def _below(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that caused it, the outermost first; of a group the first."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__


def _find(kind: type[E], outermost: BaseException) -> E | None:
    """Return the error of this kind that caused the outermost one, if one did."""
    return next((error for error in _below(outermost) if isinstance(error, kind)), None)


def _why(outermost: BaseException) -> str:
    """Return the system's reason for a failed connection, from below the errors of the layers."""
    reason = "no answer"
    for error in _below(outermost):
        if isinstance(error, ConnectionError) and error.errno:
            reason = os.strerror(error.errno)  # asyncio's strerror has its own text, with the address
        elif isinstance(error, OSError):
            reason = in_brief(error) if error.args else reason
    return reason


class _Backend(httpcore2.AsyncNetworkBackend):
    """Opens connections that are read while they are written to."""

    def __init__(self, on_send: Callable[[], object]) -> None:
        self._inner = httpcore2.AnyIOBackend()
        self._on_send = on_send

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        inner = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(inner, self._on_send)


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection whose other side may answer before it has read a whole request.

    A gateway does, and then closes, when it refuses a large upload: the answer must be read before our write
    fails, or it is lost. Nothing else may arrive before the end of a request.
    """

    def __init__(self, inner: httpcore2.AsyncNetworkStream, on_send: Callable[[], object]) -> None:
        self._inner = inner
        self._on_send = on_send
        self._ahead: asyncio.Task[bytes] | None = None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Raise WriteError when an answer arrives: httpcore2 then stops sending, and reads the answer."""
        self._on_send()
        if len(buffer) <= _SMALL and self._ahead is None:
            await self._inner.write(buffer, timeout)
            return
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._inner.read(_SMALL))
        writing = asyncio.create_task(self._inner.write(buffer, timeout))
        try:
            await asyncio.wait([writing, self._ahead], return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                raise httpcore2.WriteError("The answer came before the end of the request")
            await writing
        finally:
            await _ended(writing)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._ahead is None:
            return await self._inner.read(max_bytes, timeout)
        ahead = self._ahead
        self._ahead = None
        return await ahead

    async def aclose(self) -> None:
        if self._ahead is not None:
            await _ended(self._ahead)
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._on_send)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


async def _ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task unless it has ended, and wait for it. Its outcome is handled elsewhere."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def lines(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the lines of a body, without line ends; an unterminated last one is left out.

    Raises GatewayError for a line of more than MOST_LINE bytes.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            yield b"".join([*parts, piece])
            parts = []
            size = 0
        parts.append(rest)
        size += len(rest)
        if size > MOST_LINE:
            raise gateway_error(0, "bad_answer", f"The gateway sent a line of more than {MOST_LINE} bytes")
