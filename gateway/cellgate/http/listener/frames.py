"""WebSockets whose messages are read in pieces, by a stream that knows when one is unfinished.

Tornado limits the size of a message, fragmented or not, but not its time: this module tells the stream where
messages begin and end, and ``listener.streams`` decides what is too slow. Tornado also copies, unmasks and
decodes a message in one go each, and all others wait for a quarter of a second when it has 64 MiB: here the
loop has turns in between, and what is UTF-8 stays bytes. WebSocket handlers derive from
`WatchedWebSocketHandler` instead of tornado's. It knows nothing of what messages mean.
"""

from __future__ import annotations

import asyncio
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from tornado.util import _websocket_mask
from tornado.websocket import WebSocketHandler, WebSocketProtocol, WebSocketProtocol13

from cellgate.http.listener.streams import ClientStream
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.protocol.messages import is_utf8

NOT_UTF8, POLICY_VIOLATION, TOO_BIG = 1007, 1008, 1009
"""Close codes of RFC 6455, 7.4.1."""
EVICTED_SECONDS = 0.5
PIECE = 256 * 1024
"""Bytes of a message that are read in one turn of the loop, in half a millisecond. Masks have four bytes."""
MOST_OFFERED = 4096
"""Characters of a field in which a client offers extensions or protocols."""
CONTINUATION, TEXT, BINARY = 0x0, 0x1, 0x2
_FINAL, _RESERVED, _OPCODE, _CONTROL = 0x80, 0x70, 0x0F, 0x08
_MASKED, _LENGTH = 0x80, 0x7F
_SHORT = 125
"""Bytes of a control frame at most; larger lengths stand after the head."""
_LENGTHS = {126: 2, 127: 8}


@dataclass(frozen=True, slots=True)
class _Head:
    """What a frame announces."""

    is_final: bool
    opcode: int
    size: int
    mask: bytes | None


@dataclass(slots=True, eq=False)
class _Message:
    """A message so far. `size`: its bytes, kept or not. `is_wrong`: not UTF-8, so none is kept."""

    opcode: int
    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    is_wrong: bool = False
    _text: IncrementalDecoder | None = None

    def __post_init__(self) -> None:
        if self.opcode == TEXT:
            self._text = getincrementaldecoder("utf-8")()

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.size += len(piece)
        if self._text is not None:
            try:
                self._text.decode(piece)
            except UnicodeDecodeError:
                self._wrong()
        if not self.is_wrong:
            self.data += piece

    def end(self) -> None:
        """Note that all bytes have come."""
        if self._text is not None:
            try:
                self._text.decode(b"", final=True)
            except UnicodeDecodeError:
                self._wrong()

    def _wrong(self) -> None:
        self.is_wrong = True
        self.data = bytearray()
        self._text = None


class WatchedProtocol(WebSocketProtocol13):
    """Tornado's protocol with another way to read frames. No handler offers compression."""

    handler: WatchedWebSocketHandler
    stream: ClientStream
    _message: _Message | None = None
    _is_deaf = False
    """Whether the client has sent what is no text, and is told so: nothing else is heard of it."""

    async def _receive_frame(self) -> None:
        if self._message is None:
            self.stream.begins_message()
        head = await self._read_head()
        if head is None:
            self._abort()
        elif head.opcode & _CONTROL:
            data = await self._read_unmasked(head.size, head.mask)
            # A ping between two fragments does not end the message.
            if self._message is None:
                self.stream.pace.ends_message()
            handled = self._handle_message(head.opcode, data)
            if handled is not None:
                await handled
        elif head.is_final and self._message is None and head.size <= PIECE:
            data = await self._read_unmasked(head.size, head.mask)
            self.stream.pace.ends_message()
            if head.opcode == TEXT and not is_utf8(data):
                self._refuse_text()
            else:
                await self._hear(head.opcode, data)
        else:
            await self._read_part(head)

    async def _read_head(self) -> _Head | None:
        """Read the next frame's head; None if no client may send it."""
        first, second = await self._read_bytes(2)
        opcode, reserved, size = first & _OPCODE, first & _RESERVED, second & _LENGTH
        is_final = bool(first & _FINAL)
        if opcode & _CONTROL:
            in_order = is_final and size <= _SHORT
        elif self._message is not None:
            in_order = opcode == CONTINUATION
        else:
            in_order = opcode in {TEXT, BINARY}
        if reserved or not in_order:
            return None
        if size > _SHORT:
            size = int.from_bytes(await self._read_bytes(_LENGTHS[size]))
        before = 0 if self._message is None else self._message.size
        if before + size > self.params.max_message_size:
            self.close(TOO_BIG, "message too big")
            return None
        mask = await self._read_bytes(4) if second & _MASKED else None
        return _Head(is_final, opcode, size, mask)

    async def _read_part(self, head: _Head) -> None:
        """Read a frame of a message that has more of them, or is larger than a piece."""
        message = self._message
        if message is None:
            message = self._message = _Message(head.opcode)
        left = head.size
        while left:
            piece = await self._read_unmasked(min(left, PIECE), head.mask)
            left -= len(piece)
            message.add(piece)
            if left:
                # A fast client would otherwise never yield this turn of the loop.
                await asyncio.sleep(0)
        if not head.is_final:
            return
        self._message = None
        self.stream.pace.ends_message()
        message.end()
        if message.is_wrong:
            self._refuse_text()
        else:
            await self._hear(message.opcode, message.data)

    async def _read_unmasked(self, size: int, mask: bytes | None) -> bytes:
        data = await self._read_bytes(size)
        return data if mask is None else _websocket_mask(mask, data)

    def _refuse_text(self) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            self.handler.close(NOT_UTF8, "The text is not UTF-8")

    async def _hear(self, opcode: int, data: bytes | bytearray) -> None:
        """Pass a message on, and wait until it is done: we read nothing until then, which slows it down."""
        if self.client_terminated or self._is_deaf or self.handler.evicted:
            return
        handled = self._run_callback(self.handler.on_data, data, is_binary=opcode == BINARY)
        if handled is not None:
            await handled


class WatchedWebSocketHandler(WebSocketHandler):
    """A handler of a WebSocket with the protocol above."""

    evicted = False
    """Whether the login has ended that opened it: messages that still come are not heard."""

    def check_origin(self, origin: str) -> bool:
        """Always true: Origin was checked with everything else, before the upgrade."""
        return True

    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Upgrade the connection. Raises InvalidInput for an offer that is too long to be read."""
        for name in ("Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol"):
            if len(self.request.headers.get(name, "")) > MOST_OFFERED:
                raise InvalidInput(f"{name} is longer than {MOST_OFFERED} characters")
        await super().get(*args, **kwargs)

    def close_with_login(self) -> None:
        """Close this WebSocket with a reason when the login that opened it ends."""
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
        """Return a WebSocket protocol that watches the client's frames."""
        protocol = super().get_websocket_protocol()
        if isinstance(protocol, WebSocketProtocol13):
            return WatchedProtocol(self, mask_outgoing=False, params=protocol.params)
        return protocol

    def on_data(self, data: bytes | bytearray, *, is_binary: bool) -> Awaitable[None] | None:
        """Take a message, as bytes: UTF-8 unless `is_binary`. Subclasses define it.

        The next message is read when this is done. A large one is a bytearray, because copying it takes its
        time; nobody changes it.
        """
        raise NotImplementedError

    def on_message(self, message: str | bytes) -> Awaitable[None] | None:
        """Tornado's hook, in place of which `on_data` is called."""
        raise NotImplementedError
