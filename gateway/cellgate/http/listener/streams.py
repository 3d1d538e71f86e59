"""One client's connection: it reads, writes, refuses and closes.

It counts the client's bytes in a `ClientPace` and a `HeldMemory`; ``listener.server`` checks each stream once
a second, so that none needs a timer. It knows no protocol: ``listener.server`` and ``listener.frames`` report
where a request or a message begins and ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, cast

import msgspec
from tornado.iostream import IOStream, UnsatisfiableReadError

from cellgate.fairness.shares import Shares
from cellgate.http.listener.client_pace import ClientPace, Late, StreamPhase
from cellgate.http.listener.forwarded import Forwarded
from cellgate.http.listener.held_memory import HeldMemory
from cellgate.http.listener.lingering import Lingering
from cellgate.http.listener.settings import ListenerSettings
from cellgate.identity.principal import Login
from cellgate.wire.owner import OWNER
from cellgate_kernels.base.budget import ByteBudget
from cellgate_kernels.base.places import Places
from cellgate_kernels.base.tasks import guarded

_INT = struct.Struct("=i")
_TCP_INFO = struct.Struct("=3xB20xI28xI")
"""tcpi_probes, tcpi_unacked, tcpi_last_ack_recv."""
PART = 64 * 1024
"""Most bytes of one read, except of an upload."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: on, with a timeout of zero."""
_HANDSHAKE = 0x16
"""The first byte of TLS (RFC 8446, 5.1), with which no request begins."""
_GOES_ON = b"HTTP/1.1 100 "
"""The beginning of an interim answer, which asks for the body."""
_TORNADOS_REFUSAL = b"HTTP/1.1 400 Bad Request\r\n\r\n"
"""Tornado's answer to unparsable requests. No answer of a handler begins so: each has headers."""
_UNREADABLE = "The request can't be read: it is not HTTP, or has too many headers"
WAITING_HELPS = frozenset({408, 503})
"""Statuses of refusals after which a repeat may succeed, after `RETRY_SECONDS`."""
RETRY_SECONDS = 5
TOO_MANY = "All connections are in use; try again later"
TOO_MANY_OF_ONE = "You have too many connections open; close some, or try again later"


class StreamOwner(Protocol):
    """The server as a stream sees it.

    `memory`: the budget that all clients share. `shares`: the places of principals' connections. `turns`: the
    places in which their chunks are read. `lingering`: the connections that were answered early.
    """

    memory: ByteBudget
    shares: Shares
    turns: Places
    lingering: Lingering

    def closed_by_us(self, why: str, /) -> None:
        """Count a connection that will be closed now."""

    def enter_instead(self, name: str) -> bool:
        """Give this principal the place of one with more; False if there is none with more."""

    def given_up(self, stream: ClientStream, why: str) -> None:
        """Note that a stream will be closed because it holds too much memory."""

    def refusal(self, status: int, reason: str, detail: str) -> bytes:
        """Return a whole answer with a problem, after which the connection is closed."""

    def closed(self, stream: ClientStream) -> None:
        """Note that the stream's socket has been closed."""


