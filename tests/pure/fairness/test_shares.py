"""Places that principals share: one principal's part is not everybody's."""

from __future__ import annotations

from cellgate.fairness.shares import Shares


def test_nobody_has_more_than_their_part() -> None:
    shares = Shares(5, 2)
    first = [shares.take("ada") for _ in range(3)]
    assert [place is not None for place in first] == [True, True, False]
    others = [shares.take(name) is not None for name in ("bob", "bob", "eve", "eve")]
    assert others == [True, True, True, False]
    assert shares.taken == 5


def test_three_quarters_are_for_one_and_who_has_most_is_known() -> None:
    shares = Shares(8)
    assert shares.heaviest() is None
    places = [shares.take("ada") for _ in range(7)]
    assert [place is not None for place in places] == [True] * 6 + [False]
    assert shares.take("bob") is not None
    assert (shares.heaviest(), shares.taken_by("ada"), shares.taken_by("bob")) == ("ada", 6, 1)
    assert shares.taken == 7
    for place in places[:6]:
        assert place is not None
        place.release()
    assert (shares.heaviest(), shares.taken_by("ada"), shares.taken) == ("bob", 0, 1)


def test_a_released_place_is_free_once() -> None:
    shares = Shares(1, 1)
    place = shares.take("ada")
    assert place is not None
    assert shares.take("bob") is None
    place.release()
    place.release()
    assert shares.taken == 0
    assert shares.take("bob") is not None
