"""So many bytes a minute by waiting: whoever would be too fast is told how long to wait. Pure.

For what must not fail in the middle, such as a download: it is slowed down instead. A quarter of the amount
may pass at once, the rest evenly, so that in no minute, wherever it begins, more than the amount passes.
"""

from __future__ import annotations

from cellgate.fairness.minute import MINUTE

AT_ONCE = 0.25
"""The part of a minute's amount that may pass without waiting, after a time without any."""


class Pace:
    """How far somebody is ahead of their pace. `now` is from any clock that never goes back."""

    __slots__ = ("_ahead", "_looked_at")

    def __init__(self) -> None:
        self._ahead = 0.0
        self._looked_at = float("-inf")

    def take(self, amount: int, per_minute: float, now: float) -> float:
        """Take an amount; the seconds until it may pass. Who comes later waits for it too."""
        rate = _rate(per_minute)
        self._advance(rate, now)
        self._ahead += amount
        return max(0.0, self._ahead - AT_ONCE * per_minute) / rate

    def give_back(self, amount: int) -> None:
        """Give back an amount that will not pass after all."""
        self._ahead = max(0.0, self._ahead - amount)

    def is_behind(self, per_minute: float, now: float) -> bool:
        """Return whether all that was taken has been made up for."""
        self._advance(_rate(per_minute), now)
        return self._ahead <= 0

    def _advance(self, rate: float, now: float) -> None:
        if self._ahead > 0:
            self._ahead = max(0.0, self._ahead - rate * (now - self._looked_at))
        self._looked_at = now


def _rate(per_minute: float) -> float:
    """Return the amount that may pass in a second."""
    return (1 - AT_ONCE) * per_minute / MINUTE
