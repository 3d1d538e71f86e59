"""The sizes that clients want a sandbox's terminals to have, which are many while a window is being dragged.

One is given at a time, and of those that wait for one terminal the last alone. What gives them is the door's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cellgate_kernels.base.errors import GatewayFault
from cellgate_kernels.base.tasks import Supervisor, outcome

Size = tuple[int, int]
"""Rows and columns."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """The size that a terminal is to have next, and the task that gives it when it is its turn."""

    size: Size
    given: asyncio.Task[None] | None = None


class TerminalSizes:
    """The sizes that the terminals of one sandbox are to have."""

    def __init__(self) -> None:
        self._wanted: dict[str, _Wanted] = {}
        self._turn = asyncio.Lock()
        self._tasks = Supervisor(lambda: {"part": "sizes of terminals"})

    async def want(self, terminal: str, size: Size, give: Callable[[Size], Awaitable[None]]) -> None:
        """Return when the terminal has this size, or one that was wanted later. Raises as `give` does.

        `terminal`: its name, which no other has. `give` gives it a size; its errors are ours.
        """
        wanted = self._wanted.get(terminal)
        if wanted is None:
            wanted = self._wanted[terminal] = _Wanted(size)
            wanted.given = self._tasks.share(self._give(terminal, wanted, give), "size of a terminal")
        wanted.size = size
        assert wanted.given is not None
        await outcome(wanted.given, GatewayFault)

    async def _give(self, terminal: str, wanted: _Wanted, give: Callable[[Size], Awaitable[None]]) -> None:
        async with self._turn:
            del self._wanted[terminal]
            await give(wanted.size)
