"""Jupyter messages in a client's WebSocket frames: JSON text, legacy binary and v1 binary frames.

Pure: bytes in, `Message` out and back. A kernel's message is joined, never decoded. A client's message is
split after one check of its JSON, so that no broken message reaches a kernel. `messages.Signer` signs.

Source: jupyter_server's "WebSocket kernel wire protocols". Without a subprotocol a message is one JSON object
in a text frame, or, with buffers, a binary frame: a big-endian 32-bit count and offsets, then the JSON, then
the buffers. With `v1` every frame is binary: little-endian 64-bit count and offsets (the last one is the
end), then channel, header, parent_header, metadata, content and the buffers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Annotated, Any, TypeVar

import msgspec

from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.codec.structure import MOST_PASSED_OVER, can_be_passed_over
from cellgate_kernels.protocol.messages import (
    EMPTY,
    PROTOCOL_VERSION,
    Channel,
    Header,
    MalformedMessage,
    Message,
    is_utf8,
)

# An empty buffer costs a client 4 or 8 bytes, but the gateway and the kernel a ZeroMQ frame each.
MAX_BUFFERS = 10_000
_AT_ONCE = 1024 * 1024
"""The most bytes that are decoded in one step."""
MAX_HEADER = 64 * 1024
"""The most bytes of a header. A kernel repeats it in all answers, where it may be a little longer."""

_CLIENT_CHANNELS = {channel.value: channel for channel in (Channel.SHELL, Channel.CONTROL, Channel.STDIN)}
_V1_PARTS = 5  # channel, header, parent_header, metadata, content
_USABLE_VERSION = re.compile(r"([5-9]|[1-9][0-9]{1,2})(\.|$)")

_Value = TypeVar("_Value")
_NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
_AwareDate = Annotated[datetime, msgspec.Meta(tz=True)]
_EMPTY_OBJECT = msgspec.Raw(EMPTY)
_NULL = msgspec.Raw(b"null")


class Subprotocol(StrEnum):
    """The framing of messages on one WebSocket; the values are those of `Sec-WebSocket-Protocol`."""

    JSON = ""
    V1 = "v1.kernel.websocket.jupyter.org"


class _ClientHeader(msgspec.Struct):
    msg_id: _NonEmpty
    msg_type: _NonEmpty
    date: Any = None
    version: Any = None


class _Envelope(msgspec.Struct):
    header: msgspec.Raw
    parent_header: msgspec.Raw = _EMPTY_OBJECT
    metadata: msgspec.Raw = _EMPTY_OBJECT
    content: msgspec.Raw = _EMPTY_OBJECT
    channel: str | None = None


class _TextEnvelope(_Envelope):
    buffers: msgspec.Raw = _NULL


_raw = msgspec.json.Decoder(msgspec.Raw)
_routing = msgspec.json.Decoder(Header)
_client_header = json_decoder(_ClientHeader)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_envelope = msgspec.json.Decoder(_Envelope)
_text_envelope = msgspec.json.Decoder(_TextEnvelope)
_encode = msgspec.json.Encoder().encode


def negotiate(offered: Iterable[str]) -> Subprotocol:
    """Return the subprotocol to select: v1 if a client offers it, else the legacy one."""
    return Subprotocol.V1 if Subprotocol.V1 in offered else Subprotocol.JSON


def encode(message: Message, subprotocol: Subprotocol) -> tuple[Sequence[bytes], bool]:
    """Return a WebSocket frame's payload in parts, and whether the frame is binary rather than text.

    JSON parts are relayed as the kernel wrote them, without a copy. In the legacy framing invalid UTF-8 is
    replaced, because a browser closes the socket at an invalid text frame; clients refuse invalid JSON.
    """
    if subprotocol is Subprotocol.V1:
        return _encode_v1(message), True
    text = _encode_text(message)
    if not message.buffers:
        return text, False
    count = len(message.buffers) + 1
    sizes = sum(map(len, text)), *map(len, message.buffers[:-1])
    offsets = accumulate(sizes, initial=4 * (count + 1))
    return (struct.pack(f">{count + 1}I", count, *offsets), *text, *message.buffers), True


def _encode_text(message: Message) -> tuple[bytes, ...]:
    return (
        b'{"header":',
        _utf8(message.header_frame),
        b',"msg_id":',
        _encode(message.header.msg_id),
        b',"msg_type":',
        _encode(message.header.msg_type),
        b',"parent_header":',
        _utf8(message.parent_frame),
        b',"metadata":',
        _utf8(message.metadata_frame),
        b',"content":',
        message.content_frame if message.is_text else _utf8(message.content_frame),
        b',"buffers":[],"channel":"',
        message.channel.encode(),
        b'"}',
    )


def _utf8(frame: bytes) -> bytes:
    try:
        _check_utf8(frame)
    except UnicodeDecodeError:
        return frame.decode(errors="replace").encode()
    return frame


def _encode_v1(message: Message) -> tuple[bytes, ...]:
    parts = (
        message.channel.encode(),
        message.header_frame,
        message.parent_frame,
        message.metadata_frame,
        message.content_frame,
        *message.buffers,
    )
    offsets = accumulate(map(len, parts), initial=8 * (len(parts) + 2))
    return struct.pack(f"<{len(parts) + 2}Q", len(parts) + 1, *offsets), *parts


def decode(payload: bytes | bytearray | str, subprotocol: Subprotocol, *, is_binary: bool) -> Message:
    """Return the message in a client's WebSocket frame. Raises MalformedMessage with the fault.

    Steps of a large message take at most 50 ms each: then call this in a thread. A missing channel means
    the shell, missing or null parts are empty, unknown fields stay. A header is rebuilt only when
    jupyter_client in the kernel would drop or misread it.
    """
    try:
        data = payload.encode() if isinstance(payload, str) else payload
    except UnicodeEncodeError as error:
        raise MalformedMessage(f"the frame is not UTF-8: {error.reason}") from error
    if subprotocol is Subprotocol.V1:
        if not is_binary:
            raise MalformedMessage(f"{Subprotocol.V1} has binary frames only; this one is text")
        return _decode_v1(data)
    if is_binary:
        text, *buffers = _split(data, ">I", minimum=1)
        return _message(_read(_envelope, text, "the JSON part"), buffers)
    envelope = _read(_text_envelope, data, "the frame")
    if not _is_empty(bytes(envelope.buffers)):
        raise MalformedMessage("buffers can't be sent in a text frame; send a binary frame")
    return _message(envelope, ())


def _decode_v1(data: bytes | bytearray) -> Message:
    parts = _split(data, "<Q", minimum=_V1_PARTS + 1)
    channel = parts[0].decode(errors="replace")
    header = _read(_raw, parts[1], "header")
    parent = _read(_raw, parts[2], "parent_header")
    metadata = _read(_raw, parts[3], "metadata")
    content = _read(_raw, parts[4], "content")
    return _message(_Envelope(header, parent, metadata, content, channel), parts[_V1_PARTS:])


def _split(data: bytes | bytearray, word: str, *, minimum: int) -> list[bytes]:
    """Return parts of a binary frame that starts with a count and offsets, each a struct `word`.

    Legacy offsets (`>I`) are the starts of the parts; in v1 (`<Q`) the last offset is the frame's end.
    """
    size = struct.calcsize(word)
    if len(data) < size:
        raise MalformedMessage(f"a binary frame of {len(data)} bytes has no offset count")
    count: int = struct.unpack_from(word, data)[0]
    if not minimum <= count <= minimum + MAX_BUFFERS:
        raise MalformedMessage(f"{count} offsets; a binary frame has {minimum} to {minimum + MAX_BUFFERS}")
    start = size * (count + 1)
    if len(data) < start:
        raise MalformedMessage(f"a binary frame of {len(data)} bytes is too short for {count} offsets")
    offsets = struct.unpack_from(f"{word[0]}{count}{word[1]}", data, size)
    if word == ">I":
        offsets = (*offsets, len(data))
    if offsets[0] < start or offsets[-1] != len(data) or any(end < begin for begin, end in pairwise(offsets)):
        raise MalformedMessage(
            f"offsets must ascend from {start} or more to the end of the frame, {len(data)}"
        )
    # A view: a part of a bytearray would be a bytearray too, and its bytes another copy.
    view = memoryview(data)
    return [bytes(view[begin:end]) for begin, end in pairwise(offsets)]


def _message(envelope: _Envelope, buffers: Sequence[bytes]) -> Message:
    name = Channel.SHELL if envelope.channel is None else envelope.channel
    channel = _CLIENT_CHANNELS.get(name)
    if channel is None:
        raise MalformedMessage(
            f"a client can't send on channel {name[:40]!r}, only on {', '.join(_CLIENT_CHANNELS)}"
        )
    header_frame = bytes(envelope.header)
    if len(header_frame) > MAX_HEADER:
        raise MalformedMessage(f"header is longer than {MAX_HEADER} bytes")
    header = _read(_client_header, header_frame, "header")
    parent_frame = _object(envelope.parent_header, "parent_header")
    return Message(
        channel,
        _mended(header_frame, header),
        parent_frame,
        _object(envelope.metadata, "metadata"),
        _object(envelope.content, "content"),
        tuple(buffers),
        Header(header.msg_id, header.msg_type),
        Header() if parent_frame == EMPTY else _read(_routing, parent_frame, "parent_header"),
    )


def _read(decoder: msgspec.json.Decoder[_Value], frame: bytes | bytearray, name: str) -> _Value:
    if not can_be_passed_over(frame):
        raise MalformedMessage(f"{name} has more than {MOST_PASSED_OVER} lists, objects and elements")
    try:
        _check_utf8(frame)
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"{name} can't be read: {error}") from error
    except RecursionError as error:
        raise MalformedMessage(f"{name} is nested too deep") from error


def _check_utf8(frame: bytes | bytearray) -> None:
    # msgspec does not check the UTF-8 of skipped parts. Checking for ASCII takes no copy.
    if frame.isascii():
        return
    if len(frame) > _AT_ONCE and is_utf8(frame):
        return
    frame.decode()


def _is_empty(frame: bytes) -> bool:
    """Return whether this JSON is null or empty, without making an object of each part."""
    return frame == b"null" or (frame.startswith((b"[", b"{")) and not frame[1:-1].strip())


def _object(raw: msgspec.Raw, name: str) -> bytes:
    frame = bytes(raw)
    if frame == b"null":
        return EMPTY
    if not frame.startswith(b"{"):
        raise MalformedMessage(f"{name} is not a JSON object")
    return frame


def _mended(frame: bytes, header: _ClientHeader) -> bytes:
    """Return the header unchanged, or with a `version` or `date` that jupyter_client in the kernel can use.

    A kernel drops such a message silently, so that its sender waits forever: when the version is missing,
    below 5 or not a number (ipykernel 7 adapts old versions before it has unpacked the content), when the
    date is impossible, or when it has no time zone once a cell has turned warnings into errors.
    """
    changes: dict[str, str] = {}
    if not isinstance(header.version, str) or not _USABLE_VERSION.match(header.version):
        changes["version"] = PROTOCOL_VERSION
    if header.date and not _is_usable(header.date):
        changes["date"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    if not changes:
        return frame
    return _encode(_read(_fields, frame, "header") | changes)


def _is_usable(date: object) -> bool:
    try:
        msgspec.convert(date, _AwareDate)
    except msgspec.ValidationError:
        return False
    return True
