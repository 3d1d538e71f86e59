"""JSON of possibly large values, made in steps: the same bytes that the encoder makes in one call.

The encoder holds the interpreter until it is done, which takes a tenth of a second for a text of forty
megabytes. Between the steps other threads have their turn, above all the event loop's. So call it in a
thread; the caller decides which values are large enough for that. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from cellgate_kernels.base.resources import KIB

STEP = 64 * KIB
"""Characters of a text that are encoded in one call."""
_ITEMS = 256
"""Small items of a list that are encoded in one call."""
_LEVELS = 4
"""How deep to look for texts: those of an output are this deep in a result. Other limits apply below."""

encode = msgspec.json.Encoder().encode
"""In one call, for small values."""


def encode_in_steps(value: Any) -> list[bytes]:
    """Return the JSON of `value` in parts. Raises what the encoder raises."""
    parts: list[bytes] = []
    _add(value, _LEVELS, parts)
    return parts


def _add(value: Any, levels: int, parts: list[bytes]) -> None:
    if isinstance(value, str) and len(value) > STEP:
        parts.append(b'"')
        parts += (encode(value[at : at + STEP])[1:-1] for at in range(0, len(value), STEP))
        parts.append(b'"')
    elif isinstance(value, dict) and levels and _is_long(value.values(), levels):
        _add_members(value.items(), levels, parts)
    elif isinstance(value, Struct) and levels and _is_long(_members(value).values(), levels):
        _add_members(_members(value).items(), levels, parts)
    elif isinstance(value, list) and levels and (len(value) > _ITEMS or _is_long(value, levels)):
        _add_list(value, levels, parts)
    else:
        parts.append(encode(value))


def _add_members(members: Iterable[tuple[str, Any]], levels: int, parts: list[bytes]) -> None:
    before = b"{"
    for key, item in members:
        parts += (before, encode(key), b":")
        _add(item, levels - 1, parts)
        before = b","
    parts.append(b"}")


def _members(value: Struct) -> dict[str, Any]:
    """Return the fields of a struct as its JSON has them."""
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    found = {encoded: getattr(value, name) for encoded, name in names}
    return {name: item for name, item in found.items() if item is not UNSET}


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
    """Return whether these contain a long text or a long list, not too deep."""
    for value in values:
        if isinstance(value, str):
            if len(value) > STEP:
                return True
        elif isinstance(value, dict):
            if levels > 1 and _is_long(value.values(), levels - 1):
                return True
        elif isinstance(value, Struct):
            if levels > 1 and _is_long(_members(value).values(), levels - 1):
                return True
        elif isinstance(value, list) and (
            len(value) > _ITEMS or (levels > 1 and _is_long(value, levels - 1))
        ):
            return True
    return False
