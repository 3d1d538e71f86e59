"""Decoders of JSON that others wrote, into plain values, at a cost limited by its size.

Turning digits into a float can cost a hundred times what reading them costs: msgspec takes a slow path close
to the ends of the range (thirty microseconds for ``1e-310``) and holds the interpreter until the whole text
is read. So Python's own conversion makes the floats here, a microsecond each, in a Python function, so that
other threads have their turn between its calls.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder for `kind`; use it for values of any type in texts that others wrote."""
    return msgspec.json.Decoder(kind, float_hook=python_float)


def python_float(digits: str) -> float:
    """Return the number that digits stand for. Raises ValueError for one out of range."""
    value = float(digits)
    if value - value != 0:  # JSON has no infinity, so nothing that was read may be written as one
        raise ValueError("number out of range")
    return value
