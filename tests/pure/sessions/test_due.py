"""When sessions end by themselves, by the clocks of a loop and of the wall."""

from __future__ import annotations

import math

import pytest

from cellgate.execution.limits import SessionLimits
from cellgate.sessions.due import Due, due
from cellgate.wire.answers import SessionEnd

LIMITS = SessionLimits(idle_timeout=100, lifetime=1000)


@pytest.mark.parametrize(
    ("idle_since", "most", "expected"),
    [
        (20, math.inf, Due(120, "idle_timeout")),
        (950, math.inf, Due(1010, "lifetime")),
        (None, math.inf, Due(1010, "lifetime")),
        (20, 50, Due(60, "lifetime")),
        (None, 50, Due(60, "lifetime")),
    ],
)
def test_the_earlier_end_counts(idle_since: float | None, most: float, expected: Due) -> None:
    assert due(LIMITS, 10, idle_since, most) == expected


def test_one_that_sleeps_ends_with_its_lifetime_alone() -> None:
    assert due(LIMITS, 10, 20, sleeps=True) == Due(1010, "lifetime")
    assert due(LIMITS, 10, 20, 50, sleeps=True) == Due(60, "lifetime")


def test_it_is_told_in_whole_seconds_and_never_too_early() -> None:
    end = Due(120.5, "idle_timeout")
    assert end.to_wire(100, 1_800_000_000.0) == SessionEnd(at="2027-01-15T08:00:21Z", cause="idle_timeout")
    assert end.to_wire(100.5, 1_800_000_000.0).at == "2027-01-15T08:00:20Z"
