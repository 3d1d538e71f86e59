"""A leap of the system's clock removes no record before it is proven."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellgate.errors import StorageError
from cellgate.sessions.proven_time import (
    LEAP_SECONDS,
    MOST_LEAPS,
    STATE_FILE,
    STEADY_SECONDS,
    TRUST_FILE,
    ClockState,
    Leap,
    ProvenTime,
    moment_of,
    read_state,
    trust,
)

DAY = 86_400.0
START = 1_790_000_000.0


class Clocks:
    """Two clocks that a test sets; `later` lets the same time pass on both."""

    def __init__(self) -> None:
        self.wall, self.running = START, 5000.0

    def later(self, seconds: float) -> None:
        self.wall += seconds
        self.running += seconds

    def trusted(self, folder: Path) -> None:
        """An operator says now that the clock is right."""
        trust(folder)
        os.utime(folder / TRUST_FILE, (self.wall, self.wall))

    def gateway(self, folder: Path) -> ProvenTime:
        """A gateway that starts now."""
        return ProvenTime(folder, lambda: self.wall, lambda: self.running)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_a_clock_that_nobody_sets_is_believed(clocks: Clocks, tmp_path: Path) -> None:
    gateway = clocks.gateway(tmp_path)
    for seconds in (0, 600, 600, 40 * DAY):
        clocks.later(seconds)
        assert gateway.look(None) == ClockState(clocks.wall)
    clocks.wall += LEAP_SECONDS
    assert gateway.look(None).proven == clocks.wall


@pytest.mark.parametrize("leap", [40 * DAY, -40 * DAY, LEAP_SECONDS + 1, -LEAP_SECONDS - 1])
def test_after_a_leap_nothing_is_certain_for_a_day(clocks: Clocks, tmp_path: Path, leap: float) -> None:
    gateway = clocks.gateway(tmp_path)
    gateway.look(None)
    clocks.later(600)
    clocks.wall += leap
    assert gateway.look(None).proven is None
    clocks.later(STEADY_SECONDS - 1)
    assert gateway.look(None).proven is None
    clocks.later(1)
    assert gateway.look(None).proven == clocks.wall


def test_a_leap_and_its_return_are_two(clocks: Clocks, tmp_path: Path) -> None:
    gateway = clocks.gateway(tmp_path)
    gateway.look(None)
    clocks.wall += 40 * DAY
    gateway.look(None)
    clocks.later(STEADY_SECONDS - 600)
    clocks.wall -= 40 * DAY
    assert gateway.look(None).leaps == (Leap(40 * DAY, 0.0, True), Leap(0.0, 0.0, True))
    clocks.later(600)
    assert gateway.look(None).proven is None


def test_a_leap_is_remembered_by_the_next_gateway(clocks: Clocks, tmp_path: Path) -> None:
    gateway = clocks.gateway(tmp_path)
    gateway.look(None)
    clocks.wall += 40 * DAY
    gateway.look(None)
    clocks.later(1000)
    # The newest row is of the wrong time by now, and would make it look right.
    after = clocks.gateway(tmp_path)
    assert after.look(clocks.wall).proven is None
    clocks.later(STEADY_SECONDS)
    assert after.look(clocks.wall).proven == clocks.wall


def test_time_without_a_gateway_counts_after_a_day(clocks: Clocks, tmp_path: Path) -> None:
    clocks.gateway(tmp_path).look(None)
    clocks.wall += 40 * DAY
    after = clocks.gateway(tmp_path)
    assert after.look(None).proven == START
    clocks.later(DAY - 1)
    assert after.look(None).proven == START + DAY - 1
    clocks.later(1)
    assert after.look(None).proven == clocks.wall


def test_a_machine_that_is_off_at_night_lags_by_nights_and_not_for_ever(
    clocks: Clocks, tmp_path: Path
) -> None:
    for _ in range(30):
        gateway = clocks.gateway(tmp_path)
        gateway.look(None)
        for _ in range(8):
            clocks.later(3600)
            state = gateway.look(None)
        clocks.wall += 16 * 3600
    assert state.proven == START + 29 * DAY + 8 * 3600 - 2 * 16 * 3600


def test_without_a_state_the_newest_row_stands_for_the_last_look(clocks: Clocks, tmp_path: Path) -> None:
    newest = moment_of("2026-01-01T00:00:00.000000Z")
    assert newest is not None
    assert clocks.gateway(tmp_path).look(newest).proven == newest
    assert moment_of(None) is None
    assert moment_of("yesterday") is None


def test_an_operator_says_that_the_clock_is_right(clocks: Clocks, tmp_path: Path) -> None:
    gateway = clocks.gateway(tmp_path)
    gateway.look(None)
    clocks.wall += 40 * DAY
    assert gateway.look(None).proven is None
    clocks.trusted(tmp_path)
    clocks.later(DAY / 2)
    assert gateway.look(None).proven == clocks.wall
    assert gateway.look(None).leaps == ()
    clocks.wall += 40 * DAY
    assert gateway.look(None).proven is None, "the word is about the clock as it was"


@pytest.mark.parametrize("leap", [40 * DAY, -40 * DAY])
def test_a_word_says_nothing_of_what_the_clock_did_after_it(
    clocks: Clocks, tmp_path: Path, leap: float
) -> None:
    gateway = clocks.gateway(tmp_path)
    gateway.look(None)
    clocks.trusted(tmp_path)
    clocks.wall += leap
    assert gateway.look(None).proven is None


def test_an_old_word_is_not_of_today(clocks: Clocks, tmp_path: Path) -> None:
    """Given when no gateway looked at the clock, and found by one that does, long after."""
    clocks.trusted(tmp_path)
    said = clocks.wall
    clocks.wall += 400 * DAY
    gateway = clocks.gateway(tmp_path)
    assert gateway.look(clocks.wall).proven == said
    clocks.later(DAY)
    assert gateway.look(None).proven == clocks.wall


def test_leaps_without_end_take_no_room_without_end() -> None:
    state = ClockState(START)
    for number in range(1, 1000):
        state = state.at(START + number * DAY, None)
    assert len(state.leaps) == MOST_LEAPS
    assert state.proven == START


@pytest.mark.parametrize("content", ["", "{}", '{"wall": "x"}', "\x00" * 100, '{"wall": 1e999}'])
def test_what_a_damaged_state_has_said_may_have_been_a_leap(
    clocks: Clocks, tmp_path: Path, content: str
) -> None:
    """The rows of the record may all be of a clock that is wrong, so their times prove nothing."""
    (tmp_path / STATE_FILE).write_text(content)
    with pytest.raises(StorageError, match=STATE_FILE):
        read_state(tmp_path)
    gateway = clocks.gateway(tmp_path)
    assert gateway.look(START - 60).proven is None
    assert read_state(tmp_path) == ClockState(START, (Leap(0.0, 0.0, True),))
    clocks.later(DAY)
    assert gateway.look(START).proven == clocks.wall


def test_a_state_that_cannot_be_kept_stops_nothing(clocks: Clocks, tmp_path: Path) -> None:
    gateway = clocks.gateway(tmp_path / "gone")
    assert gateway.look(None).proven == START
    clocks.wall += 40 * DAY
    assert gateway.look(None).proven is None
