"""/api/kernels/{id}/channels: a WebSocket to a session, in Jupyter's wire protocol.

It handles handshakes, frames and close codes; ``channels`` interprets the messages. An unreadable frame
closes the socket with a reason, because its sender would otherwise wait for an answer for ever.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable
from typing import Any

from tornado.iostream import StreamClosedError

from cellgate.channels.client import Client
from cellgate.channels.requests import Received, received
from cellgate.channels.synthesis import answer_to
from cellgate.errors import QueueFull, ShuttingDown
from cellgate.http.jupyter.kernels import KernelBase
from cellgate.http.listener.frames import WatchedWebSocketHandler
from cellgate.http.listener.streams import ClientStream, silence
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import CellgateError, InvalidInput, KernelDied
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.codec.structure import INLINE_BYTES
from cellgate_kernels.protocol.messages import Channel, MalformedMessage
from cellgate_kernels.protocol.websocket import Subprotocol, decode, negotiate

logger = logging.getLogger(__name__)

GOING_AWAY, UNSUPPORTED_DATA, INVALID_PAYLOAD = 1001, 1003, 1007
MAX_ID = 1024
MUCH = 64 * 1024
FULL_KERNEL_PAUSE = 0.02
PINGS = 6  # in the time for which a client may be silent


class ChannelsHandler(KernelBase, WatchedWebSocketHandler):
    """One WebSocket."""

    _session: Session
    _client: Client | None = None
    _subprotocol = Subprotocol.JSON
    _next_ping: asyncio.TimerHandle | None = None

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Return the v1 protocol if offered, else none: clients without it expect JSON."""
        self._subprotocol = negotiate(subprotocols)
        return self._subprotocol or None

    @requires(Permission.RUN, Permission.READ)
    async def get(self, wanted: str) -> None:
        self._session = self.session_of(wanted)
        self._session_id = self.get_query_argument("session_id", None) or f"anonymous-{uuid.uuid4()}"
        if len(self._session_id) > MAX_ID:
            raise InvalidInput(f"session_id is longer than {MAX_ID} characters")
        if self._session.door.full:
            raise QueueFull("This kernel has too many clients; try again later", retry_after=10)
        await WatchedWebSocketHandler.get(self, wanted)

    def open(self, *_: str, **__: str) -> None:
        """Join the session's clients; an earlier socket with the same session_id is closed."""
        if self._session.ending:
            self.close(GOING_AWAY, "The kernel has ended")
            return
        self.close_with_login()
        if self.ws_connection is not None and isinstance(stream := self.ws_connection.stream, ClientStream):
            # Synchronous clients read only while waiting for an answer; the outbox limits what piles up.
            stream.pace.spooled = True
        self._client = self._session.door.connect(self._session_id, self._subprotocol)
        self._client.installs = Permission.PACKAGES in self.login.permissions
        former = self._client.socket
        self._client.attach(self)
        if former is not None:
            former.close(GOING_AWAY, "Another WebSocket of this session_id took over")
        # Not at once: the client's pong would delay its first request (Nagle's algorithm, on its side).
        self._ping_later(was_silent=False)

    def _ping_later(self, *, was_silent: bool) -> None:
        pause = self._session.door.settings.silence / PINGS
        guarded_ping = guarded(self._ping, "ping", session=self._session.row.key)
        self._next_ping = asyncio.get_running_loop().call_later(pause, guarded_ping, was_silent)

    def _ping(self, was_silent: bool) -> None:
        """Ping repeatedly, to detect a client that has vanished (no FIN, no RST).

        It is enough that the client's system acknowledges the ping's bytes: synchronous clients answer pings
        only while they read. Two checks in a row must find the client silent, because after a pause of our
        own process the first one can't tell.
        """
        if self.ws_connection is None or self.ws_connection.is_closing():
            return
        limit = self._session.door.settings.silence
        stream = self.ws_connection.stream
        assert stream is not None
        silent = silence(stream.socket) > limit
        if silent and was_silent:
            logger.warning("Closed a client's WebSocket: its system has not answered for %g s", limit)
            stream.close()
            return
        self.ping()
        self._ping_later(was_silent=silent)

    async def send_frames(self, frames: bytes) -> bool:
        """Write whole frames to the stream and wait until they are taken."""
        stream = self.ws_connection.stream if self.ws_connection is not None else None
        if stream is None:
            return False
        try:
            written = stream.write(frames)
            # Bytes that the system took at once cost no turn of the loop, unless there are many of them.
            if stream.writing() or len(frames) > MUCH:
                # Shielded: tornado's stream fails on a write that was cancelled.
                await asyncio.shield(written)
        except StreamClosedError:
            return False
        return not stream.closed()

    def on_data(self, data: bytes | bytearray, *, is_binary: bool) -> Awaitable[None] | None:
        if len(data) > INLINE_BYTES:
            return self._on_large_message(data, is_binary=is_binary)
        try:
            return self._take(self._decode(data, is_binary=is_binary))
        except MalformedMessage as error:
            self._refuse(error, is_binary=is_binary)
            return None

    async def _on_large_message(self, data: bytes | bytearray, *, is_binary: bool) -> None:
        try:
            texts = self.services.storage.lanes.texts
            taken = self._take(await texts.run(self._decode, data, is_binary=is_binary))
        except MalformedMessage as error:
            self._refuse(error, is_binary=is_binary)
        else:
            if taken is not None:
                await taken

    def _decode(self, data: bytes | bytearray, *, is_binary: bool) -> Received:
        decoded = decode(data, self._subprotocol, is_binary=is_binary)
        if len(decoded.header.msg_id) > MAX_ID:
            raise MalformedMessage(f"msg_id is longer than {MAX_ID} characters")
        return received(decoded)

    def _refuse(self, error: MalformedMessage, *, is_binary: bool) -> None:
        self.close(UNSUPPORTED_DATA if is_binary else INVALID_PAYLOAD, _short(error.message))

    def _take(self, taken: Received) -> Awaitable[None] | None:
        if self._client is None:
            return None
        self._session.record.touch()
        message = taken.message
        if message.msg_type == "shutdown_request" and message.channel is not Channel.STDIN:
            self._shut_down(self._client, taken)
            return None
        try:
            self._session.door.send(self._client, taken)
        except KernelDied:
            return self._send_when_there_is_room(self._client, taken)
        # Yield a turn of the loop to the session: it sends the cell before we read the next message.
        return asyncio.sleep(0) if message.msg_type == "execute_request" else None

    async def _send_when_there_is_room(self, client: Client, taken: Received) -> None:
        """Wait until the kernel accepts more; until then nothing is read, which slows the client down."""
        while not self.disconnected and not self._session.ending:
            await asyncio.sleep(FULL_KERNEL_PAUSE)
            try:
                self._session.door.send(client, taken)
            except KernelDied:
                continue
            return

    def _shut_down(self, client: Client, taken: Received) -> None:
        """Answer in place of the kernel, which is killed without a request."""
        message = taken.message
        content = {"status": "ok", "restart": taken.restart}
        self._session.door.reply(client, answer_to(message, message.channel, "shutdown_reply", content))
        if not taken.restart:
            self.services.sessions.manager.end_later(self._session, "shutdown_request")
            return
        try:
            self._session.restart().add_done_callback(guarded(_note_failure, "restart for a client"))
        except ShuttingDown:
            logger.debug("A client wants a restart of a session that ends")

    def on_close(self) -> None:
        """Leave the session's clients."""
        self.disconnected = True
        if self._next_ping is not None:
            self._next_ping.cancel()
        client = self._client
        self._client = None
        if client is not None and client.socket is self:
            self._session.door.disconnect(client, returns="session_id" in self.request.query_arguments)
            self._session.record.touch()

    def on_connection_close(self) -> None:
        self.disconnected = True
        self.leave_relay()
        WatchedWebSocketHandler.on_connection_close(self)


def _short(reason: str) -> str:
    """Cut the reason for a close frame, which holds 123 bytes of it (RFC 6455, section 5.5)."""
    return reason.encode()[:120].decode(errors="ignore")


def _note_failure(restarted: asyncio.Future[Any]) -> None:
    error = restarted.exception()
    if isinstance(error, CellgateError):
        logger.warning("A restart that a client asked for failed: %s", error.message)
