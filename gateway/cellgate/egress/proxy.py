"""A session's forward proxy: on a Unix socket of its own, which only its kernel can reach.

The socket itself authenticates: its folder is mounted into one kernel, read-only, so every client is that
session. Each connection is one tunnel or one plain request. Checked in this order are: the session's quota,
host and port by the principal's policy, the record, and the addresses of the name. Then the connection to one
of the checked addresses is opened. No byte is sent before, and the policy is checked again every second.
``shared.Egress`` has the common parts of all sessions, ``ledger`` the record.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from cellgate.egress.ledger import EgressLedger, Passage
from cellgate.egress.policy import Address, Cause, EgressPolicy
from cellgate.egress.relay import CHUNK, BadBody, Count, end, pump, send_body
from cellgate.egress.requests import MOST_HEAD, BadHead, ProxyRequest, parse_head
from cellgate.egress.shared import Egress
from cellgate_kernels.base.errors import CellgateError, in_words
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.launch.base import EGRESS_SOCKET

logger = logging.getLogger(__name__)

BACKLOG = 64
HEAD_SECONDS = 15.0
ANSWER_SECONDS = 5.0
"""Seconds for sending a refusal, and for the client to leave afterwards."""
MOST_READ_ON = 16
FLUSH_SECONDS = 60.0
LINGER_SECONDS = 10.0
"""Seconds for a client to close a tunnel that its host has closed."""
LOOK_SECONDS = 1.0
OVERFLOW = 32
"""Connections beyond the open ones: about to send a request, or being refused."""
BURST = 64
PACE = 0.02
"""Seconds between connections after a burst: a kernel that does nothing but connect costs others little."""
ACCEPT_PAUSE = 0.5
"""Seconds after a failure to accept, such as too many open files."""
WRITE_BUFFER = 32 * 1024
MOST_NAMED = 20
"""Most patterns that a refusal names."""

_STATUS = {
    Cause.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    Cause.NAME_NOT_FOUND: HTTPStatus.BAD_GATEWAY,
    Cause.UNREACHABLE: HTTPStatus.BAD_GATEWAY,
    Cause.TOO_MANY_CONNECTIONS: HTTPStatus.TOO_MANY_REQUESTS,
    Cause.NOT_RECORDED: HTTPStatus.SERVICE_UNAVAILABLE,
}
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class ProxyHost(Protocol):
    """The session, as far as its proxy needs one."""

    @property
    def running(self) -> str | None:
        """The id of the execution that runs now."""

    def check_writable(self) -> None:
        """Raise StorageError while connections can't be recorded."""

    def carried(self, number: int, *, sent: bool) -> None:
        """Take note of bytes that are about to be sent to a host, or to the kernel."""

    def note(self, event_type: str, fields: dict[str, Any]) -> None:
        """Record an event of the session."""


class RefusedConnection(Exception):
    """The connection is refused, or ends early, because of `cause`; the text is for the client."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection from the kernel, as far as it is known. `address`: set once it is open.

    `own`: the address is this machine's, which only policies with `allow_private` admit.
    """

    begun: float
    during: str | None
    active_at: float
    request: ProxyRequest | None = None
    address: Address | None = None
    own: bool = False
    allowed: bool = False
    cause: Cause | None = None
    sent: int = 0
    received: int = 0
    task: asyncio.Task[None] | None = None

    def end(self, cause: Cause) -> None:
        """End the request now, for this cause unless it has another one."""
        self.cause = self.cause or cause
        if self.task is not None:
            self.task.cancel()


