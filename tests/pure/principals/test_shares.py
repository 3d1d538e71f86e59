"""Places that principals share: one principal's part is not everybody's."""

from __future__ import annotations

from cellgate.principals.shares import Shares


def test_nobody_has_more_than_their_part() -> None:
    shares = Shares(5, 2)
    first = [shares.take("ada") for _ in range(3)]
    assert [place is not None for place in first] == [True, True, False]
    others = [shares.take(name) is not None for name in ("bob", "bob", "eve", "eve")]
    assert others == [
        True,
        True,
        True,
        False,
    ]
    assert shares.taken == 5


def test_a_released_place_is_free_once() -> None:
    shares = Shares(1, 1)
    place = shares.take("ada")
    assert place is not None
    assert shares.take("bob") is None
    place.release()
    place.release()
    assert shares.taken == 0
    assert shares.take("bob") is not None
