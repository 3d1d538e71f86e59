"""WebSockets whose stream knows when a message is unfinished, so that no client can stall in one for ever.

Tornado limits the size of a message, fragmented or not, but not its time. This module tells the stream where
messages begin and end; ``listener.streams`` decides what is too slow. WebSocket handlers derive from
`WatchedWebSocketHandler` instead of tornado's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from tornado.websocket import WebSocketHandler, WebSocketProtocol, WebSocketProtocol13

from cellgate.http.listener.streams import ClientStream
from cellgate_kernels.tasks import guarded

POLICY_VIOLATION = 1008
"""The close code of RFC 6455, 7.4.1."""
EVICTED_SECONDS = 0.5
_DATA = frozenset({0x1, 0x2})


class WatchedProtocol(WebSocketProtocol13):
    """Tornado's protocol; these private methods have had the same names since 4.5."""

    async def _receive_frame(self) -> None:
        if self._fragmented_message_buffer is None and isinstance(self.stream, ClientStream):
            self.stream.begins_message()
        await super()._receive_frame()

    def _handle_message(self, opcode: int, data: bytes) -> Any:
        # A ping between two fragments does not end the message.
        if self._fragmented_message_buffer is None and isinstance(self.stream, ClientStream):
            self.stream.ends_message()
        if opcode in _DATA and isinstance(self.handler, WatchedWebSocketHandler) and self.handler.evicted:
            return None
        return super()._handle_message(opcode, data)


class WatchedWebSocketHandler(WebSocketHandler):
    """A handler of a WebSocket with the protocol above."""

    evicted = False
    """Whether the login has ended that opened it: messages that still come are not heard."""

    def close_with_login(self) -> None:
        """From now on, close this WebSocket with a reason when the login that opened it ends."""
        stream = self.ws_connection.stream if self.ws_connection is not None else None
        if isinstance(stream, ClientStream):
            stream.evict = lambda: self._evict(stream)

    def _evict(self, stream: ClientStream) -> None:
        if not self.evicted:
            self.evicted = True
            self.close(POLICY_VIOLATION, "The token has ended, or its role has changed")
            # Tornado would wait five seconds for the client's own close frame.
            asyncio.get_running_loop().call_later(EVICTED_SECONDS, guarded(stream.drop, "evicted WebSocket"))

    def get_websocket_protocol(self) -> WebSocketProtocol | None:
        """Tornado's hook."""
        protocol = super().get_websocket_protocol()
        if isinstance(protocol, WebSocketProtocol13):
            return WatchedProtocol(self, mask_outgoing=False, params=protocol.params)
        return protocol

    def on_message(self, message: str | bytes) -> Awaitable[None] | None:
        """Tornado's hook; subclasses define it."""
        raise NotImplementedError