class SessionProxy:
    """The proxy of one session. `listen` for each kernel, `close` when that ends."""

    def __init__(self, egress: Egress, principal: str, host: ProxyHost) -> None:
        self._egress = egress
        self._principal = principal
        self._host = host
        self._time = asyncio.get_running_loop().time
        self._resolver = egress.resolver(principal)
        self._open: set[_Connection] = set()
        self._carried = 0
        self._due = 0.0
        self._listener: socket.socket | None = None
        self._ledger: EgressLedger | None = None
        self._tasks = Supervisor()

    @property
    def listening(self) -> bool:
        """Whether it serves on a socket."""
        return self._listener is not None

    def listen(self, folder: Path) -> None:
        """Serve on the socket in this folder, which the kernel can't write to. Raises OSError."""
        self._listener = listener = _listener(folder)
        self._ledger = EgressLedger(self._host.note)
        self._tasks.start(self._accept(listener), "proxy")
        self._tasks.repeat(self._look, "watch over connections", pause=LOOK_SECONDS)

    async def close(self) -> None:
        """End all connections and record them. Idempotent."""
        for connection in tuple(self._open):
            connection.end(Cause.KERNEL_ENDED)
        await self._tasks.cancel()
        await self._resolver.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    # Accepting

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("A session's proxy can't accept connections: %s", in_words(error))
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            moment = self._time()
            connection = _Connection(moment, self._host.running, moment)
            if len(self._tasks) > self._egress.limits.connections + OVERFLOW:
                # There are too many to send each a refusal.
                client.close()
                connection.cause = Cause.TOO_MANY_CONNECTIONS
                self._note(connection)
            else:
                connection.task = self._tasks.start(self._serve(client, connection), "connection")
            self._due = max(self._due, moment - BURST * PACE) + PACE
            if self._due > moment:
                await asyncio.sleep(self._due - moment)

    async def _look(self) -> float:
        """End connections that are idle, or that the policy no longer allows."""
        if self._ledger is not None:
            self._ledger.look()
        policy = self._egress.policy_of(self._principal)
        for connection in tuple(self._open):
            if self._time() - connection.active_at > self._egress.limits.idle_seconds:
                connection.end(Cause.IDLE)
            elif not _still_allowed(policy, connection):
                connection.end(Cause.POLICY_CHANGED)
        return LOOK_SECONDS

    def _note(self, connection: _Connection) -> None:
        request = connection.request
        if self._ledger is None or (request is None and connection.cause is None):
            return
        self._ledger.note(
            Passage(
                host="" if request is None else request.host,
                port=None if request is None else request.port,
                address=None if connection.address is None else str(connection.address),
                allowed=connection.allowed,
                cause=connection.cause,
                sent=connection.sent,
                received=connection.received,
                seconds=self._time() - connection.begun,
                during=connection.during,
            )
        )

    # One connection

    async def _serve(self, client: socket.socket, connection: _Connection) -> None:
        reader, writer = await _streams(client)
        try:
            try:
                await self._handle(reader, writer, connection)
                await _flush(writer)
            except RefusedConnection as refusal:
                connection.cause = refusal.cause
                if connection.address is None:
                    await _answer(reader, writer, refusal)
            except (OSError, BadBody) as error:
                # One side has left, or violates HTTP: nobody can get an answer.
                logger.debug("A connection of a session broke: %s", in_words(error))
        finally:
            if connection in self._open:
                self._open.discard(connection)
                self._egress.closed(self._principal)
            self._note(connection)
            writer.transport.abort()

    async def _handle(self, reader: StreamReader, writer: StreamWriter, connection: _Connection) -> None:
        head = await _read_head(reader)
        if head is None:
            return
        try:
            request = connection.request = parse_head(head)
        except BadHead as error:
            raise RefusedConnection(Cause.BAD_REQUEST, str(error)) from None
        upstream = await self._connect(request, connection)
        from_host, to_host = await _streams(upstream)
        try:
            await self._relay(connection, request, (reader, writer), (from_host, to_host))
            await _flush(to_host)
        finally:
            to_host.transport.abort()

    async def _connect(self, request: ProxyRequest, connection: _Connection) -> socket.socket:
        """Return a socket that is connected to a checked address of the host. Raises RefusedConnection."""
        policy = self._admit(request)
        # Before the first await, so that the limit of open connections holds.
        self._open.add(connection)
        self._egress.open[self._principal] += 1
        where = f"{request.host}:{request.port}"
        addresses = await self._resolver.addresses(request.host)
        if not addresses:
            raise RefusedConnection(Cause.NAME_NOT_FOUND, f"{request.host} has no address")
        admitted = [each for each in addresses if self._is_admitted(policy, request, each)]
        if not admitted:
            raise RefusedConnection(Cause.ADDRESS_NOT_ALLOWED, f"{where} has no address that may be reached")
        connection.allowed = True
        dialed = await self._egress.ways.dial(admitted, request.port)
        if dialed is None:
            raise RefusedConnection(Cause.UNREACHABLE, f"{where} does not answer")
        upstream, address = dialed
        own = self._egress.ways.is_own(address, request.port)
        if not _allows(self._egress.policy_of(self._principal), request, address, own=own):
            upstream.close()
            raise RefusedConnection(Cause.POLICY_CHANGED, f"this session may not reach {where} any more")
        connection.address, connection.own = address, own
        connection.active_at = self._time()
        return upstream

    def _admit(self, request: ProxyRequest) -> EgressPolicy:
        """Return the policy that allows a request, whose host is unresolved. Raises RefusedConnection."""
        limits = self._egress.limits
        if len(self._open) >= limits.connections:
            raise RefusedConnection(
                Cause.TOO_MANY_CONNECTIONS, f"a session may have {limits.connections} connections at once"
            )
        if self._egress.is_full(self._principal):
            raise RefusedConnection(
                Cause.TOO_MANY_CONNECTIONS, "too many connections of all sessions are open"
            )
        if self._carried >= limits.bytes:
            raise RefusedConnection(
                Cause.QUOTA_EXCEEDED, f"this session has used up its {limits.bytes} bytes"
            )
        policy = self._egress.policy_of(self._principal)
        if policy is None:
            raise RefusedConnection(Cause.NO_POLICY, "this session may reach nothing any more")
        if policy.pattern_for(request.host, request.port) is None:
            where = f"{request.host}:{request.port}"
            raise RefusedConnection(
                Cause.HOST_NOT_ALLOWED, f"this session may not reach {where}; {_named(policy)}"
            )
        try:
            self._host.check_writable()
        except CellgateError as error:
            raise RefusedConnection(
                Cause.NOT_RECORDED, f"connections can't be recorded: {error.message}"
            ) from None
        return policy

    def _is_admitted(self, policy: EgressPolicy, request: ProxyRequest, address: Address) -> bool:
        """Return whether an address may be connected to: our machine's own only if private ones may be."""
        if not policy.admits(request.host, request.port, address):
            return False
        return policy.allow_private or not self._egress.ways.is_own(address, request.port)

    async def _relay(
        self,
        connection: _Connection,
        request: ProxyRequest,
        client: tuple[StreamReader, StreamWriter],
        host: tuple[StreamReader, StreamWriter],
    ) -> None:
        """Relay until the host ends, or a tunnel's both sides. Raises RefusedConnection, OSError, BadBody."""
        from_client, to_client = client
        from_host, to_host = host
        send = partial(self._count, connection, sent=True)
        receive = partial(self._count, connection, sent=False)
        if request.tunnel:
            to_client.write(_ESTABLISHED)
            upwards = pump(from_client, to_host, send)
        else:
            await send(len(request.head))
            to_host.write(request.head)
            upwards = _body(from_client, to_host, request.length, send)
        tasks = Supervisor()
        up = tasks.share(upwards, "to the host", BROKEN)
        down = tasks.share(pump(from_host, to_client, receive), "from the host", BROKEN)
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if not down.done():
                up.result()
                await asyncio.wait({down})
            elif request.tunnel:
                await asyncio.wait({up}, timeout=LINGER_SECONDS)
            for task in (down, up):
                if task.done():
                    task.result()
        finally:
            await tasks.cancel()

    async def _count(self, connection: _Connection, number: int, *, sent: bool) -> None:
        """Count bytes to be sent on, at the principal's pace. Raises RefusedConnection for too many."""
        self._carried += number
        if self._carried > self._egress.limits.bytes:
            raise RefusedConnection(Cause.QUOTA_EXCEEDED, "this session has used up its bytes")
        if (place := self._egress.places.take()) is not None:
            await place
        await self._egress.pass_bytes(self._principal, number)
        connection.active_at = self._time()
        self._host.carried(number, sent=sent)
        if sent:
            connection.sent += number
        else:
            connection.received += number


