"""The HTTP server: limits connections, enforces their pace, survives running out of open files.

Tornado parses and answers; this subclass decides which connections are admitted and which are closed. A
connection is a stranger's until a request on it shows a token, then its principal's until it is answered. One
principal gets three quarters of the places at most, and some are strangers' in any case. When all are taken,
a new connection replaces the longest waiting stranger of the address with the most strangers, never a
connection with a token. So probes are always answered. When the principals' places are all taken, the
principal with the most gives one to a principal with fewer. Out of open files (EMFILE), it pauses before it
accepts again. It knows no routes: those are the application's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from cellgate.errors import HopRefused, status_of
from cellgate.fairness.shares import Shares
from cellgate.fairness.turns import part_of_one
from cellgate.files.upload import PIECE
from cellgate.http.listener.certificate import Certificate
from cellgate.http.listener.client_pace import StreamPhase
from cellgate.http.listener.lingering import Lingering
from cellgate.http.listener.recent_gateways import RecentGateways
from cellgate.http.listener.rounds import Rounds
from cellgate.http.listener.settings import ListenerSettings, for_principals
from cellgate.http.listener.streams import PART, TOO_MANY, ClientStream, answer_of, say
from cellgate.http.listener.tls import TlsStream, wrap
from cellgate.identity.principal import Login
from cellgate_kernels.base.budget import ByteBudget, largest
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.places import Places
from cellgate_kernels.base.tasks import guarded

logger = logging.getLogger(__name__)

MAX_HEADERS = 100
ACCEPTS_A_TURN = 2
"""Connections accepted before requests of the existing ones are read; must be fewer than the limit.

A cell takes about ten turns of the loop, and in a burst each of them is longer by so many connections.
"""

CHUNKS_A_TURN = 32
"""Chunks of bodies that are read in a turn of the loop, of all connections together.

