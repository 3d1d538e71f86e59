"""Places that all principals share, of which none may have more than a part.

For what is limited in number because it is expensive, where a quota would be too much: uploads, replays,
clients' connections. Without it, one principal could hold all places for as long as they like.
"""

from __future__ import annotations

from functools import partial

from cellgate.fairness.reservation import Reservation
from cellgate.fairness.turns import part_of_one


class Shares:
    """At most `most` places, and `of_one` of one principal's (three quarters). `taken`: the number in use."""

    def __init__(self, most: int, of_one: int | None = None) -> None:
        self.most = most
        self.of_one = part_of_one(most) if of_one is None else of_one
        self.taken = 0
        self._taken: dict[str, int] = {}

    def take(self, name: str) -> Reservation | None:
        """Return a place for this principal, until it is released; None if there is none for them."""
        return Reservation(partial(self.leave, name)) if self.enter(name) else None

    def enter(self, name: str) -> bool:
        """Take a place for this principal, until `leave`; False if there is none for them."""
        theirs = self._taken.get(name, 0)
        if self.taken >= self.most or theirs >= self.of_one:
            return False
        self._taken[name] = theirs + 1
        self.taken += 1
        return True

    def leave(self, name: str) -> None:
        """Give a place of this principal's back."""
        left = self._taken[name] - 1
        if left:
            self._taken[name] = left
        else:
            del self._taken[name]
        self.taken -= 1

    def taken_by(self, name: str) -> int:
        """Return the number of places that this principal has."""
        return self._taken.get(name, 0)

    def heaviest(self) -> str | None:
        """Return the principal with the most places; None if nobody has any."""
        return max(self._taken, key=self._taken.__getitem__, default=None)
