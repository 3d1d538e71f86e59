"""Compares texts whose numbers differ slightly: within a relative tolerance, and by how much at most.

Pure. The tolerance applies only to numbers with a point or an exponent; everything else, including integers,
must be identical. The amount of blank space between words is ignored, because a longer number shifts what
follows it.
"""

from __future__ import annotations

import math
import re

from cellgate_kernels.base.errors import InvalidInput

_NUMBER = re.compile(r"(?<![\w.:])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d{1,5})?(?=j?(?!\w|\.\w))")
_BLANKS = re.compile(r"[ \t]+")


def check_rtol(rtol: float) -> float:
    """Raise InvalidInput for an invalid relative tolerance. 0 means that numbers are compared as text."""
    if not 0 <= rtol < 1:
        raise InvalidInput("rtol, the relative tolerance of numbers, must be at least 0 and below 1")
    return rtol


def largest_difference(recorded: str, replayed: str, rtol: float) -> float | None:
    """Return the largest relative difference of paired numbers; None if one is above `rtol`."""
    recorded_numbers = _NUMBER.findall(recorded)
    replayed_numbers = _NUMBER.findall(replayed)
    if len(recorded_numbers) != len(replayed_numbers) or _text(recorded) != _text(replayed):
        return None
    largest = 0.0
    for before, after in zip(recorded_numbers, replayed_numbers, strict=True):
        if before == after:
            continue
        if not {".", "e", "E"} & {*before, *after}:
            return None
        first, second = float(before), float(after)
        apart = abs(first - second) / max(abs(first), abs(second), math.ulp(0.0))
        # Numbers that overflow are infinite and would all look equal.
        if not (math.isfinite(apart) and apart <= rtol):
            return None
        largest = max(largest, apart)
    return largest


def _text(text: str) -> str:
    return _BLANKS.sub(" ", _NUMBER.sub("\0", text))
