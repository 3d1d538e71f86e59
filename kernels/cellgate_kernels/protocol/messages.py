"""The Jupyter message: as signed ZeroMQ frames, and as a view that decodes parts on request only.

Pure: no sockets, no clock except for a header's date. ``connection`` sends and receives; ``execution`` knows
what messages mean for a running cell. Source: jupyter-client's "Messaging in Jupyter", section "The wire
protocol": identities, ``<IDS|MSG>``, signature, header, parent_header, metadata, content, then raw buffers.
"""

from __future__ import annotations

import hmac
import json
import uuid
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.codec.structure import FLAT_BYTES, is_too_deep, weigh_small

DELIMITER = b"<IDS|MSG>"
PROTOCOL_VERSION = "5.4"
SENDER = "cellgate"
"""The user's name in headers of the gateway's own messages."""
NOTE = "cellgate"
"""The field of a header that the gateway adds to the protocol's."""
EMPTY = b"{}"
MOST_HEADER = 512 * 1024
"""The most bytes of a header, or of a parent header, which repeats a client's, sometimes a little longer."""
_STEP = 16 * 1024
_MOST_REPAIRED = 1024 * 1024
"""The most bytes of JSON that are read the slow way, when the fast one fails for more than its UTF-8."""
_MOST_NO_TEXT = 8 * 1024 * 1024
"""The most bytes of JSON whose bad UTF-8 is replaced. Replacement makes it up to three times as long, and its
decoding then holds the interpreter for the whole time."""


class Channel(StrEnum):
    """The sockets of a kernel, named as the Jupyter protocol names them."""

    SHELL = "shell"
    IOPUB = "iopub"
    STDIN = "stdin"
    CONTROL = "control"


class MalformedMessage(CellgateError):
    """Frames that are not a Jupyter message, or carry a wrong signature. Raised by `Signer.parse`."""

    reason = "malformed_message"


class TooComplex(MalformedMessage):
    """Content that is too large, too deep or has too many parts to be read."""


class Header(msgspec.Struct, frozen=True):
    """The two fields of a header that routing needs; all others stay untouched in the frame."""

    msg_id: str = ""
    msg_type: str = ""


_decode_header = msgspec.json.Decoder(Header).decode
_decode = json_decoder(object).decode
_encode = msgspec.json.Encoder().encode


def read_header(frame: bytes) -> Header:
    """Return the two fields of the header in `frame`. Raises MalformedMessage if invalid or too long."""
    if len(frame) > MOST_HEADER:
        raise MalformedMessage(f"a header of {len(frame)} bytes is too long")
    try:
        return _decode_header(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"unreadable header: {error}") from error


