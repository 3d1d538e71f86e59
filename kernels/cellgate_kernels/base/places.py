"""Places in the turns of the loop, for work that a single read can bring in thousands of pieces.

Without places, all pieces of one read, frames or chunks of a single byte, would be handled before the loop
turns, and all others would wait. So every handler of such pieces takes a place before each. The gateway's
listener, programs in sandboxes, their ports, and sessions' proxies have separate places; kernels' channels
have none, because ``sockets`` counts for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Final

from cellgate_kernels.base.tasks import guarded

FRAMES_A_TURN: Final = 32
"""Frames of programs beside kernels that are handled in one turn of the loop."""


class Places:
    """At most `most` places in each turn of the loop, given in the order of the calls."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counts = False
        self._guarded_next = guarded(self._next, "places")

    def take(self) -> Awaitable[None] | None:
        """Take a place in this turn; if none is left, return an awaitable for one in a later turn."""
        loop = asyncio.get_running_loop()
        if not self._counts:
            self._counts = True
            loop.call_soon(self._guarded_next)
        if self._left and not self._waiting:
            self._left -= 1
            return None
        place = loop.create_future()
        self._waiting.append(place)
        return place

    def _next(self) -> None:
        """Begin a turn: the longest waiting callers come first."""
        left = self._most
        while left and self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # it may have been cancelled
                place.set_result(None)
                left -= 1
        self._counts = left < self._most
        self._left = left
        if self._counts:
            asyncio.get_running_loop().call_soon(self._guarded_next)
