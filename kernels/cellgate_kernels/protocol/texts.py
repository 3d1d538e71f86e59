"""The text of a large stream message, read in small steps, and only as much as there is room for.

A JSON decoder holds the interpreter until it has read the whole text: a quarter of a second for 40 MB. So the
string is cut between characters and escapes, and its parts are decoded one by one. This needs content of
the usual shape, a name and a text; other content must be small. Pure.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from cellgate_kernels.codec.structure import weigh
from cellgate_kernels.protocol.messages import MalformedMessage, TooComplex, read_content, read_string
from cellgate_kernels.protocol.outputs import byte_size

STEP = 64 * 1024
"""The bytes of JSON that are decoded in one call."""
MOST_ODD = 1024 * 1024
"""The most bytes of content of another shape."""
_MOST_AROUND = 1024
"""The most bytes of content before the text, and after it."""

_SPACE = rb"[ \t\r\n]*+"
_NAME = rb'"name"%b:%b"([a-z]*+)"' % (_SPACE, _SPACE)
_BEFORE = re.compile(
    rb'%b\{%b(?:%b%b,%b)?"text"%b:%b"' % (_SPACE, _SPACE, _NAME, _SPACE, _SPACE, _SPACE, _SPACE)
)
_AFTER = re.compile(rb'"%b(?:,%b%b%b)?\}%b\Z' % (_SPACE, _SPACE, _NAME, _SPACE, _SPACE))
_UP_TO_QUOTE = re.compile(rb"[^\"\\]*+(?:\\.[^\"\\]*+)*+", re.DOTALL)
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_ESCAPE = len(r"\u0000")
_LONGEST_CHARACTER = 4
"""The most bytes of a character in UTF-8."""


class TextStream(NamedTuple):
    """The content of a stream message. `size`: if it was cut, the most bytes of the whole text, else 0."""

    content: dict[str, Any]
    size: int


def read_text(frame: bytes, room: int) -> TextStream:
    """Return the content of a stream message; a text longer than `room` bytes is cut shortly after that.

    Raises MalformedMessage, and TooComplex for content that is neither small nor of the usual shape.
    """
    before = _BEFORE.match(frame, 0, _MOST_AROUND)
    if before is None:
        return _read_odd(frame)
    parts: list[str] = []
    size = 0
    position = before.end()
    while size <= room:
        if frame[position : position + 1] == b'"':
            return _whole(frame, before, position, "".join(parts))
        end = _end_of_part(frame, position)
        parts.append(read_string(frame[position:end]))
        size += byte_size(parts[-1])
        position = end
    name = _name(before, _AFTER.search(frame, len(frame) - _MOST_AROUND))
    return TextStream({"name": name, "text": "".join(parts)}, size + len(frame) - position)


def _end_of_part(frame: bytes, position: int) -> int:
    """Return the end of the text, or of a part that can be decoded on its own."""
    end = position + STEP
    part = frame[position:end]
    if b'"' in part.replace(b"\\\\", b"").replace(b'\\"', b""):
        found = _UP_TO_QUOTE.match(frame, position)
        assert found is not None
        return found.end()
    if end >= len(frame):
        raise MalformedMessage("content of stream is not JSON: its text has no end")
    last = frame.rfind(b"\\", end - _ESCAPE, end)
    if last >= 0 and _is_escape(frame[position : last + 1]):
        size = _ESCAPE if frame[last + 1 : last + 2] == b"u" else 2
        end = end if last + size <= end else last
    end = _before_character(frame, end)
    first = end - _ESCAPE
    if _HIGH_SURROGATE.match(frame, first) and _is_escape(frame[position : first + 1]):
        return first  # the other half of the pair may follow
    return end


def _before_character(frame: bytes, end: int) -> int:
    """Return `end`, or the start of the UTF-8 character that a cut at `end` would split.

    Invalid UTF-8 may have any number of continuation bytes after a complete character.
    """
    for start in range(end - 1, end - _LONGEST_CHARACTER, -1):
        lead = frame[start]
        if lead & 0xC0 != 0x80:
            return start if start + _character_size(lead) > end else end
    return end


def _character_size(lead: int) -> int:
    """Return the bytes of the UTF-8 character that starts with this byte (RFC 3629)."""
    if 0xC2 <= lead < 0xE0:
        return 2
    if 0xE0 <= lead < 0xF0:
        return 3
    if 0xF0 <= lead < 0xF5:
        return 4
    return 1


def _is_escape(before: bytes) -> bool:
    """Return whether the backslash at the end of `before` is itself not escaped."""
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _whole(frame: bytes, before: re.Match[bytes], position: int, text: str) -> TextStream:
    after = None if len(frame) - position > _MOST_AROUND else _AFTER.match(frame, position)
    if after is None:
        return _read_odd(frame)
    return TextStream({"name": _name(before, after), "text": text}, 0)


def _name(before: re.Match[bytes], after: re.Match[bytes] | None) -> str:
    """Return the name before or after the text; the last one wins, as in any JSON object."""
    for found in (after, before):
        if found is not None and found[1] is not None:
            return found[1].decode()
    return ""


def _read_odd(frame: bytes) -> TextStream:
    """Return content of another shape, read whole if it is small."""
    if len(frame) > MOST_ODD or weigh(frame) is None:
        raise TooComplex("content of stream is too large for its shape")
    return TextStream(read_content(frame, "stream"), 0)