def read_content(frame: bytes, msg_type: str = "message") -> dict[str, Any]:
    """Return the JSON object in `frame`. Raises MalformedMessage without one, TooComplex if too deep.

    Kernels send whatever their packers accept: invalid UTF-8, lone surrogates, NaN. These become a
    replacement character, "?" and the word, so that one bad character never costs the whole output.
    """
    try:
        content = _decode_mended(frame)
    except RecursionError as error:
        raise TooComplex(f"content of {msg_type} is nested too deep") from error
    except ValueError as error:
        raise MalformedMessage(f"content of {msg_type} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise MalformedMessage(f"content of {msg_type} is not an object")
    if len(frame) > FLAT_BYTES and is_too_deep(frame, content):
        raise TooComplex(f"content of {msg_type} is nested too deep")
    return content


def read_string(inside: bytes) -> str:
    """Return the text of a JSON string, given the bytes between its quotes or a piece of them.

    Bad characters are replaced as in `read_content`. Raises MalformedMessage.
    """
    frame = b'"%b"' % inside
    try:
        text = _decode_mended(frame)
    except ValueError as error:
        raise MalformedMessage(f"a text is not JSON: {error}") from error
    if not isinstance(text, str):
        raise MalformedMessage("a text is not a string")
    return text


def _decode_mended(frame: bytes) -> Any:
    try:
        return _decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_repaired(frame)


def _decode_repaired(frame: bytes) -> Any:
    if len(frame) > _MOST_NO_TEXT:
        raise TooComplex(f"content of {len(frame)} bytes is no JSON, or no UTF-8")
    text = _valid_text(frame)
    try:
        return _decode(text)
    except msgspec.DecodeError:
        if len(text) > _MOST_REPAIRED:
            raise
    value = json.loads(text, parse_constant=str)
    return _decode(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _valid_text(frame: bytes) -> str:
    """Decode UTF-8 in small steps and replace bad bytes: the steps let other threads run."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    starts = range(0, len(frame), _STEP)
    return "".join([decoder.decode(frame[at : at + _STEP]) for at in starts] + [decoder.decode(b"", True)])


class Message(msgspec.Struct, frozen=True, eq=False):
    """One message. The JSON parts stay bytes; `header` and `parent` are decoded for routing only.

    `left_out`: bytes of a message that was too large and is not here; its content is then empty. `decoded`:
    the content of a large message, decoded before delivery. `unread`: whether the content must not be
    decoded, because it is large or complex and nothing needs it; it can still be relayed. `weight`: the bytes
    that large content takes in memory. `kinds`: the first MIME types of content that is not decoded.
    `is_text`: whether the content is UTF-8, which is checked for large messages only.
    """

    channel: Channel
    header_frame: bytes
    parent_frame: bytes
    metadata_frame: bytes
    content_frame: bytes
    buffers: tuple[bytes, ...]
    header: Header
    parent: Header
    left_out: int = 0
    decoded: dict[str, Any] | None = None
    unread: bool = False
    weight: int = 0
    kinds: tuple[str, ...] = ()
    is_text: bool | None = None

    @property
    def readable(self) -> bool:
        """Whether the message has content that may be decoded."""
        return not (self.unread or self.left_out)

    @property
    def msg_type(self) -> str:
        """The header's message type."""
        return self.header.msg_type

    def content(self) -> dict[str, Any]:
        """Return the content, as a dict that the caller may change. Raises MalformedMessage.

        Small content is decoded again at each call; see `read_content`.
        """
        if self.unread or self.left_out:
            raise TooComplex(f"content of {self.msg_type} is too large or too complex to be read")
        if self.decoded is not None:
            return dict(self.decoded)
        return read_content(self.content_frame, self.header.msg_type)


def is_utf8(frame: bytes | bytearray) -> bool:
    """Return whether the bytes are UTF-8; checked in small steps, because other threads need their turns."""
    if frame.isascii():
        return True
    decoder = getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(frame), _STEP):
            decoder.decode(frame[at : at + _STEP])
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def size_of(message: Message) -> int:
    """Return the bytes of a message's content and buffers."""
    size = len(message.content_frame)
    return size + sum(map(len, message.buffers)) if message.buffers else size


def weight_of(message: Message) -> int:
    """Return the approximate bytes that the objects of a message's content take in memory once decoded."""
    return message.weight or weigh_small(message.content_frame)


def new_message(
    channel: Channel,
    msg_type: str,
    content: Mapping[str, Any],
    *,
    session: str,
    msg_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    note: str = "",
) -> Message:
    """Return a message of the gateway to a kernel; `session` is the client's session id of the protocol.

    `note`: a further field of the header, which the kernel repeats as the parent of all its answers.
    """
    header = Header(msg_id or uuid.uuid4().hex, msg_type)
    fields: dict[str, Any] = {
        "msg_id": header.msg_id,
        "msg_type": msg_type,
        "username": SENDER,
        "session": session,
        "date": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "version": PROTOCOL_VERSION,
    }
    if note:
        fields[NOTE] = note
    header_frame = _encode(fields)
    described = _encode(metadata) if metadata else EMPTY
    return Message(channel, header_frame, EMPTY, described, _encode(content), (), header, Header())


class Signer:
    """Signs and checks messages with one kernel's key (HMAC-SHA256, the protocol's default scheme)."""

    def __init__(self, key: bytes) -> None:
        # Copied for each message: making it anew from the key costs several times as much.
        self._keyed = hmac.new(key, digestmod=sha256)

    def _signature(self, parts: Sequence[bytes]) -> bytes:
        mac = self._keyed.copy()
        for part in parts:
            mac.update(part)
        return mac.hexdigest().encode()

    def serialize(self, message: Message) -> list[bytes]:
        """Return the frames to send on a DEALER socket."""
        parts = [message.header_frame, message.parent_frame, message.metadata_frame, message.content_frame]
        return [DELIMITER, self._signature(parts), *parts, *message.buffers]

    def route(self, channel: Channel, frames: Sequence[bytes], left_out: int) -> Message:
        """Return the headers alone of the message in `frames`, of which `left_out` bytes are missing.

        Nothing else is checked, not even the signature, which covers parts that may be missing or too long to
        read. So the headers only prove that a message came. Raises MalformedMessage.
        """
        if DELIMITER not in frames or len(frames) < (start := frames.index(DELIMITER) + 2) + 2:
            raise MalformedMessage(f"a message on {channel} was too long before its content")
        header, parent = frames[start : start + 2]
        ids = read_header(header), read_header(parent)
        return Message(channel, header, parent, EMPTY, EMPTY, (), *ids, left_out=left_out)

    def parse(self, channel: Channel, frames: Sequence[bytes]) -> Message:
        """Return the message in `frames`. Raises MalformedMessage for a wrong shape, JSON or signature."""
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
