"""How the cost of a call grows with its input: a ratio, so that it says the same on any machine.

Only this thread's own time counts, and the best of several tries, so neighbours hardly matter. It knows
nothing of what is called.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LINEAR = 2.6
"""The most by which doubling an input may multiply the cost: 2, and what caches and the clock add."""
SHORT = range(8, 36, 4)
"""Sizes at which nothing linear takes long; what doubles with each character does, at one of them."""
LARGEST = 16 * 1024
LEAST_SECONDS = 0.001
"""What takes less at every size is not measured: even the square of it hurts nobody."""
TRIES = 30
"""Most need one. Neighbours can make several in a row slow."""


def growth(
    call: Callable[[T], object],
    make: Callable[[int], T],
    *,
    largest: int = LARGEST,
    least: float = LEAST_SECONDS,
) -> float:
    """Return by how much the time of `call(make(size))` grows when the size doubles; 0 for quick calls.

    `size` doubles until a call takes `least` seconds, to half of `largest` at the most.
    """
    for size in SHORT:
        if all(seconds(call, make(size)) >= least for _ in range(TRIES)):
            return float("inf")
    while (taken := seconds(call, make(size))) < least:
        size *= 2
        if size > largest // 2:
            return 0.0
    smaller, larger = make(size), make(2 * size)
    found = float("inf")
    for _ in range(TRIES):
        taken = min(taken, seconds(call, smaller))
        found = min(found, seconds(call, larger))
        if found / taken < LINEAR * 0.8:
            break
    return found / taken


def seconds(call: Callable[[T], object], given: T) -> float:
    """Return the processor time that this thread takes for one call, without a tracer such as coverage's."""
    tracer = sys.gettrace()
    sys.settrace(None)
    gc.disable()
    try:
        begun = time.thread_time()
        call(given)
        return time.thread_time() - begun
    finally:
        gc.enable()
        sys.settrace(tracer)