A read can bring ten thousand, and tornado would parse them without a turn in between.
"""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
LOG_SECONDS = 60.0
FEW_TO_EVICT = 64
"""One in so many connections is closed when there is no place."""


class Listener(HTTPServer):
    """Tornado's server with limits. `closed_by_us` gets the reason for each connection that it closes."""

    def initialize(  # type: ignore[override]
        self,
        *arguments: Any,
        settings: ListenerSettings,
        closed_by_us: Callable[[str], None],
        certificate: Certificate | None = None,
        gateway: str | None = None,
        **options: Any,
    ) -> None:
        """Set up TLS if there is a `certificate`. `gateway`: the id named by the server's own refusals."""
        # Large enough for a piece of an upload; streams read other bodies in smaller parts.
        super().initialize(*arguments, **{"chunk_size": PIECE, **options})
        # Tornado would keep a timer for each head, of an hour; we check all connections ourselves.
        self.conn_params.header_timeout = None
        self.closed_by_us = closed_by_us
        self._limits = settings
        self._certificate = certificate
        self._gateway = gateway
        # In the order of their arrival, so that each is checked about as long after its last check.
        self._streams: dict[ClientStream, None] = {}
        self._origins: Counter[str] = Counter()
        # Connections of gateways that hand requests on count for their clients.
        self.gateways = RecentGateways()
        # Bytes of connections that are closed.
        self._transferred = 0, 0
        self._listening: dict[int, socket.socket] = {}
        self.shares = Shares(for_principals(settings.connections), part_of_one(settings.connections))
        self.memory = ByteBudget(settings.memory, largest)
        self.turns = Places(CHUNKS_A_TURN)
        self._pause = 0.0
        self._resume: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._rounds: Rounds[ClientStream] = Rounds(0.0)
        self._told = float("-inf")
        self._failures = 0
        self.lingering = Lingering()
        self._guarded_look = guarded(self._look_after, "look after connections")

    # Accepting

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections from these sockets, and start checking them."""
        for sock in sockets:
            number = sock.fileno()
            self._sockets[number] = self._listening[number] = sock
            self._handlers[number] = lambda number=number: self._leave(number)  # type: ignore[misc]
        self._listen()
        if self._look is None:
            self._rounds = Rounds(time.monotonic())
            self._look_again()

    def _listen(self) -> None:
        self._resume = None
        loop = asyncio.get_running_loop()
        for number, sock in self._listening.items():
            loop.add_reader(number, guarded(self._accept, "accepting"), sock)

    def _leave(self, number: int) -> None:
        asyncio.get_running_loop().remove_reader(number)
        del self._listening[number]

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(min(ACCEPTS_A_TURN, max(1, self._limits.connections // 8))):
            try:
                connection, address = sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            self._pause = 0.0
            self._admit(connection, address)

    def _accept_later(self, error: OSError) -> None:
        """Make room for a connection that got no file or memory, and try again after a pause."""
        loop = asyncio.get_running_loop()
        for number in self._listening:
            loop.remove_reader(number)
        self._pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, 2 * self._pause))
        self._resume = loop.call_later(self._pause, guarded(self._listen, "listening"))
        self._failures += 1
        now = time.monotonic()
        if now - self._told > LOG_SECONDS:
            logger.error(
                "Can't accept connections: %s (%d times since this was last told; %d are open)",
                in_words(error),
                self._failures,
                len(self._streams),
            )
            self._told = now
            self._failures = 0
        if self.shares.taken < len(self._streams):
            self._evict(self._streams, "no_open_files")
        elif (heaviest := self.shares.heaviest()) is not None:
            self._evict_of(heaviest, "no_open_files")

    def _admit(self, connection: socket.socket, address: Any) -> None:
        proxied = self._limits.proxies.trusts(_ip(address))
        origin = PROXY if proxied or _ip(address) in self.gateways else origin_of(address)
        if self._has_too_many(origin, 1):
            self._evict([s for s in self._streams if s.origin == origin], "evicted")
        if len(self._streams) >= self._limits.connections:
            self._evict(self._streams, "evicted", origin)
        if len(self._streams) >= self._limits.connections or self._has_too_many(origin, 1):
            self.closed_by_us("refused")
            if self._certificate is None:
                say(connection, self.refusal(503, "too_many_connections", TOO_MANY))
            connection.close()
            return
        # Tornado takes and zeroes a buffer of `read_chunk_size` at each read, however few bytes come.
        options = {"max_buffer_size": self.max_buffer_size, "read_chunk_size": PART}
        stream: ClientStream
        try:
            if self._certificate is None:
                stream = ClientStream(connection, origin, self, **options)
            else:
                context = self._certificate.context
                connection = wrap(connection, context)
                stream = TlsStream(connection, origin, self, ssl_options=context, **options)
        except OSError:
            # The client has gone already.
            connection.close()
            return
        stream.proxy = _ip(address) if proxied else None
        self._streams[stream] = None
        self._origins[origin] += 1
        self.handle_stream(stream, address)

    def _most_of(self, origin: str) -> int | None:
        if origin == PROXY:
            return None
        if self._limits.per_address is not None:
            return self._limits.per_address
        return None if origin == LOOPBACK else max(1, self._limits.connections // 2)

    def _has_too_many(self, origin: str, more: int) -> bool:
        """Return whether this many more connections would be too many for an address.

        By default the limit is for strangers alone: many users may share one address.
        """
        most = self._most_of(origin)
        if most is None or self._origins[origin] + more <= most:
            return False
        if self._limits.per_address is not None:
            return True
        return sum(s.is_strange and s.origin == origin for s in self._streams) + more > most

    def _evict(self, streams: Iterable[ClientStream], why: str, coming: str | None = None) -> None:
        """Close strangers, even in a request: the longest waiting of the address with the most.

        `coming`: the address of the connection that needs the place.
        """
        count = max(1, self._limits.connections // FEW_TO_EVICT)
        leaving = [stream for stream in streams if stream.is_strange]
        most = Counter(stream.origin for stream in leaving)
        if coming is not None:
            most[coming] += 1
        for stream in sorted(leaving, key=lambda stream: (-most[stream.origin], stream.pace.since))[:count]:
            self.closed_by_us(why)
            stream.drop()

    def enter_instead(self, name: str) -> bool:
        """Give this principal the place of one with more; False if there is none with more."""
        heaviest = self.shares.heaviest()
        if heaviest is None or self.shares.taken < self.shares.most:
            return False
        if self.shares.taken_by(heaviest) <= self.shares.taken_by(name) + 1:
            return False
        self._evict_of(heaviest, "evicted")
        return self.shares.enter(name)

    def _evict_of(self, name: str, why: str) -> None:
        """Close the principal's connection with the longest request."""
        theirs = [stream for stream in self._streams if not stream.is_strange and stream.memory.whose == name]
        stream = min(theirs, key=lambda stream: stream.pace.since)
        self.closed_by_us(why)
        stream.drop()

    def end_logins(self, is_valid: Callable[[Login], bool]) -> None:
        """Close the connections that were let in by a login, or a sign-in, that has ended."""
        for stream in tuple(self._streams):
            if stream.has_ended(is_valid):
                self.closed_by_us("login_ended")
                (stream.evict or stream.drop)()

    def open_logins(self) -> Iterator[Login]:
        """Return the logins of all connections that were let in."""
        return (stream.login for stream in tuple(self._streams) if stream.login is not None)

    # Checking them

    def _look_again(self) -> None:
        self._look = asyncio.get_running_loop().call_at(self._rounds.due, self._guarded_look)

    def _look_after(self) -> None:
        now = time.monotonic()
        streams = self._rounds.take(now, self._streams)
        self._look_again()
        for stream in streams:
            if stream in self._streams and (late := stream.late(now, self._limits)) is not None:
                self.closed_by_us(late)
                stream.refuse(late)

    def given_up(self, stream: ClientStream, why: str) -> None:
        """Report a stream that will be closed because clients hold too much memory and it holds the most."""
        self.closed_by_us(why)
        logger.warning("Closed a connection, which held most of the memory for clients: it is %s", why)

    def refusal(self, status: int, reason: str, detail: str) -> bytes:
        """Return a whole answer with a problem, after which the connection is closed."""
        return answer_of(status, reason, detail, self._gateway)

    def closed(self, stream: ClientStream) -> None:
        """Free the place of a closed connection, and add its bytes."""
        self._streams.pop(stream, None)
        received, sent = self._transferred
        self._transferred = received + stream.pace.received, sent + stream.pace.sent
        self._leave_origin(stream)

    def _leave_origin(self, stream: ClientStream) -> None:
        self._origins[stream.origin] -= 1
        if not self._origins[stream.origin]:
            del self._origins[stream.origin]

    def count_for(self, stream: ClientStream, origin: str) -> bool:
        """Count a connection of a proxy, or of a gateway, for one of its clients. False if this client has
        too many already.
        """
        if stream not in self._streams:
            # It is closed, and counts no more; tornado prepares for a next request all the same.
            return True
        self._leave_origin(stream)
        stream.comes_from(origin)
        self._origins[origin] += 1
        if self._has_too_many(origin, 0):
            self._evict([s for s in self._streams if s.origin == origin and s is not stream], "evicted")
        return not self._has_too_many(origin, 0)

    def connections(self) -> Mapping[str, float]:
        """Return the number of connections, by phase."""
        counts = Counter(stream.pace.phase for stream in self._streams)
        return {phase: float(counts[phase]) for phase in StreamPhase}

    def transferred(self) -> tuple[int, int]:
        """Return the bytes received and sent since the start by HTTP and WebSockets."""
        received, sent = self._transferred
        received += sum(stream.pace.received for stream in self._streams)
        return received, sent + sum(stream.pace.sent for stream in self._streams)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Tornado's hook: the next request of a connection may arrive."""
        delegate = super().start_request(server_conn, request_conn)
        assert isinstance(request_conn, HTTP1Connection)
        stream = request_conn.stream
        assert isinstance(stream, ClientStream)
        setattr(request_conn, _PARSE, _parse_few)
        stream.waits()
        if stream.proxy is not None or stream.is_handed_on:
            self.count_for(stream, PROXY)
        if stream.proxy is None and self._limits.handed_on is None:
            return _Request(delegate, stream)
        return _Request(delegate, stream, partial(self._serves, stream, request_conn.context))

    def _serves(
        self, stream: ClientStream, context: Any, start: RequestStartLine, headers: HTTPHeaders
    ) -> bool:
        """Make the request look as if its client had connected directly. False if it was turned away.

        `context` is tornado's, from which each request takes its client's address and its scheme.
        """
        if self._limits.handed_on is not None:
            # The connection's request before may have been another client's.
            stream.address = stream.address or context.remote_ip
            context.remote_ip, context.protocol = stream.address, stream.scheme
            try:
                handed_on = self._limits.handed_on(start.method, start.path, headers)
            except HopRefused as error:
                self.closed_by_us("refused")
                stream.turn_away(status_of(error), error.reason, error.message)
                return False
            stream.handed_on = handed_on
            if handed_on is not None:
                self.gateways.add(stream.address)
                context.remote_ip, context.protocol = handed_on.address, handed_on.scheme
                return self._counts(stream, handed_on.address)
        if stream.proxy is None:
            return stream.origin != PROXY or self._counts(stream, stream.address)
        forwarded = self._limits.proxies.read(stream.proxy, headers)
        context.remote_ip = forwarded.address
        context.protocol = forwarded.scheme or stream.scheme
        if forwarded.host is not None:
            headers["Host"] = forwarded.host
        return self._counts(stream, forwarded.address)

    def _counts(self, stream: ClientStream, address: str) -> bool:
        """Count a connection for the client with this address. False if it was turned away."""
        if self.count_for(stream, origin_of((address,))):
            return True
        self.closed_by_us("refused")
        stream.turn_away()
        return False

    async def close_all_connections(self) -> None:
        """Close all connections, and stop checking them."""
        for timer in (self._look, self._resume):
            if timer is not None:
                timer.cancel()
        self._look = self._resume = None
        # Tornado no longer tracks WebSockets, nor downloads sent around its stream (`transfer`).
        for stream in list(self._streams):
            stream.drop()
        self.lingering.close()
        await super().close_all_connections()

    def stop(self) -> None:
        """Stop accepting connections, also after a pause."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        super().stop()


_PARSE = "_parse_headers"
_parse: Callable[[object, bytes], tuple[str, HTTPHeaders]] = getattr(HTTP1Connection, _PARSE)


def _parse_few(data: bytes) -> tuple[str, HTTPHeaders]:
    """Parse headers as tornado's method does, but refuse too many before they cost any parsing."""
    if data.strip().count(b"\n") > MAX_HEADERS:
        raise HTTPInputError(f"More than {MAX_HEADERS} headers")
    return _parse(None, data)