class ClientStream(IOStream):
    """A client's connection. `pace`: its phase and its bytes. `memory`: the bytes held in memory for it.

    `origin`: the key of the address that it counts for. `memory.whose`: its principal or, while it is a
    stranger, those of the address. `is_strange`: its present request has shown no token. `scheme`: of the
    URLs that lead to it. `proxy`: the address of the trusted proxy at its other side, if one is there.
    `address`: that of the other side, once a request over it may have been another address's. `handed_on`:
    whose its present request is, if another gateway of the cluster, which has checked the Host, hands it on.
    `is_joined`: it has become a WebSocket of another gateway's.
    `login`: what the token of the request gives, once the client has shown one. `signed_in`: whether the
    sign-in that gave it is not over, if it was one of a browser. `evict`: how to close the connection in its
    own protocol once that login has ended. `pieces`: the buffers that a large body is read into, in turn.
    `passed`: called with the numbers of bytes that count for the client's principal: of answers, and of
    messages of its WebSocket; its bodies are counted by their handlers.
    """

    scheme = "http"

    def __init__(self, connection: socket.socket, origin: str, owner: StreamOwner, **options: Any) -> None:
        self.origin = origin
        self._strangers = strangers(origin)
        self.pace = ClientPace(time.monotonic())
        self.memory = HeldMemory(owner.memory, self._strangers, self._give_up)
        self.proxy: str | None = None
        self.address = ""
        self.handed_on: Forwarded | None = None
        self.login: Login | None = None
        self.signed_in: Callable[[], bool] | None = None
        self.evict: Callable[[], object] | None = None
        self.is_strange = True
        self.passed: Callable[[int], None] | None = None
        self.pieces: Iterator[memoryview] | None = None
        self._owner = owner
        self._gone = False
        self._dropped = self._said = False
        self._counting = False
        self.is_joined = False
        self._has_begun_answer = False
        super().__init__(connection, **options)
        super().set_nodelay(True)

    def set_nodelay(self, value: bool) -> None:
        """Do nothing: it is always on. Tornado would toggle it around each answer, by two system calls.

        Nagle's algorithm and delayed acknowledgements together would cost 40 ms an event.
        """

    def has_ended(self, is_valid: Callable[[Login], bool]) -> bool:
        """Return whether the login that let its request in is no longer valid, or the sign-in is over."""
        if self.login is None:
            return False
        return not is_valid(self.login) or (self.signed_in is not None and not self.signed_in())

    def let_in(self, login: Login) -> bool:
        """Note the request's login. False if its principal has too many connections already."""
        name = login.principal.name
        if not self._gone and (self.is_strange or self.memory.whose != name):
            if not (self._owner.shares.enter(name) or self._owner.enter_instead(name)):
                return False
            if not self.is_strange:
                self._leave_place()
            self.is_strange = False
            self.memory.whose = name
        self.login = login
        return True

    def comes_from(self, origin: str) -> None:
        """Note the address of its present request."""
        self.origin = origin
        self._strangers = strangers(origin)
        if self.is_strange:
            self.memory.whose = self._strangers

    def _leave_place(self) -> None:
        """Release the principal's place: the connection is a stranger's again."""
        self.is_strange = True
        self._owner.shares.leave(self.memory.whose)
        self.memory.whose = self._strangers

    # Phases

    @property
    def is_handed_on(self) -> bool:
        """Whether the present request was handed on by another gateway of the cluster."""
        return self.handed_on is not None

    def waits(self) -> None:
        """Begin to wait for a request; parts of it may be buffered. It has shown no token yet."""
        self.pace.waits(self._read_buffer_size, time.monotonic())
        self._has_begun_answer = False
        self.login = None
        self.signed_in = None
        self.passed = None
        if not self.is_strange:
            self._leave_place()
        self.memory.release()

    def begins_message(self) -> None:
        """Begin to wait for a WebSocket's next message; some of its bytes may be here already."""
        self.pace.begins_message(self._read_buffer_size, time.monotonic())
        self._counting = True
        self.memory.release()
        self.memory.hold(self._read_buffer_size)

    def late(self, now: float, settings: ListenerSettings) -> Late | None:
        """Return which timeout it has exceeded, if any; called once a second."""
        waits = self.pace.sending or self.writing()
        return self.pace.late(now, settings, _queued(self.socket) if waits else None)

    # Closing

    def _give_up(self) -> None:
        """Close it on the budget's order; in the next turn, as it may be reading or writing just now."""
        what = "unread"
        if not self.memory.is_unread:
            busy = self.pace.busy or self.pace.phase is StreamPhase.ANSWER
            what = "unanswered" if busy else "unfinished"
        self._owner.given_up(self, what)
        asyncio.get_running_loop().call_soon(guarded(self._end, "end of a connection"))

    def _end(self) -> None:
        if self.writing():
            self._forget_unsent()
        self.drop()

    def refuse(self, why: Late) -> None:
        """Close it, with an answer if one can still be sent."""
        if why in {Late.HEAD, Late.BODY} and self.pace.has_begun:
            self._last_words(408, "request_timeout", "The request did not arrive in time")
        if why is Late.ANSWER:
            self._forget_unsent()
        self.drop()

    def turn_away(
        self, status: int = 503, reason: str = "too_many_connections", detail: str = TOO_MANY
    ) -> None:
        """Close it, because there is no place for its request, or for the reason that is given."""
        self._last_words(status, reason, detail)
        self.close()

    def reset(self) -> None:
        """Close it in the middle of an answer, so that the client can't mistake the part for the whole.

        To an HTTP/1.0 client an orderly close would mean that the answer is complete.
        """
        if not self.closed():
            self._forget_unsent()
            self.close()

    def _forget_unsent(self) -> None:
        """Make closing a reset: the system would otherwise keep unsent bytes for long (socket(7))."""
        self._dropped = True
        quietly(lambda: self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE))

    def drop(self) -> None:
        """Close it, also for a duplicate of the socket (``transfer``)."""
        if not self.closed():
            self._dropped = True
            quietly(lambda: self.socket.shutdown(socket.SHUT_RDWR))
            self.close()

    def _last_words(self, status: int, reason: str, detail: str) -> None:
        begun = self.pace.phase is StreamPhase.BODY and self.pace.has_answer
        if self.closed() or self.writing() or begun:
            return
        self._said = True
        self._send_last(self._owner.refusal(status, reason, detail))

    def _send_last(self, words: bytes) -> None:
        say(self.socket, words)

    def _point_to_http(self) -> None:
        """Answer a client that begins TLS at once, because it would wait for a handshake in vain."""
        self._owner.closed_by_us("tls_handshake")
        self._last_words(400, "bad_request", "This port is for HTTP: the URL must begin with http://")

    def close(self, exc_info: Any = False) -> None:
        """Close the stream; a request that can't be read is answered first."""
        if isinstance(exc_info, UnsatisfiableReadError):
            if self.pace.phase is StreamPhase.WAITING:
                self._last_words(431, "too_large", "The request's head is too large")
            elif self.pace.phase is StreamPhase.BODY:
                self._last_words(400, "bad_request", "The request's chunks can't be read")
        super().close(exc_info)

    def close_fd(self) -> None:
        """Close the descriptor and free the connection's place."""
        early = self._said or (self.pace.is_within_request and self.pace.has_answer)
        if early and not (self._dropped or self.writing()):
            # The answer was sent before the whole request had come.
            self._owner.lingering.keep(self.socket)
        super().close_fd()
        if not self._gone:
            self._gone = True
            if not self.is_strange:
                self._leave_place()
            self.memory.close()
            self._owner.closed(self)

    # Tornado's hooks for reading and writing

    def read_bytes(self, num_bytes: int, partial: bool = False) -> Awaitable[bytes]:
        """Tornado's hook to read bodies, partially: into `pieces`, or in small parts as by default."""
        if not partial:
            return super().read_bytes(num_bytes)
        if self.pieces is None:
            return super().read_bytes(min(num_bytes, PART), partial=True)
        return self._read_piece(next(self.pieces)[:num_bytes])

    async def read_until(self, delimiter: bytes, max_bytes: int | None = None) -> bytes:
        """Tornado's hook to read the length of a chunk: it waits for a place in a turn."""
        place = self._owner.turns.take()
        if place is not None:
            self.pace.busy = True  # the client waits for us
            try:
                await place
            finally:
                self.pace.busy = False
        return await super().read_until(delimiter, max_bytes)

    async def _read_piece(self, piece: memoryview) -> bytes:
        # Tornado's own buffer would cost two more copies of each byte.
        await self.read_into(piece)  # type: ignore[arg-type]
        return cast("bytes", piece)

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Count bytes received. A TLS handshake in place of a first request ends the connection."""
        count = super().read_from_fd(buf)
        if count and self.pace.received == 0 and self.scheme == "http" and buf[0] == _HANDSHAKE:
            self._point_to_http()
            return 0
        if count:
            self.pace.received += count
            if self._counting:
                self.memory.hold(count)
            if self.passed is not None and (self._counting or self.is_joined):
                self.passed(count)
        return count

    def write(self, data: bytes | memoryview) -> asyncio.Future[None]:
        """Count bytes that the system did not accept at once. Tornado's bare refusal becomes one of ours."""
        if not self._has_begun_answer and data[: len(_GOES_ON)] != _GOES_ON:
            self._has_begun_answer = True
            if data == _TORNADOS_REFUSAL:
                data = self._owner.refusal(400, "bad_request", _UNREADABLE)
        written = super().write(data)
        self.memory.wrote(len(data))
        return written

    def write_to_fd(self, data: memoryview) -> int:
        """Write bytes and count those that were sent."""
        count = super().write_to_fd(data)
        self.pace.sent += count
        if self.passed is not None:
            self.passed(count)
        self.memory.took(count)
        return count

    def has_sent(self, count: int) -> None:
        """Count bytes that ``transfer`` has sent itself."""
        self.pace.sent += count
        if self.passed is not None:
            self.passed(count)


