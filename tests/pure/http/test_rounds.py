"""Rounds of checks: everything once a second, little of it in one turn of the loop."""

from __future__ import annotations

import pytest

from cellgate.http.listener.rounds import CHECKS_A_TURN, ROUND_SECONDS, Rounds


def seconds_between_checks(rounds: Rounds[int], everything: list[int], *, late: float, turns: int) -> float:
    """The longest time for which something was not checked, if each turn comes `late` seconds too late."""
    checked = dict.fromkeys(everything, 0.0)
    longest = 0.0
    for _ in range(turns):
        now = rounds.due + late
        for each in rounds.take(now, everything):
            longest = max(longest, now - checked[each])
            checked[each] = now
    return longest


@pytest.mark.parametrize("count", [1, CHECKS_A_TURN, CHECKS_A_TURN + 1, 3000])
def test_everything_is_checked_once_a_round_and_little_of_it_at_a_time(count: int) -> None:
    rounds: Rounds[int] = Rounds(0.0)
    everything = list(range(count))
    checked: list[int] = []
    while rounds.due < 1.5 * ROUND_SECONDS or len(checked) < count:
        taken = rounds.take(rounds.due, everything)
        assert 0 < len(taken) <= CHECKS_A_TURN
        checked += taken
    assert checked == everything
    assert rounds.due == pytest.approx(2 * ROUND_SECONDS)


def test_turns_that_come_late_make_no_round_longer() -> None:
    pause = ROUND_SECONDS / 100
    found = seconds_between_checks(
        Rounds(0.0), list(range(100 * CHECKS_A_TURN)), late=0.9 * pause, turns=1000
    )
    assert found <= 2 * ROUND_SECONDS + pause


def test_without_anything_it_asks_once_a_round() -> None:
    rounds: Rounds[int] = Rounds(0.0)
    for number in range(1, 5):
        assert rounds.due == number * ROUND_SECONDS
        assert rounds.take(rounds.due, []) == []


def test_after_the_loop_was_blocked_nothing_is_checked_for_a_while() -> None:
    rounds: Rounds[int] = Rounds(0.0)
    everything = list(range(10 * CHECKS_A_TURN))
    first = rounds.take(rounds.due, everything)
    awake = rounds.due + 1.1 * ROUND_SECONDS
    assert rounds.take(awake, everything) == ()
    assert rounds.due == awake + ROUND_SECONDS
    assert [*first, *rounds.take(rounds.due, everything)] == everything[: 2 * CHECKS_A_TURN]


def test_what_is_new_is_checked_in_the_next_round() -> None:
    rounds: Rounds[str] = Rounds(0.0)
    assert rounds.take(rounds.due, ["old"]) == ["old"]
    assert rounds.take(rounds.due, ["old", "new"]) == ["old", "new"]
