"""JSON of what may be large, made in steps: the very bytes that the encoder makes at one go.

The encoder holds the interpreter until it is done, which takes a tenth of a second for a text of forty
megabytes. Between the steps other threads have their turn, the event loop's first of all. So call it in a
thread; how large a value must be for that is its owner's affair. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from cellgate_kernels.limits import KIB

STEP = 64 * KIB
"""Characters of a text that are encoded at one go."""
_ITEMS = 256
"""Small items of a list that are."""
_LEVELS = 4
"""How deep texts are looked for: an output's are that deep in a result. What is deeper has other bounds."""

encode = msgspec.json.Encoder().encode
"""At one go, for what is small."""


def encode_in_steps(value: Any) -> list[bytes]:
    """The JSON of `value` in parts. Raises what the encoder raises."""
    parts: list[bytes] = []
    _add(value, _LEVELS, parts)
    return parts


def _add(value: Any, levels: int, parts: list[bytes]) -> None:
    if isinstance(value, str) and len(value) > STEP:
        parts.append(b'"')
        parts += (encode(value[at : at + STEP])[1:-1] for at in range(0, len(value), STEP))
        parts.append(b'"')
    elif isinstance(value, dict) and levels and _is_long(value.values(), levels):
        before = b"{"
        for key, item in value.items():
            parts += (before, encode(key), b":")
            _add(item, levels - 1, parts)
            before = b","
        parts.append(b"}")
    elif isinstance(value, list) and levels and (len(value) > _ITEMS or _is_long(value, levels)):
        _add_list(value, levels, parts)
    else:
        parts.append(encode(value))


def _add_list(value: list[Any], levels: int, parts: list[bytes]) -> None:
    before = b"["
    for start in range(0, len(value), _ITEMS):
        items = value[start : start + _ITEMS]
        parts.append(before)
        before = b","
        if not _is_long(items, levels):
            parts.append(encode(items)[1:-1])
            continue
        for number, item in enumerate(items):
            if number:
                parts.append(before)
            _add(item, levels - 1, parts)
    parts.append(b"]")


def _is_long(values: Iterable[Any], levels: int) -> bool:
    """Whether there is a long text, or a long list, not too deep in these."""
    for value in values:
        if isinstance(value, str):
            if len(value) > STEP:
                return True
        elif isinstance(value, dict):
            if levels > 1 and _is_long(value.values(), levels - 1):
                return True
        elif isinstance(value, list) and (
            len(value) > _ITEMS or (levels > 1 and _is_long(value, levels - 1))
        ):
            return True
    return False
