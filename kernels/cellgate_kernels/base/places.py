"""Places in the turns of the loop, for work of which a single read can bring thousands of pieces.

Pieces as small as a protocol allows, frames or chunks of one byte, would all be handled that one read brought
before the loop turns, and all others wait. So whoever handles such pieces asks for a place before each. The
gateway's listener, programs in sandboxes, their ports, and sessions' proxies have places of their own each;
kernels' channels have none, because ``sockets`` counts for itself.
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
    """`most` places in each turn of the loop, for all who ask together, in the order in which they asked."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counts = False
        self._guarded_next = guarded(self._next, "places")

    def take(self) -> Awaitable[None] | None:
        """Take a place in this turn; if there is none left, return what to await for one in a later turn."""
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
        """Begin a turn: those that have waited longest come first."""
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
