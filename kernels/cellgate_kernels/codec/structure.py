"""What can be learned about JSON without decoding it: how many containers and elements it has, and how deep.

Decoded text takes about as much memory as its bytes, but the three bytes of an empty list become fifty, and
the garbage collector visits each list. So the number of elements is limited before anything is decoded.
Commas and brackets inside strings do not count, but strings are only recognised where these are very many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

DEEPEST = 100
"""The most levels of nesting in content: deeper content overflows the stack when it is encoded again."""
MOST_CONTAINERS = 250_000
MOST_ELEMENTS = 1_000_000
"""Counted by commas. Decoding as many takes a tenth of a second at worst."""

LONG_NUMBER = 256
MOST_LONG_NUMBERS = 20
"""Integers of this many digits: both reading and writing one costs the square of its length, up to a third of
a millisecond, and nothing else runs in that time."""

INLINE_BYTES = 64 * 1024
INLINE_CONTAINERS = 2_000
INLINE_ELEMENTS = 2_000
"""Larger content is not read on the event loop: decoding it, a millisecond, would delay others noticeably."""

FLAT_BYTES = 2 * DEEPEST
"""A frame of as many bytes can't be too deep, because each level opens and closes: ask no further."""

CONTAINER_COST = 64
ELEMENT_COST = 16
"""The least bytes of memory that a container and one of its elements take."""

MOST_PASSED_OVER = 8_000_000
"""Containers and elements of JSON that is passed on unread. Checking as many takes a twentieth of a second,
in which nothing else runs. 64 MiB have four times as many at worst."""

_SLICE = 256 * 1024
_STRIDE = 64
_DIGITS_IN_A_ROW = re.compile(rb"[0-9]{3}")
_NO_DIGITS = re.compile(rb"[^0-9]+")


def is_heavy(frame: bytes) -> bool:
    """Return whether `frame` takes too long to decode on the loop. A typical frame costs one comparison."""
    size = len(frame)
    if size <= INLINE_CONTAINERS:
        return False
    if size > INLINE_BYTES or frame.count(b"[") + frame.count(b"{") > INLINE_CONTAINERS:
        return True
    return (size > INLINE_ELEMENTS and frame.count(b",") > INLINE_ELEMENTS) or _has_many_digits(frame)


def weigh(frame: bytes, most: int | None = None) -> int | None:
    """About how many bytes the objects decoded from `frame` would take, or None when they are too many.

    More than `most` bytes are too many; by default only `MOST_CONTAINERS` and `MOST_ELEMENTS` count. Never
    holds the interpreter for longer than a slice takes: call it in a thread where `is_heavy` says so.
    """
    limit = len(frame) if most is None else min(len(frame), most)
    containers = _count(frame, b"[") + _count(frame, b"{")
    elements = _count(frame, b",")
    numbers = 0
    suspicious = containers > MOST_CONTAINERS or elements > MOST_ELEMENTS
    if suspicious or _cost(containers, elements) > limit or _has_many_digits(frame):
        containers, elements, numbers = _outside_of_strings(frame)
    if containers > MOST_CONTAINERS or elements > MOST_ELEMENTS or numbers > MOST_LONG_NUMBERS:
        return None
    weight = _cost(containers, elements)
    return weight if most is None or weight <= most else None


def weigh_small(frame: bytes) -> int:
    """Weigh a small frame as `weigh` does, at less cost: strings are not recognised."""
    return _cost(frame.count(b"[") + frame.count(b"{"), frame.count(b","))


def can_be_passed_over(frame: bytes | bytearray) -> bool:
    """Return whether JSON has few enough parts to be checked at one go, by slices as in `weigh`."""
    if len(frame) <= MOST_PASSED_OVER:
        return True
    if _count(frame, b"[") + _count(frame, b"{") + _count(frame, b",") <= MOST_PASSED_OVER:
        return True
    parts = 0
    for outside, _ in _slices_outside_of_strings(frame):
        parts += outside.count(b"[") + outside.count(b"{") + outside.count(b",")
        if parts > MOST_PASSED_OVER:
            return False
    return True


def _cost(containers: int, elements: int) -> int:
    return CONTAINER_COST * containers + ELEMENT_COST * elements


def _count(frame: bytes | bytearray, mark: bytes) -> int:
    if len(frame) <= _SLICE:
        return frame.count(mark)
    return sum(frame.count(mark, at, at + _SLICE) for at in range(0, len(frame), _SLICE))


def _has_many_digits(frame: bytes) -> bool:
    """Return whether LONG_NUMBER digits follow one another, in a string or not. Checks every 64th byte."""
    for start in range(0, len(frame), _SLICE):
        for found in _DIGITS_IN_A_ROW.finditer(frame[start : start + _SLICE : _STRIDE]):
            first = start + found.start() * _STRIDE
            if frame[first : first + 2 * _STRIDE + 1].isdigit():
                return True
    return False


def _outside_of_strings(frame: bytes) -> tuple[int, int, int]:
    """Count containers, elements and long numbers, until there are too many."""
    containers = elements = strings = numbers = 0
    for outside, count in _slices_outside_of_strings(frame):
        containers += outside.count(b"[") + outside.count(b"{")
        elements += outside.count(b",")
        if len(outside) >= LONG_NUMBER:
            numbers += sum(len(digits) >= LONG_NUMBER for digits in _NO_DIGITS.split(outside))
        strings += count
        if strings > 2 * MOST_ELEMENTS + 2:
            return containers, MOST_ELEMENTS + 1, numbers
        if containers > MOST_CONTAINERS or elements > MOST_ELEMENTS or numbers > MOST_LONG_NUMBERS:
            break
    return containers, elements, numbers


def _slices_outside_of_strings(frame: bytes | bytearray) -> Iterator[tuple[bytes, int]]:
    """Yield, for each slice of JSON, its parts outside strings and half the number of its quotes."""
    start = 0
    inside = False
    while start < len(frame):
        piece = bytes(frame[start : start + _SLICE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = bytes(frame[start : start + _SLICE + 1])  # don't split an escape
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2]), len(parts) // 2
        inside ^= len(parts) % 2 == 0


def is_too_deep(frame: bytes, value: Any) -> bool:
    """Return whether `value`, decoded from `frame`, has more than `DEEPEST` levels."""
    containers = _count(frame, b"[") + _count(frame, b"{")
    if containers <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST):
        children = chain.from_iterable(v.values() if isinstance(v, dict) else v for v in level)
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True
