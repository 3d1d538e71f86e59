"""One client's connection: which phase it is in, and whether it takes longer than it may.

A stream counts its bytes and knows its phase; ``listener.server`` checks each stream once a second, so that
none needs a timer. It knows no protocol: ``listener.server`` and ``listener.frames`` tell it where a request
or a message begins and ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Protocol, cast

import msgspec
from tornado.iostream import IOStream, UnsatisfiableReadError

from cellgate.fairness.shares import Shares
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
"""Bytes that are read at once, other than of an upload."""
_AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: on, with a timeout of zero."""
_HANDSHAKE = 0x16
"""The first byte of TLS (RFC 8446, 5.1), and of no request."""
_GOES_ON = b"HTTP/1.1 100 "
"""How the word begins that a body may come, which is no answer."""
_TORNADOS_REFUSAL = b"HTTP/1.1 400 Bad Request\r\n\r\n"
"""What tornado says to what it can't parse. No answer of a handler begins so: each has headers."""
_UNREADABLE = "The request can't be read: it is not HTTP, or has too many headers"
WAITING_HELPS = frozenset({408, 503})
"""The statuses of refusals that may not be refused if they are sent again after `RETRY_SECONDS`."""
RETRY_SECONDS = 5
TOO_MANY = "All connections are in use; try again later"
TOO_MANY_OF_ONE = "You have too many connections open; close some, or try again later"


class StreamPhase(StrEnum):
    """What a connection is doing: waiting for a request, reading its body, answering, or a WebSocket."""

    WAITING = "waiting"
    BODY = "body"
    ANSWER = "answer"
    WEBSOCKET = "websocket"


class Late(StrEnum):
    """Why we closed a connection."""

    HEAD = "head_timeout"
    IDLE = "idle_timeout"
    BODY = "body_timeout"
    FRAME = "frame_timeout"
    ANSWER = "answer_timeout"


class StreamOwner(Protocol):
    """The server as a stream sees it.

    `memory`: the budget that all clients share. `shares`: the places of principals' connections. `turns`: the
    places in which their chunks are read.
    """

    memory: ByteBudget
    shares: Shares
    turns: Places

    def enter_instead(self, name: str) -> bool:
        """Take a place for this principal in place of one of who has more; False if nobody has."""

    def given_up(self, stream: ClientStream, why: str) -> None:
        """Note that a stream is about to be closed because it holds too much."""

    def refusal(self, status: int, reason: str, detail: str) -> bytes:
        """Return a whole answer with a problem, after which the connection is closed."""

    def refused_tls(self, stream: ClientStream) -> None:
        """Note that a TLS handshake has failed and the stream is about to be closed."""

    def linger(self, connection: socket.socket) -> None:
        """Keep a connection about to be closed while its client sends: its answer may be unread."""

    def closed(self, stream: ClientStream) -> None:
        """Note that the stream's socket has been closed."""