BROKEN = (OSError, BadBody, RefusedConnection)
"""Errors that end a direction early."""


def _listener(folder: Path) -> socket.socket:
    """Return a socket that listens in a folder, in place of an earlier gateway's. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # This path is short enough for a socket's address, however long the folder's is.
        path = Path(f"/proc/self/fd/{opened}/{EGRESS_SOCKET}")
        draft = path.with_name(f"{EGRESS_SOCKET}.new")
        draft.unlink(missing_ok=True)
        listener.setblocking(False)
        listener.bind(str(draft))
        # The kernel may run as another user; the folders above are closed to all others.
        draft.chmod(0o666)
        listener.listen(BACKLOG)
        # Made beside the former one, it has another inode number. gVisor recognises files by that, and would
        # go on connecting to the socket that is gone.
        draft.replace(path)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(opened)
    return listener


def _still_allowed(policy: EgressPolicy | None, connection: _Connection) -> bool:
    """Return whether an open connection would still be allowed; new ones are checked elsewhere."""
    request = connection.request
    if request is None or connection.address is None:
        return True
    return _allows(policy, request, connection.address, own=connection.own)


def _allows(policy: EgressPolicy | None, request: ProxyRequest, address: Address, *, own: bool) -> bool:
    """Return whether a policy allows a connection to an address, which may be our machine's `own`."""
    if policy is None or (own and not policy.allow_private):
        return False
    return policy.admits(request.host, request.port, address)


