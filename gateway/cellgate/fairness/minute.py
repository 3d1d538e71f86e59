"""How much there was in the last minute, such as requests or bytes, in constant memory. Pure.

Amounts are summed in slots of a few seconds and forgotten a slot at a time, once the whole slot is older than
a minute. So never more than the limit is counted in any minute, wherever it begins.
"""

from __future__ import annotations

from collections import deque

MINUTE = 60.0
SLOT = 5.0
_SLOTS = int(MINUTE // SLOT)


class Minute:
    """A sum over the last minute. `now` is from any clock that never goes back."""

    __slots__ = ("_slots", "_sum")

    def __init__(self) -> None:
        # The number of each slot with its amount, oldest first: at most `_SLOTS` + 1 of them.
        self._slots: deque[list[int]] = deque()
        self._sum = 0

    def add(self, amount: int, now: float) -> None:
        """Count an amount now."""
        slot = int(now // SLOT)
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1][1] += amount
        else:
            self._forget(slot)
            self._slots.append([slot, amount])
        self._sum += amount

    def used(self, now: float) -> int:
        """Return the sum over the last minute."""
        self._forget(int(now // SLOT))
        return self._sum

    def seconds_until(self, at_most: int, now: float) -> float:
        """Return the seconds until the sum is at most this, if nothing is added."""
        left = self.used(now)
        free_at = now
        for slot, amount in self._slots:
            if left <= at_most:
                break
            left -= amount
            free_at = (slot + _SLOTS + 1) * SLOT
        return free_at - now

    def _forget(self, slot: int) -> None:
        while self._slots and self._slots[0][0] < slot - _SLOTS:
            self._sum -= self._slots.popleft()[1]