class ClientStream(IOStream):
    """A connection of a client. Phases are set by `waits`, `reads`, `answers` and `begins_message`.

    `origin`: the key of the address that it counts for. `whose`: who its memory counts for, its principal or,
    of a stranger, those of the address. `is_strange`: its present request has shown no token. `scheme`: of
    the URLs that lead to it. `proxy`: the address of the trusted proxy at its other side, if one is there.
    `login`: what the token of the request gives, once the client has shown one. `signed_in`: whether the
    sign-in that gave it is not over, if it was one of a browser. `evict`: how to close the connection in its
    own protocol once that login has ended. `busy`: the client is waiting for our work. `sending`: `transfer`
    writes to the socket directly and counts its bytes in `sent`. `spooled`: output that the client does not
    read is limited elsewhere, and may wait for long. `pieces`: the buffers that a large body is read into, in
    turn. `passed`: called with the numbers of bytes that count for the client's principal: of answers, and of
    messages of its WebSocket; its bodies are counted by their handlers.

    Memory kept for the client counts against the server's budget: a body or a message until it has been
    answered, bytes written that the system has not taken, and what callers declare they keep (`owing`).
    """

    scheme = "http"

    def __init__(self, connection: socket.socket, origin: str, owner: StreamOwner, **options: Any) -> None:
        self.origin = origin
        self.whose = self._strangers = strangers(origin)
        self.proxy: str | None = None
        self.phase = StreamPhase.WAITING
        self.login: Login | None = None
        self.signed_in: Callable[[], bool] | None = None
        self.evict: Callable[[], None] | None = None
        self.is_strange = True
        self.busy = False
        self.sending = False
        self.spooled = False
        self.passed: Callable[[int], None] | None = None
        self.received = 0
        self.sent = 0
        self._owner = owner
        self._incoming = 0
        self._owed = 0
        # Writes that the system has not fully taken: the end and the size of each, which is freed as a whole.
        self._unsent: deque[tuple[int, int]] = deque()
        self._unsent_bytes = 0
        self._written = 0
        self._flushed = 0
        self.pieces: Iterator[memoryview] | None = None
        self._first = True
        self._gone = False
        self._given_up = False
        self._dropped = self._said = False
        self._counting = False
        self._has_begun_answer = False
        self._message_at = 0
        self.since = self._window = self._write_window = time.monotonic()
        # Marks are values of `received` or `sent`: at the phase's start, at the window's, before the answer.
        self._phase_mark = 0
        self._window_mark = 0
        self._answer_mark = 0
        self._taken_mark = -1
        super().__init__(connection, **options)
        super().set_nodelay(True)

    def set_nodelay(self, value: bool) -> None:
        """Do nothing: it is always on. Tornado would switch it on and off around each answer, by two calls.

        Nagle's algorithm and delayed acknowledgements together would cost 40 ms an event.
        """

    def has_ended(self, is_valid: Callable[[Login], bool]) -> bool:
        """Return whether the login that let its request in is not valid any more, or the sign-in is over."""
        if self.login is None:
            return False
        return not is_valid(self.login) or (self.signed_in is not None and not self.signed_in())

    def let_in(self, login: Login) -> bool:
        """Note who is asking. False if they have too many connections already."""
        name = login.principal.name
        if not self._gone and (self.is_strange or self.whose != name):
            if not (self._owner.shares.enter(name) or self._owner.enter_instead(name)):
                return False
            if not self.is_strange:
                self._leave_place()
            self.is_strange = False
            self.whose = name
        self.login = login
        return True

    def comes_from(self, origin: str) -> None:
        """Note which address its present request is from."""
        self.origin = origin
        self._strangers = strangers(origin)
        if self.is_strange:
            self.whose = self._strangers

    def _leave_place(self) -> None:
        """Give back the principal's place: the connection is a stranger's again."""
        self.is_strange = True
        self._owner.shares.leave(self.whose)
        self.whose = self._strangers

    # Phases

    def waits(self) -> None:
        """Begin to wait for a request; parts of it may be buffered. It has shown no token yet."""
        self._first = self.received == 0
        self._enter(StreamPhase.WAITING)
        self._phase_mark -= self._read_buffer_size
        self._answer_mark = self.sent
        self._has_begun_answer = False
        self.login = None
        self.signed_in = None
        self.passed = None
        if not self.is_strange:
            self._leave_place()
        self._release()

    def reads(self) -> None:
        """Note that a request's head is complete and its body follows."""
        self._enter(StreamPhase.BODY)
        self._answer_mark = self.sent

    def answers(self) -> None:
        """Note that the request is complete. Its handler keeps the body, which therefore still counts."""
        self._enter(StreamPhase.ANSWER)
        self.pieces = None

    def begins_message(self) -> None:
        """Begin to wait for a WebSocket's next message; some of its bytes may be here already."""
        self._enter(StreamPhase.WEBSOCKET)
        self.busy = False
        self._counting = True
        self._message_at = self.received - self._read_buffer_size
        self._release()
        self.hold(self._read_buffer_size)

    def ends_message(self) -> None:
        """Count the complete message until the next one; from here on the client waits for the gateway."""
        self.busy = True

    def _enter(self, phase: StreamPhase) -> None:
        self.phase = phase
        self.since = self._window = self._write_window = time.monotonic()
        self._phase_mark = self._window_mark = self.received

    # Memory

    @property
    def held(self) -> int:
        """Bytes kept in memory for this client."""
        return self._incoming + self._unsent_bytes + self._owed

    def hold(self, count: int) -> None:
        """Count bytes of a body or a message as kept in memory."""
        self._incoming += count
        self._count()

    @contextmanager
    def owing(self, count: int) -> Iterator[None]:
        """Within it the caller keeps `count` bytes of an answer that the client has not taken."""
        self._owed += count
        self._count()
        try:
            yield
        finally:
            self._owed -= count
            self._count()

    def _release(self) -> None:
        if self._incoming:
            self._incoming = 0
            self._count()

    def _count(self) -> None:
        held = 0 if self._gone or self._given_up else self.held
        if held:
            self._owner.memory.hold(self, held, self.whose)
        else:
            self._owner.memory.release(self)

    def give_up(self) -> None:
        """Close it on the budget's order; in the next turn, as it may be reading or writing right now."""
        self._given_up = True
        self._owner.given_up(self, self._holds_most())
        asyncio.get_running_loop().call_soon(guarded(self._end, "end of a connection"))

    def _holds_most(self) -> str:
        if self._incoming <= self._unsent_bytes + self._owed:
            return "unread"
        return "unanswered" if self.phase is StreamPhase.ANSWER or self.busy else "unfinished"

    def _end(self) -> None:
        if self.writing():
            self._forget_unsent()
        self.drop()

    # Timeouts

    def late(self, now: float, settings: ListenerSettings) -> Late | None:
        """Which timeout it has exceeded, if any; called once a second."""
        match self.phase:
            case StreamPhase.WAITING:
                return self._late_with_head(now, settings)
            case StreamPhase.BODY:
                return Late.BODY if self._stalls(now, settings, begun=True) else None
            case StreamPhase.WEBSOCKET:
                if self._stalls(now, settings, begun=self._in_message()):
                    return Late.FRAME
                unread = not self.spooled and self._is_unread(now, settings.answer_timeout)
                return Late.ANSWER if unread else None
            case StreamPhase.ANSWER:
                return Late.ANSWER if self._is_unread(now, settings.answer_timeout) else None

    def _late_with_head(self, now: float, settings: ListenerSettings) -> Late | None:
        if self._first:
            return Late.HEAD if now - self.since > settings.head_timeout else None
        if self.received == self._phase_mark:
            # Nothing received yet: the head's timeout starts with its first byte.
            self._window = now
            return Late.IDLE if now - self.since > settings.idle_timeout else None
        return Late.HEAD if now - self._window > settings.head_timeout else None

    def _in_message(self) -> bool:
        return self.received > self._message_at

    def _stalls(self, now: float, settings: ListenerSettings, *, begun: bool) -> bool:
        """Return whether a whole window brought less than `body_rate`. Waiting starts it anew."""
        if self.busy or not begun:
            self._window = now
            self._window_mark = self.received
            return False
        if now - self._window <= settings.body_timeout:
            return False
        came = self.received - self._window_mark
        self._window = now
        self._window_mark = self.received
        return came < settings.body_rate * settings.body_timeout

    def _is_unread(self, now: float, timeout: float) -> bool:
        if not (self.sending or self.writing()):
            self._write_window = now
        else:
            taken = self.sent - _queued(self.socket)
            if taken != self._taken_mark:
                self._write_window = now
                self._taken_mark = taken
        return now - self._write_window > timeout

    # Closing

    def refuse(self, why: Late) -> None:
        """Close it, with an answer where one can still be sent."""
        if why in {Late.HEAD, Late.BODY} and self.received > self._phase_mark:
            self._last_words(408, "request_timeout", "The request did not arrive in time")
        if why is Late.ANSWER:
            self._forget_unsent()
        self.drop()

    def turn_away(self) -> None:
        """Close it, because there is no place for its request."""
        self._last_words(503, "too_many_connections", TOO_MANY)
        self.close()

    def reset(self) -> None:
        """Close it in the middle of an answer, so that the client can't take the part for the whole.

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
        if (
            self.closed()
            or self.writing()
            or (self.phase is StreamPhase.BODY and self.sent > self._answer_mark)
        ):
            return
        self._said = True
        self._send_last(self._owner.refusal(status, reason, detail))

    def _send_last(self, words: bytes) -> None:
        say(self.socket, words)

    def _point_to_http(self) -> None:
        """Answer a client that begins TLS, which would wait: it learns at once that nobody speaks it here."""
        self._owner.refused_tls(self)
        self._last_words(400, "bad_request", "This port is for HTTP: the URL must begin with http://")

    def close(self, exc_info: Any = False) -> None:
        """Close the stream; a request that can't be read is answered first."""
        if isinstance(exc_info, UnsatisfiableReadError):
            if self.phase is StreamPhase.WAITING:
                self._last_words(431, "too_large", "The request's head is too large")
            elif self.phase is StreamPhase.BODY:
                self._last_words(400, "bad_request", "The request's chunks can't be read")
        super().close(exc_info)

    @property
    def _answered_early(self) -> bool:
        """Whether it sent an answer to a request that has not come as a whole."""
        if self._dropped or self.writing():
            return False
        begun = self.phase is StreamPhase.BODY or (
            self.phase is StreamPhase.WAITING and self.received > self._phase_mark
        )
        return self._said or (begun and self.sent > self._answer_mark)

    def close_fd(self) -> None:
        """Close the descriptor and free the connection's place."""
        if self._answered_early:
            self._owner.linger(self.socket)
        super().close_fd()
        if not self._gone:
            self._gone = True
            if not self.is_strange:
                self._leave_place()
            self._count()
            self._owner.closed(self)

    # Tornado's hooks for reading and writing

    def read_bytes(self, num_bytes: int, partial: bool = False) -> Awaitable[bytes]:
        """Tornado reads bodies by this, partially: into `pieces`, or in small parts as by default."""
        if not partial:
            return super().read_bytes(num_bytes)
        if self.pieces is None:
            return super().read_bytes(min(num_bytes, PART), partial=True)
        return self._read_piece(next(self.pieces)[:num_bytes])

    async def read_until(self, delimiter: bytes, max_bytes: int | None = None) -> bytes:
        """Tornado reads the length of each chunk of a body by this: it waits for a place in a turn."""
        place = self._owner.turns.take()
        if place is not None:
            self.busy = True  # the client waits for us
            try:
                await place
            finally:
                self.busy = False
        return await super().read_until(delimiter, max_bytes)

    async def _read_piece(self, piece: memoryview) -> bytes:
        # Tornado's own buffer would cost two more copies of each byte.
        await self.read_into(piece)  # type: ignore[arg-type]
        return cast("bytes", piece)

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Count bytes received. A handshake of TLS in the place of a first request is the end."""
        count = super().read_from_fd(buf)
        if count and self.received == 0 and self.scheme == "http" and buf[0] == _HANDSHAKE:
            self._point_to_http()
            return 0
        if count:
            self.received += count
            if self._counting:
                self.hold(count)
                if self.passed is not None:
                    self.passed(count)
        return count

    def write(self, data: bytes | memoryview) -> asyncio.Future[None]:
        """Count bytes that the system did not take at once. Tornado's bare refusal becomes one of ours."""
        if not self._has_begun_answer and data[: len(_GOES_ON)] != _GOES_ON:
            self._has_begun_answer = True
            if data == _TORNADOS_REFUSAL:
                data = self._owner.refusal(400, "bad_request", _UNREADABLE)
        self._written += len(data)
        written = super().write(data)
        if self._flushed < self._written:
            self._unsent.append((self._written, len(data)))
            self._unsent_bytes += len(data)
            self._count()
        return written

    def write_to_fd(self, data: memoryview) -> int:
        """Write bytes and count those that were sent."""
        count = super().write_to_fd(data)
        self.has_sent(count)
        self._flushed += count
        if self._unsent and self._unsent[0][0] <= self._flushed:
            while self._unsent and self._unsent[0][0] <= self._flushed:
                _, size = self._unsent.popleft()
                self._unsent_bytes -= size
            self._count()
        return count

    def has_sent(self, count: int) -> None:
        """Count bytes that the system has taken; ``transfer`` calls it for what it sends itself."""
        self.sent += count
        if self.passed is not None:
            self.passed(count)


def strangers(origin: str) -> str:
    """Return the owner of an address's connections that have shown no token. No principal has such a name."""
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
    body = msgspec.json.encode(
        {
            "type": f"urn:cellgate:problem:{reason}",
            "title": title,
            "status": status,
            "detail": detail,
            "reason": reason,
        }
    )
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
    """Do something for a connection that is about to be closed, and may have been closed by its client."""
    try:
        call()
    except (OSError, ValueError):
        # ValueError: TLS on that connection has ended.
        return
