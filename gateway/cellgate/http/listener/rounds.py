"""Schedules the checks of connections: each once a second, a few in one turn of the loop. Pure.

One check is cheap, thousands in a row are not: everybody's cells would wait for them. So a round of checks is
spread over its second. ``listener.server`` owns the timer, does the checks and closes connections.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

ROUND_SECONDS = 1.0
CHECKS_A_TURN = 8
"""Few, as each may end in closing a connection, which costs ten times as much as the check. The client may
open it again at once, and then waits for all others that came back together.
"""


class Rounds(Generic[T]):
    """Takes the items to check, a few at a time and in order. `due`: when to take the next ones."""

    def __init__(self, now: float) -> None:
        self.due = now + ROUND_SECONDS
        self._left: deque[T] = deque()
        self._pause = ROUND_SECONDS

    def take(self, now: float, everything: Collection[T]) -> Sequence[T]:
        """Return the items to check now; `everything` is read when a round begins, so some may be gone.

        Returns none if the loop was blocked: bytes that clients sent meanwhile have not been read yet.
        """
        if now - self.due > ROUND_SECONDS:
            self.due = now + ROUND_SECONDS
            return ()
        if not self._left:
            self._left.extend(everything)
            self._pause = ROUND_SECONDS / max(1, math.ceil(len(self._left) / CHECKS_A_TURN))
        # Counted from when this was due: turns that come late must not make the round longer.
        self.due = max(now, self.due + self._pause)
        return [self._left.popleft() for _ in range(min(CHECKS_A_TURN, len(self._left)))]
