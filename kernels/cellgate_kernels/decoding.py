"""Decoders of JSON that others wrote, into plain values, at a cost that its bytes bound.

Turning digits into a float can cost a hundred times what reading them costs: msgspec has a slow way for what
is close to the ends of the range (``1e-310`` takes it thirty microseconds), and it holds the interpreter
until the whole text is read. So here Python's own conversion makes the floats, which takes a microsecond at
the worst, in a function of ours, between whose calls other threads have their turn.
What a text may say, and how much of it, is not known here.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder to `kind`; use it wherever `kind` holds values of any type and the text is not our own."""
    return msgspec.json.Decoder(kind, float_hook=_float)


def _float(digits: str) -> float:
    value = float(digits)
    if value - value != 0:  # JSON has no infinity, so nothing that was read may be written as one
        raise ValueError("number out of range")
    return value
