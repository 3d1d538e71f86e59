"""Kernel messages as WebSocket frames: each is encoded once per subprotocol, however many clients there are.

Pure. ``cellgate_kernels.protocol.websocket`` makes the payloads; here they get their frame header (RFC 6455,
section 5.2), so that many small messages go out in one write. A server's frames are unmasked. If compression
was negotiated (RFC 7692), each message is deflated independently, which is always allowed, so that clients
can share the frame.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from msgspec import structs

from cellgate_kernels.protocol.contents import with_plain_text
from cellgate_kernels.protocol.messages import EMPTY, Channel, Message
from cellgate_kernels.protocol.websocket import Subprotocol, encode

_TEXT, _BINARY, _DEFLATED = 0x81, 0x82, 0x40
_WORTH_DEFLATING = range(512, 512 * 1024)


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """What was negotiated with a client."""

    subprotocol: Subprotocol
    deflated: bool = False


class OutgoingMessage:
    """One message on its way to any number of clients."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._frames: dict[FrameFormat, bytes] = {}

    def frame(self, wanted: FrameFormat) -> bytes:
        """The whole WebSocket frame; empty if a text frame can't hold the message and nobody waits for it."""
        if (known := self._frames.get(wanted)) is not None:
            return known
        if not self._frames and self._message.is_text is None:
            self._message = with_plain_text(self._message)
        message = self._message
        if message.is_text is False and wanted.subprotocol is Subprotocol.JSON:
            # Repairing invalid text in a large message takes seconds; unrepaired, browsers close the socket.
            if message.channel is Channel.IOPUB:
                return b""
            message = structs.replace(message, content_frame=EMPTY)
        parts, is_binary = encode(message, wanted.subprotocol)
        framed = self._frames[wanted] = frame(*parts, is_binary=is_binary, deflated=wanted.deflated)
        return framed


def frame(*parts: bytes, is_binary: bool, deflated: bool = False) -> bytes:
    """One unmasked, unfragmented WebSocket frame; with `deflated`, compressed if its size is suitable."""
    first = _BINARY if is_binary else _TEXT
    size = sum(map(len, parts))
    if deflated and size in _WORTH_DEFLATING:
        payload = _deflate(b"".join(parts))
        parts = (payload,)
        first |= _DEFLATED
        size = len(payload)
    if size < 126:
        head = bytes((first, size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 126, size)
    else:
        head = struct.pack("!BBQ", first, 127, size)
    return b"".join((head, *parts))


def _deflate(payload: bytes) -> bytes:
    compressor = zlib.compressobj(zlib.Z_BEST_SPEED, wbits=-zlib.MAX_WBITS)
    # RFC 7692, section 7.2.1: drop the last four bytes of the flush.
    return (compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]
