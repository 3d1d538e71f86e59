"""How the cost of a call grows with its input: the cost of a text of sixteen times the size, as a multiple.

There are two costs. Steps are counted, are the same on every machine, and are what each change is tried with:
lines of Python that run, and calls of functions written in C, whatever those do. Seconds are measured, show
what functions in C take as well, and are for the night: what grows by the square takes 256 times as long, so
that neither neighbours nor caches decide. Nothing here knows what is called.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Make = Callable[[int], T]
"""Returns an input of about so many characters."""

TIMES = 16
SIZE = 256
"""Characters of the smaller text whose steps are counted."""
MOST_IN_STEPS = 1.25 * TIMES
MOST_IN_SECONDS = 4.0 * TIMES
"""What is linear grows by 16, what is square by 256."""
SHORT = range(8, 36, 4)
"""Sizes at which nothing linear takes long; what doubles with each character does, at one of them."""
LARGEST = 128 * 1024
LEAST_SECONDS = 0.0005
"""What takes less than this at a sixteenth of the largest size is not measured: its square hurts nobody."""
TRIES = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """A way to tell the growth of a call's cost, and the most by which it may grow."""

    growth: Callable[[Callable[[Any], object], Make[Any]], float]
    most: float

    def check(self, call: Callable[[T], object], make: Make[T]) -> None:
        """Fail unless the cost of `call(make(size))` grows with the size as something linear does."""
        assert self.growth(call, make) <= self.most


def in_steps(call: Callable[[T], object], make: Make[T]) -> float:
    """Return by how much the steps of a call grow when its input does by `TIMES`."""
    call(make(SIZE))  # what is made once, such as a table, is made now
    return steps(call, make(TIMES * SIZE)) / steps(call, make(SIZE))


def steps(call: Callable[[T], object], given: T) -> int:
    """Return how many lines of Python run in one call, and functions written in C are called."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "c_call"

    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.setprofile(called)
    sys.settrace(line)
    try:
        call(given)
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)
    return count


def calls(function: Callable[..., object], call: Callable[[], object]) -> int:
    """Return how often a function that is written in Python is called during another call."""
    assert isinstance(function, FunctionType)
    code: CodeType = function.__code__
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is code

    profiler = sys.getprofile()
    sys.setprofile(called)
    try:
        call()
    finally:
        sys.setprofile(profiler)
    return count


def in_seconds(call: Callable[[T], object], make: Make[T]) -> float:
    """Return by how much the time of a call grows when its input does by `TIMES`; 0 for quick calls."""
    for size in SHORT:
        if all(seconds(call, make(size)) >= 100 * LEAST_SECONDS for _ in range(TRIES)):
            return float("inf")
    while (taken := seconds(call, make(size))) < LEAST_SECONDS:
        size *= 2
        if size > LARGEST // TIMES:
            return 0.0
    smaller, larger = make(size), make(TIMES * size)
    found = float("inf")
    for _ in range(TRIES):
        taken = min(taken, seconds(call, smaller))
        found = min(found, seconds(call, larger))
        if found <= MOST_IN_SECONDS * taken / 2:
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


IN_STEPS = Cost(in_steps, MOST_IN_STEPS)
IN_SECONDS = Cost(in_seconds, MOST_IN_SECONDS)
both_costs = pytest.mark.parametrize(
    "cost",
    [pytest.param(IN_STEPS, id="steps"), pytest.param(IN_SECONDS, id="seconds", marks=pytest.mark.nightly)],
)
"""Of a test that takes a `Cost`: steps at each change, seconds at night."""
