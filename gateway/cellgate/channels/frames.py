"""Kernel messages as WebSocket frames: each is encoded once per subprotocol, however many clients there are.

Pure. ``cellgate_kernels.protocol.websocket`` makes the payloads; this module adds the frame header (RFC 6455,
section 5.2), so that many small messages go out in one write. A server's frames are unmasked. They are never
compressed: kernels and clients are close by, and compression would cost more than it saves.
"""

from __future__ import annotations

import struct

from msgspec import structs

from cellgate_kernels.protocol.contents import with_plain_text
from cellgate_kernels.protocol.messages import EMPTY, Channel, Message
from cellgate_kernels.protocol.websocket import Subprotocol, encode

_TEXT, _BINARY = 0x81, 0x82


class OutgoingMessage:
    """One message on its way to any number of clients."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._frames: dict[Subprotocol, bytes] = {}

    def frame(self, wanted: Subprotocol) -> bytes:
        """Return the whole WebSocket frame; empty if a text frame can't hold it and no client needs it."""
        if (known := self._frames.get(wanted)) is not None:
            return known
        if not self._frames and self._message.is_text is None:
            self._message = with_plain_text(self._message)
        message = self._message
        if message.is_text is False and wanted is Subprotocol.JSON:
            # Repairing invalid text in a large message takes seconds; unrepaired, browsers close the socket.
            if message.channel is Channel.IOPUB:
                return b""
            message = structs.replace(message, content_frame=EMPTY)
        parts, is_binary = encode(message, wanted)
        framed = self._frames[wanted] = frame(*parts, is_binary=is_binary)
        return framed


def frame(*parts: bytes, is_binary: bool) -> bytes:
    """Make one unmasked, unfragmented WebSocket frame."""
    first = _BINARY if is_binary else _TEXT
    size = sum(map(len, parts))
    if size < 126:
        head = bytes((first, size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 126, size)
    else:
        head = struct.pack("!BBQ", first, 127, size)
    return b"".join((head, *parts))
