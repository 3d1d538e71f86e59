"""The tasks of one session: the worker that works its queue off, and short ones beside it.

They are the session's own; here they are only started, awaited and cancelled. What they do is ``sessions``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class SessionTasks:
    """One worker at most, and any number of short tasks, each of them awaited before the session's end."""

    def __init__(self) -> None:
        self._worker: asyncio.Task[None] | None = None
        self._short: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._short)

    def work(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start the worker."""
        self._worker = asyncio.create_task(work, name=name)

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a short task."""
        task = asyncio.create_task(work, name=name)
        self._short.add(task)
        task.add_done_callback(self._short.discard)

    async def stop_worker(self, patience: float) -> None:
        """Give the worker `patience` seconds to end by itself, then cancel it."""
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=patience)
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def finished(self) -> None:
        """Return when no short task is left."""
        await asyncio.gather(*self._short, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel all, whatever they do."""
        for task in self._short:
            task.cancel()
        await self.stop_worker(0)
        await self.finished()
