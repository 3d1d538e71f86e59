"""Explains why a body is not JSON, for people and models that wrote it by hand. Called by ``base``.

The decoder returns where it stopped; the text there mostly shows the mistake. Pure, and linear in the body.
"""

from __future__ import annotations

import re
from typing import Final

_AT: Final = re.compile(r" \(byte (\d{1,12})\)$")
_PREFIX: Final = "JSON is malformed: "
_BEGINNINGS: Final = (
    (b"\xef\xbb\xbf", "it begins with a byte order mark; leave that out"),
    (b"\xff\xfe", "it is in UTF-16; send UTF-8"),
    (b"\xfe\xff", "it is in UTF-16; send UTF-8"),
    (b"\x1f\x8b", "it is compressed by gzip; send it as it is"),
)
_HERE: Final = (
    (re.compile(rb"'"), "JSON puts names and texts in double quotes"),
    (re.compile(rb"//|/\*|#"), "JSON has no comments"),
    (re.compile(rb"True\b|False\b|None\b"), "JSON has the words true, false and null"),
    (re.compile(rb"-?(?:NaN|Infinity)\b"), "JSON has no NaN and no Infinity"),
    (re.compile(rb"\xe2\x80[\x98-\x9f]"), "JSON has straight double quotes"),
    (re.compile(rb"\\"), "a backslash may only be within a text"),
)
"""Texts at which the decoder may have stopped, and their explanations."""
_BREAK: Final = re.compile(rb"[\r\n\t]")
_FORM: Final = re.compile(rb"[\w.-]{1,100}=")
_MULTIPART: Final = b"--"
_NOT_TEXT: Final = "Invalid UTF-8"
"""The beginning of msgspec's message since 0.23; before it raised UnicodeDecodeError."""
_CUT: Final = "Input data was truncated"
_OBJECT: Final = 'a body is a JSON object, such as {"code": "..."}'


def malformed(body: bytes, told: str) -> str:
    """Return why a body is not JSON, and the remedy. `told`: the message of the decoder that refused it."""
    for beginning, why in _BEGINNINGS:
        if body.startswith(beginning):
            return why
    if _FORM.match(body) or body.startswith(_MULTIPART):
        return 'it is a form; send JSON such as {"code": "..."}'
    if told.startswith(_NOT_TEXT):
        return not_text(body)
    if told == _CUT:
        return "it ends too early" if body.strip() else f"there is none; {_OBJECT}"
    found = _AT.search(told)
    at = int(found[1]) if found is not None else 0
    words = told.removeprefix(_PREFIX)
    return f"{words}; {hint}" if (hint := _hint(body, at)) else words


def not_text(body: bytes) -> str:
    """Return the message for a body that is not UTF-8."""
    for beginning, why in _BEGINNINGS:
        if body.startswith(beginning):
            return why
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"it is not in UTF-8 (byte {error.start})"
    return "a text in it is not in UTF-8"


def _hint(body: bytes, at: int) -> str:
    if _BREAK.match(body, at):
        return "a line break or a tab within a text is written \\n or \\t"
    # The decoder has read the first letter of the text behind a value.
    places = (at, max(0, at - 1))
    told = next((told for place in places for pattern, told in _HERE if pattern.match(body, place)), "")
    return told or ("" if at else _OBJECT)
