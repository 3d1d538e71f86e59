"""Places that all principals share, of which none may have more than a part.

For work that is limited in number because it is expensive, where a quota would be too much: uploads, replays,
connections to a network. Without it, one principal could hold all places for as long as they like.
"""

from __future__ import annotations

from collections import Counter

from cellgate.principals.usage import Reservation


class Shares:
    """At most `most` places at once, and at most `of_one` of one principal's."""

    def __init__(self, most: int, of_one: int) -> None:
        self.most = most
        self.of_one = of_one
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How many places are taken."""
        return self._taken.total()

    def take(self, name: str) -> Reservation | None:
        """A place for this principal, until it is released; None if there is none for them."""
        if self.taken >= self.most or self._taken[name] >= self.of_one:
            return None
        self._taken[name] += 1
        return Reservation(lambda: self._give_back(name))

    def _give_back(self, name: str) -> None:
        self._taken[name] -= 1
        if not self._taken[name]:
            del self._taken[name]