def _named(policy: EgressPolicy) -> str:
    """Return the allowed hosts, in words for a person or a model."""
    named = ", ".join(map(str, policy.patterns[:MOST_NAMED]))
    more = len(policy.patterns) - MOST_NAMED
    return f"allowed: {named}" + (f" and {more} more" if more > 0 else "")


async def _streams(connected: socket.socket) -> tuple[StreamReader, StreamWriter]:
    """Return a reader and a writer for a connected socket, with small buffers. Closes it when that fails."""
    try:
        if connected.family is socket.AF_UNIX:
            reader, writer = await asyncio.open_unix_connection(sock=connected, limit=MOST_HEAD)
        else:
            reader, writer = await asyncio.open_connection(sock=connected, limit=MOST_HEAD)
    except BaseException:
        connected.close()
        raise
    writer.transport.set_write_buffer_limits(high=WRITE_BUFFER)
    return reader, writer


async def _read_head(reader: StreamReader) -> bytes | None:
    """Return the head of the request; None if the client leaves without one. Raises RefusedConnection."""
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            return await reader.readuntil(b"\r\n\r\n")
    except LimitOverrunError:
        raise RefusedConnection(Cause.BAD_REQUEST, f"a head may have {MOST_HEAD} bytes") from None
    except TimeoutError:
        raise RefusedConnection(Cause.BAD_REQUEST, f"a head must come within {HEAD_SECONDS:g} s") from None
    except IncompleteReadError as error:
        if error.partial:
            raise RefusedConnection(Cause.BAD_REQUEST, "the head is not whole") from None
        return None


async def _body(reader: StreamReader, writer: StreamWriter, length: int | None, count: Count) -> None:
    """Send a body and ignore errors: a host that refuses the rest of a body may still answer."""
    with suppress(OSError):
        await send_body(reader, writer, length, count)


async def _flush(writer: StreamWriter) -> None:
    """Close when everything is sent."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(FLUSH_SECONDS):
            await writer.wait_closed()


async def _answer(reader: StreamReader, writer: StreamWriter, refusal: RefusedConnection) -> None:
    """Send the client the reason. Programs that open tunnels often show the first line only."""
    status = _STATUS.get(refusal.cause, HTTPStatus.FORBIDDEN)
    body = f"cellgate: {refusal.cause}: {refusal}\n".encode("ascii", "replace")
    head = (
        f"HTTP/1.1 {status.value} {status.phrase} ({refusal.cause})\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with suppress(OSError):
        async with asyncio.timeout(ANSWER_SECONDS):
            writer.write(head.encode() + body)
            await writer.drain()
            end(writer)
            # Closing a socket with unread bytes would discard the answer.
            for _ in range(MOST_READ_ON):
                if not await reader.read(CHUNK):
                    break
