"""Readings that all who wait for one share: none queues behind others while the store does not answer.

``directory`` reads the users by it. It knows no users, and starts nothing by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Final

from cellgate.errors import StorageError
from cellgate_kernels.base.tasks import Supervisor, outcome

PAUSE_SECONDS: Final = 2.0
"""The seconds after a failed reading in which nobody who is in a hurry waits for another one."""


class SharedReading:
    """Readings by `read`, one at a time, as `tasks`' owner's."""

    def __init__(
        self,
        read: Callable[[], Coroutine[None, None, None]],
        tasks: Supervisor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._tasks = tasks
        self._clock = clock
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """The reading that has not begun."""
        self._failure: StorageError | None = None
        self._again = 0.0

    async def wait_briefly(self) -> None:
        """Wait for a reading as `wait` does, but raise StorageError at once if one has just failed."""
        self._check()
        await self._share(self._check)

    async def wait(self) -> None:
        """Wait for a reading that begins from now on, the same for all who wait. Raises StorageError."""
        await self._share(lambda: None)

    def _check(self) -> None:
        if self._failure is not None and self._clock() < self._again:
            raise StorageError(self._failure.message)

    async def _share(self, check: Callable[[], None]) -> None:
        if self._next is None:
            self._next = self._tasks.share(self._read_in_turn(check), "shared reading")
        await outcome(self._next, lambda: StorageError("The gateway is ending"))

    async def _read_in_turn(self, check: Callable[[], None]) -> None:
        async with self._turn:
            # This one may miss what changes from now on.
            self._next = None
            check()
            try:
                await self._read()
            except StorageError as error:
                self._failure, self._again = error, self._clock() + PAUSE_SECONDS
                raise
            self._failure = None
