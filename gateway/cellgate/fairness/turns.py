"""Limits work that a client can request at will: some runs at once, some more waits, the rest is refused.

The places are all principals': one of them has at most three quarters of those where work runs, and of those
where it waits, so nobody can hold all for as long as they like. Those that wait get their turn in order, the
principals one after the other, and none waits forever. The owner defines the work.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cellgate.errors import QueueFull
from cellgate_kernels.base.turns import Claimant, TurnOrder


def part_of_one(places: int) -> int:
    """Return the number of these places that one principal may have."""
    return max(1, places * 3 // 4)


class Turns:
    """`at_once` run at the same time; `most_waiting` wait, each for up to `patience` seconds.

    The others are refused with the message `refusal` and may retry after `retry_after` seconds.
    """

    def __init__(
        self, at_once: int, most_waiting: int, patience: float, refusal: str, *, retry_after: float = 5
    ) -> None:
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._patience = patience
        self._refusal = refusal
        self._retry_after = retry_after
        self._running: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._line: TurnOrder[asyncio.Future[None]] = TurnOrder()

    @asynccontextmanager
    async def turn(self, principal: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it until the context exits. Raises QueueFull."""
        if self._has_room(principal):
            # Whoever waits can't run now: they have their part already.
            self._line.served(Claimant(principal))
            self._running[principal] += 1
        else:
            await self._wait(principal)
        try:
            yield
        finally:
            self._leave(principal)

    def _has_room(self, principal: str) -> bool:
        return self._running.total() < self._at_once and self._running[principal] < part_of_one(self._at_once)

    async def _wait(self, principal: str) -> None:
        theirs = sum(1 for each in self._waiting.values() if each == principal)
        if len(self._waiting) >= self._most_waiting or theirs >= part_of_one(self._most_waiting):
            raise self._full()
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = principal
        self._line.add(Claimant(principal), turn)
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except BaseException as error:
            if turn in self._waiting:
                del self._waiting[turn]
                self._line.remove(turn)
            else:
                # It had its turn in the same moment.
                self._leave(principal)
            if isinstance(error, TimeoutError):
                raise self._full() from error
            raise

    def _leave(self, principal: str) -> None:
        self._running[principal] -= 1
        if not self._running[principal]:
            del self._running[principal]
        while (turn := self._next()) is not None:
            following = self._waiting.pop(turn)
            self._line.take(turn)
            self._running[following] += 1
            turn.set_result(None)

    def _next(self) -> asyncio.Future[None] | None:
        """Return the turn that is next, if anybody who waits may run now."""
        if self._running.total() >= self._at_once:
            return None
        for turn in self._line.order():
            # One that is done was cancelled, and leaves the line in a moment.
            if not turn.done() and self._has_room(self._waiting[turn]):
                return turn
        return None

    def _full(self) -> QueueFull:
        return QueueFull(self._refusal, retry_after=self._retry_after)
