"""Tells operators in the log when the gateway takes no new work, and when it takes work again.

What ``/readyz`` names is looked at each second. What passes by itself at a start and an end is left out, and
the pool tells of kernels that don't start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from cellgate.http.metrics import PASSING, Problem
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class WorkLog:
    """`start` it with the gateway, `close` it before the loop ends. `data`: the folder of the record."""

    def __init__(self, problems: Callable[[], Collection[Problem]], data: Path) -> None:
        self._problems = problems
        self._words = {
            Problem.STORAGE: f"the record can't be written, or the disk of {data} has too little space left",
            Problem.CONTAINER_ENGINE: "the container engine does not answer",
        }
        self._told: frozenset[Problem] = frozenset()
        self._tasks = Supervisor()

    def start(self) -> None:
        """Look at the problems once a second."""
        self._tasks.repeat(self.look, "work log", pause=LOOK_SECONDS)

    async def close(self) -> None:
        """Stop looking at the problems."""
        await self._tasks.cancel()

    async def look(self) -> float:
        """Log what has changed; return the seconds until the next look."""
        found = frozenset(self._problems()) - PASSING
        for problem in sorted(found - self._told):
            logger.warning("The gateway takes no new work: %s", self._words[problem])
        if self._told and not found:
            logger.warning("The gateway takes new work again")
        self._told = found
        return LOOK_SECONDS
