"""Puts the kernels of idle sessions to sleep, by a rule that operators can state.

A kernel sleeps when, for as long as the setting says, nobody used its session, no Jupyter client was
connected to it, it sent nothing, and its processes did next to nothing. So a thread that prints or computes
is left alone; a timer that only waits is not noticed, and goes off when the kernel is woken. Whatever is sent
to a kernel wakes it (``cellgate_kernels.asleep``); nothing here has to.

One task looks at all sessions and lets kernels fall asleep one after the other, because they share the disk
that their memory goes to. It starts and ends no kernel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cellgate.sessions.session import Session
from cellgate_kernels.kernel import Kernel
from cellgate_kernels.provisioners.control_group import ControlGroup
from cellgate_kernels.tasks import Supervisor
from cellgate_kernels.threads import Lane

logger = logging.getLogger(__name__)

LOOKS = 4
"""How often a kernel is looked at in the time after which it sleeps."""
MOST_PAUSE = 15.0
BUSY = 0.01
"""The share of one processor with which a kernel counts as doing something."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a kernel found: at `moment` it had used so many seconds of a processor."""

    kernel: Kernel
    group: ControlGroup
    moment: float
    used: float


class SleepWatch:
    """`start` it with the gateway, `close` it before the sessions. `after`: seconds; with 0 nobody sleeps."""

    def __init__(self, sessions: Callable[[], Iterable[Session]], after: float, lane: Lane) -> None:
        self._sessions = sessions
        self._after = after
        self._lane = lane
        self._tasks = Supervisor()
        self._looks: dict[str, _Look] = {}

    def start(self) -> None:
        """Start looking, if anybody is to sleep at all."""
        if self._after > 0:
            pause = min(self._after / LOOKS, MOST_PAUSE)
            self._tasks.repeat(self.look, "sleep", pause=pause)

    async def close(self) -> None:
        """Stop looking. Kernels that sleep sleep on."""
        await self._tasks.cancel()

    async def look(self) -> float:
        """Let all kernels fall asleep that may; returns the seconds until the next look."""
        looks: dict[str, _Look] = {}
        for session in tuple(self._sessions()):
            kernel = session.kernel
            if kernel is None or not self._is_unused(session, kernel):
                continue
            found = await self._lane.run(_look_at, kernel, asyncio.get_running_loop().time())
            if found is None:
                continue
            before = self._looks.get(kernel.id)
            looks[kernel.id] = found
            # While it was looked at, somebody may have come.
            if before is not None and _is_at_rest(before, found) and self._is_unused(session, kernel):
                asleep = await kernel.sleep(found.group, self._lane)
                logger.debug("Kernel %s %s", kernel.id, "sleeps" if asleep else "was woken at once")
        self._looks = looks
        return min(self._after / LOOKS, MOST_PAUSE)

    def _is_unused(self, session: Session, kernel: Kernel) -> bool:
        """Whether a kernel that is awake has had nothing to do for long enough."""
        idle_since = session.idle_since
        if idle_since is None or session.ending or not kernel.alive or kernel.asleep:
            return False
        quiet_since = max(idle_since, kernel.connection.received_at)
        return asyncio.get_running_loop().time() - quiet_since >= self._after


def _look_at(kernel: Kernel, moment: float) -> _Look | None:
    """Blocking. None for a kernel that can't sleep here."""
    group = kernel.control_group()
    if group is None:
        return None
    try:
        return _Look(kernel, group, moment, group.processor_seconds())
    except OSError as error:
        logger.debug("Kernel %s can't be looked at: %s", kernel.id, error)
        return None


def _is_at_rest(before: _Look, now: _Look) -> bool:
    passed = now.moment - before.moment
    return before.kernel is now.kernel and passed > 0 and now.used - before.used < BUSY * passed