class _Request(HTTPMessageDelegate):
    """Reports a request's progress to the stream, and when the client waits for us.

    `serves`: called with the head of a request that a trusted proxy or another gateway may pass on; returns
    whether it was not turned away.
    """

    def __init__(
        self,
        inner: HTTPMessageDelegate,
        stream: ClientStream,
        serves: Callable[[RequestStartLine, HTTPHeaders], bool] | None = None,
    ) -> None:
        self._inner = inner
        self._stream = stream
        self._serves = serves
        self._refused = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        assert isinstance(start_line, RequestStartLine)
        if self._serves is not None and not self._serves(start_line, headers):
            self._refused = True
            return None
        self._stream.pace.reads(time.monotonic())
        return self._wait(self._inner.headers_received(start_line, headers))

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        if self._refused:  # tornado parses what it had read
            return None
        return self._wait(self._inner.data_received(chunk))

    def _wait(self, done: Awaitable[None] | None) -> Awaitable[None] | None:
        return None if done is None else self._busy(done)

    async def _busy(self, done: Awaitable[None]) -> None:
        self._stream.pace.busy = True
        try:
            await done
        finally:
            self._stream.pace.busy = False

    def finish(self) -> None:
        if not self._refused:
            # The handler keeps the body, which therefore still counts.
            self._stream.pace.answers(time.monotonic())
            self._stream.pieces = None
            self._inner.finish()

    def on_connection_close(self) -> None:
        if not self._refused:
            self._inner.on_connection_close()


LOOPBACK = "loopback"
PROXY = "proxy"
"""The key of connections of trusted proxies and other gateways without a request: they count for nobody."""


def _ip(address: Any) -> str:
    """Return the address of the connection's other side; empty for a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""


def origin_of(address: Any) -> str:
    """Return the key under which connections count as one remote address.

    It is an IPv4 address, a /64 of IPv6, or `LOOPBACK` for loopback and Unix sockets.
    """
    try:
        ip = ipaddress.ip_address(_ip(address).partition("%")[0])
    except ValueError:
        return LOOPBACK
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif not ip.is_loopback:
            return ip.packed[:8].hex()
    return LOOPBACK if ip.is_loopback else str(ip)
