"""Limits work that a client can request at will: some runs at once, some more waits, the rest is refused.

Those that wait get their turn in order, and none waits forever. The owner defines the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cellgate.errors import QueueFull


class Turns:
    """`at_once` run at the same time; `most_waiting` wait, each for up to `patience` seconds.

    The others are refused with the message `refusal` and may retry after `retry_after` seconds.
    """

    def __init__(
        self, at_once: int, most_waiting: int, patience: float, refusal: str, *, retry_after: float = 5
    ) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most_waiting = most_waiting
        self._patience = patience
        self._refusal = refusal
        self._retry_after = retry_after
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it until the context exits. Raises QueueFull."""
        if self._free.locked():
            await self._wait()
        else:
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self) -> None:
        if self._waiting >= self._most_waiting:
            raise self._full()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError as error:
            raise self._full() from error
        finally:
            self._waiting -= 1

    def _full(self) -> QueueFull:
        return QueueFull(self._refusal, retry_after=self._retry_after)
