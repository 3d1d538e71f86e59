"""Two texts whose numbers differ a little: the same within a relative tolerance, and by how much at most.

Pure. Only numbers with a point or an exponent are compared so; all else, integers too, has to be the same.
How many blanks stand between words does not count: a longer number moves what stands beside it.
"""

from __future__ import annotations

import math
import re

from cellgate_kernels.errors import InvalidInput

_NUMBER = re.compile(r"(?<![\w.:])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d{1,5})?(?=j?(?!\w|\.\w))")
_BLANKS = re.compile(r"[ \t]+")


def check_rtol(rtol: float) -> float:
    """Raises InvalidInput for what is no relative tolerance. 0 means that numbers are compared as text."""
    if not 0 <= rtol < 1:
        raise InvalidInput("rtol, the relative tolerance of numbers, must be at least 0 and below 1")
    return rtol


def largest_difference(recorded: str, replayed: str, rtol: float) -> float | None:
    """The largest relative difference of two numbers in the same place; None when one is above `rtol`."""
    numbers = _NUMBER.findall(recorded), _NUMBER.findall(replayed)
    if len(numbers[0]) != len(numbers[1]) or _text(recorded) != _text(replayed):
        return None
    largest = 0.0
    for before, after in zip(*numbers, strict=True):
        if before == after:
            continue
        if not {".", "e", "E"} & {*before, *after}:
            return None
        first, second = float(before), float(after)
        apart = abs(first - second) / max(abs(first), abs(second), math.ulp(0.0))
        # An overflow makes any two numbers infinite and equal.
        if not (math.isfinite(apart) and apart <= rtol):
            return None
        largest = max(largest, apart)
    return largest


def _text(text: str) -> str:
    return _BLANKS.sub(" ", _NUMBER.sub("\0", text))
