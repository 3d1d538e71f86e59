"""Kernel messages as WebSocket frames: each is encoded once per subprotocol, however many clients there are.

Pure. The payloads are ``kernels.websocket``'s; here they get their frame header (RFC 6455, section 5.2), so
that many small messages go out in one write. Frames of a server are unmasked; compression is off.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import msgspec

from kernels.messages import MalformedMessage, Message
from kernels.websocket import Subprotocol, encode

_SHOWN = frozenset({"display_data", "execute_result", "update_display_data"})
_TEXT, _BINARY = 0x81, 0x82
_encode = msgspec.json.Encoder().encode


class OutgoingMessage:
    """One message on its way to any number of clients."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._frames: dict[Subprotocol, bytes] = {}

    def frame(self, subprotocol: Subprotocol) -> bytes:
        """The whole WebSocket frame."""
        if (known := self._frames.get(subprotocol)) is not None:
            return known
        if not self._frames:
            self._message = with_plain_text(self._message)
        payload, is_binary = encode(self._message, subprotocol)
        framed = self._frames[subprotocol] = frame(payload, is_binary=is_binary)
        return framed


def frame(payload: bytes, *, is_binary: bool) -> bytes:
    """One unmasked, unfragmented WebSocket frame."""
    first, size = _BINARY if is_binary else _TEXT, len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", first, 126, size) + payload
    return struct.pack("!BBQ", first, 127, size) + payload


def with_plain_text(message: Message) -> Message:
    """The message with an empty `text/plain` where it shows something without one: clients index it.

    Only such a rare message is decoded; all others pass as they are.
    """
    if message.msg_type not in _SHOWN or b'"text/plain"' in message.content_frame:
        return message
    try:
        content = message.content()
    except MalformedMessage:
        return message
    data = content.get("data")
    if not isinstance(data, dict):
        return message
    content["data"] = {**data, "text/plain": ""}
    return replace(message, content_frame=_encode(content))
