"""Places that all principals share, of which none may have more than a part.

For what is limited in number because it is expensive, where a quota would be too much: uploads, replays,
clients' connections. Without it, one principal could hold all places for as long as they like.
"""

from __future__ import annotations

from collections import Counter

from cellgate.principals.usage import Reservation
from cellgate.record.admission import part_of_one


class Shares:
    """At most `most` places at once, and at most `of_one` of one principal's: by default three quarters.

    `taken`: how many there are.
    """

    def __init__(self, most: int, of_one: int | None = None) -> None:
        self.most = most
        self.of_one = part_of_one(most) if of_one is None else of_one
        self.taken = 0
        self._taken: Counter[str] = Counter()

    def take(self, name: str) -> Reservation | None:
        """A place for this principal, until it is released; None if there is none for them."""
        if self.taken >= self.most or self._taken[name] >= self.of_one:
            return None
        self._taken[name] += 1
        self.taken += 1
        return Reservation(lambda: self._give_back(name))

    def taken_by(self, name: str) -> int:
        """How many places this principal has."""
        return self._taken[name]

    def heaviest(self) -> str | None:
        """The principal with the most places; None if nobody has any."""
        return max(self._taken, key=self._taken.__getitem__, default=None)

    def _give_back(self, name: str) -> None:
        self._taken[name] -= 1
        self.taken -= 1
        if not self._taken[name]:
            del self._taken[name]