def strangers(origin: str) -> str:
    """Return the name, never a principal's, that owns an address's connections without a token."""
    return f"\n{origin}"


def _queued(connection: socket.socket) -> int:
    """Return the bytes that the peer's system has not taken yet (tcp(7), SIOCOUTQ)."""
    (count,) = _INT.unpack(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_INT.size)))
    return int(count)


def silence(connection: socket.socket) -> float:
    """Return the seconds that the peer's system has left sent bytes unacknowledged (tcp(7), TCP_INFO).

    A peer that reads nothing is not silent: its system still acknowledges, even probes of a closed window.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    probes, unacknowledged, milliseconds = _TCP_INFO.unpack(info)
    return milliseconds / 1000 if probes or unacknowledged else 0.0


def answer_of(status: int, reason: str, detail: str, gateway: str | None = None) -> bytes:
    """Return a whole answer with a problem, after which the connection is closed. `gateway`: the id in it."""
    named = "" if gateway is None else f"{OWNER}: {gateway}\r\n"
    retry = f"Retry-After: {RETRY_SECONDS}\r\n" if status in WAITING_HELPS else ""
    title = reason.replace("_", " ").capitalize()
    problem = {"type": f"urn:cellgate:problem:{reason}", "title": title, "status": status}
    body = msgspec.json.encode(problem | {"detail": detail, "reason": reason})
    head = (
        f"HTTP/1.1 {status} {title}\r\nServer: cellgate\r\nContent-Type: application/problem+json\r\n"
        f"{named}Content-Length: {len(body)}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def say(connection: socket.socket, words: bytes) -> None:
    """Send words over a connection that is about to be closed, unencrypted; they may be lost with it."""
    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    quietly(lambda: socket.socket.send(connection, words, flags))
    quietly(lambda: connection.shutdown(socket.SHUT_WR))


def quietly(call: Callable[[], object]) -> None:
    """Call a function for a connection that will be closed, and that its client may have closed already."""
    try:
        call()
    except (OSError, ValueError):
        # ValueError: TLS on that connection has ended.
        return
