"""The Jupyter message: as signed ZeroMQ frames, and as a view that decodes no more than asked for.

Pure: no sockets, no clock but the one a header needs. Sending and receiving is ``connection``; what
messages mean for a running cell is ``execution``. Source: jupyter-client's "Messaging in Jupyter",
section "The wire protocol": identities, ``<IDS|MSG>``, signature, header, parent_header, metadata,
content, then raw buffers.
"""

from __future__ import annotations

import hmac
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from kernels.errors import CellgateError

DELIMITER = b"<IDS|MSG>"
PROTOCOL_VERSION = "5.4"
EMPTY = b"{}"
_BLOCK = 64
"""Bytes of a block of SHA-256."""


class Channel(StrEnum):
    """The sockets of a kernel, named as the Jupyter protocol names them."""

    SHELL = "shell"
    IOPUB = "iopub"
    STDIN = "stdin"
    CONTROL = "control"


class MalformedMessage(CellgateError):
    """Frames that are no Jupyter message, or carry a wrong signature. Raised by `Signer.parse`."""

    reason = "malformed_message"


class Header(msgspec.Struct, frozen=True):
    """The two fields of a header that routing needs; all others stay in the frame, untouched."""

    msg_id: str = ""
    msg_type: str = ""


_decode_header = msgspec.json.Decoder(Header).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def _decode_repaired(frame: bytes) -> Any:
    value = json.loads(frame.decode(errors="replace"), parse_constant=str)
    return _decode(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


class Message(msgspec.Struct, frozen=True, eq=False):
    """One message. The JSON parts stay bytes; `header` and `parent` are decoded for routing only."""

    channel: Channel
    header_frame: bytes
    parent_frame: bytes
    metadata_frame: bytes
    content_frame: bytes
    buffers: tuple[bytes, ...]
    header: Header
    parent: Header

    @property
    def msg_type(self) -> str:
        """The header's `msg_type`."""
        return self.header.msg_type

    def content(self) -> dict[str, Any]:
        """The content, decoded anew at each call. Raises MalformedMessage when it is no JSON object.

        Kernels send what their packers let through: invalid UTF-8, lone surrogates, NaN. These are replaced
        by a replacement character, "?" and the word, so that output is never lost for one bad character.
        """
        try:
            try:
                content = _decode(self.content_frame)
            except (msgspec.DecodeError, UnicodeDecodeError):
                content = _decode_repaired(self.content_frame)
        except (ValueError, RecursionError) as error:
            raise MalformedMessage(f"content of {self.msg_type} is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise MalformedMessage(f"content of {self.msg_type} is not an object")
        return content


def new_message(
    channel: Channel,
    msg_type: str,
    content: Mapping[str, Any],
    *,
    session: str,
    msg_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Message:
    """A message of our own to a kernel; `session` is the client's session id of the protocol."""
    header = Header(msg_id or uuid.uuid4().hex, msg_type)
    header_frame = _encode(
        {
            "msg_id": header.msg_id,
            "msg_type": msg_type,
            "username": "cellgate",
            "session": session,
            "date": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "version": PROTOCOL_VERSION,
        }
    )
    described = _encode(metadata) if metadata else EMPTY
    return Message(channel, header_frame, EMPTY, described, _encode(content), (), header, Header())


class Signer:
    """Signs and checks messages with one kernel's key (HMAC-SHA256, the protocol's default scheme)."""

    def __init__(self, key: bytes) -> None:
        # RFC 2104 spelled out: hmac.digest looks the algorithm up anew each time, at a multiple of the cost.
        block = (key if len(key) <= _BLOCK else sha256(key).digest()).ljust(_BLOCK, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def _signature(self, parts: Sequence[bytes]) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        for part in parts:
            inner.update(part)
        outer.update(inner.digest())
        return outer.hexdigest().encode()

    def serialize(self, message: Message) -> list[bytes]:
        """Frames to send on a DEALER socket."""
        parts = [message.header_frame, message.parent_frame, message.metadata_frame, message.content_frame]
        return [DELIMITER, self._signature(parts), *parts, *message.buffers]

    def parse(self, channel: Channel, frames: Sequence[bytes]) -> Message:
        """The message in `frames`. Raises MalformedMessage for wrong shapes, JSON or signatures."""
        try:
            start = frames.index(DELIMITER)
        except ValueError:
            raise MalformedMessage(f"no delimiter in a message on {channel}") from None
        if len(frames) < start + 6:
            raise MalformedMessage(f"a message on {channel} has only {len(frames) - start - 1} parts")
        signature, header, parent, metadata, content = frames[start + 1 : start + 6]
        if not hmac.compare_digest(signature, self._signature((header, parent, metadata, content))):
            raise MalformedMessage(f"wrong signature of a message on {channel}")
        try:
            return Message(
                channel,
                header,
                parent,
                metadata,
                content,
                tuple(frames[start + 6 :]),
                _decode_header(header),
                _decode_header(parent),
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(f"unreadable header on {channel}: {error}") from error
