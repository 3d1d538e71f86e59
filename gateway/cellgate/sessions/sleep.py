"""Puts the kernels of idle sessions to sleep, by a rule that operators can state.

A kernel sleeps if, for as long as the setting says, nobody used its session, no Jupyter client was connected,
it sent nothing, and its processes did next to nothing. So a thread that prints or computes is left alone; a
timer that only waits is not noticed, and fires when the kernel is woken. Any message to a kernel wakes it
(``cellgate_kernels.kernel.asleep``); this module only wakes a kernel that has lost a process in its sleep.
Sessions that sleep at the end of their idle time are the business of ``sleepers``.
Kernels that share a sandbox, branches and their parents, stay awake.

One task looks at all sessions and lets kernels fall asleep one after the other, because they share the disk
for their memory. It starts and ends no kernel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.limits.control_group import ControlGroup

logger = logging.getLogger(__name__)

LOOKS = 4
"""Looks at a kernel in the time after which it sleeps."""
MOST_PAUSE = 15.0
BUSY = 0.01
"""The share of one processor above which a kernel is busy."""
SHORTEST = 1.0
"""Least seconds between two compared looks: in less, a busy kernel may not have had its turn."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A measurement of a kernel: by `moment` it had used so many seconds of a processor."""

    kernel: Kernel
    group: ControlGroup
    moment: float
    used: float


class SleepWatch:
    """Puts kernels to sleep after `after` seconds (0: never; None: only those wake that others put to sleep).

    `close` it before the sessions.
    """

    def __init__(self, sessions: Callable[[], Iterable[Session]], after: float | None, lane: Lane) -> None:
        self._sessions = sessions
        self._after = after or 0.0
        self._pause = min(after / LOOKS, MOST_PAUSE) if after else MOST_PAUSE
        self._wakes = after is None or after > 0
        self._lane = lane
        self._tasks = Supervisor()
        self._looks: dict[str, _Look] = {}
        self._without: set[str] = set()
        self._told = False

    def start(self) -> None:
        """Start looking, unless the setting is off."""
        if self._after > 0:
            self._tasks.repeat(self.look, "sleep", pause=self._pause)
        if self._wakes:
            # In a task of its own: a large kernel may take minutes to fall asleep.
            self._tasks.repeat(self.wake_disturbed, "disturbed sleep", pause=self._pause)

    async def close(self) -> None:
        """Stop looking. Sleeping kernels sleep on."""
        await self._tasks.cancel()

    async def look(self) -> float:
        """Let all kernels that may sleep fall asleep; return the seconds until the next look."""
        looks: dict[str, _Look] = {}
        without: set[str] = set()
        for session in tuple(self._sessions()):
            kernel = session.kernel
            if kernel is None or not self._is_unused(session, kernel):
                continue
            if kernel.shares_sandbox_with:
                # Such a kernel never has a control group to itself: nothing that operators could change.
                continue
            found = await self._lane.run(_look_at, kernel, asyncio.get_running_loop().time())
            if found is None:
                without.add(kernel.id)
                continue
            before = self._looks.get(kernel.id)
            if before is not None and before.kernel is kernel and found.moment - before.moment < SHORTEST:
                looks[kernel.id] = before
                continue
            looks[kernel.id] = found
            # A client may have come during the look.
            if before is not None and _is_at_rest(before, found) and self._is_unused(session, kernel):
                asleep = await kernel.sleep(found.group, self._lane)
                logger.debug("Kernel %s %s", kernel.id, "sleeps" if asleep else "was woken at once")
        # A kernel that has just ended has no control group either.
        if without & self._without:
            self._tell_once()
        self._looks, self._without = looks, without
        return self._pause

    async def wake_disturbed(self) -> float:
        """Wake all kernels that have lost a process; return the seconds until the next look."""
        for session in tuple(self._sessions()):
            kernel = session.kernel
            if kernel is not None and kernel.asleep and await self._lane.run(kernel.is_disturbed):
                kernel.wake()
        return self._pause

    def _tell_once(self) -> None:
        """Log once that the setting has no effect here."""
        if not self._told:
            self._told = True
            logger.warning(
                "Kernels do not sleep (sleep_after) if they have no control groups of their own that this"
                " gateway may write. Forked kernels in sandboxes, and kernels in containers on this machine,"
                " have them if the gateway has the right to it; see cellgate doctor"
            )

    def _is_unused(self, session: Session, kernel: Kernel) -> bool:
        """Return whether an awake kernel has been unused for long enough."""
        idle_since = session.idle_since
        if idle_since is None or session.ending or not kernel.alive or kernel.asleep:
            return False
        quiet_since = max(idle_since, kernel.connection.received_at)
        return asyncio.get_running_loop().time() - quiet_since >= self._after


def _look_at(kernel: Kernel, moment: float) -> _Look | None:
    """Measure a kernel; None if it can't sleep here. Blocking."""
    group = kernel.control_group()
    if group is None:
        return None
    try:
        return _Look(kernel, group, moment, group.processor_seconds())
    except OSError as error:
        logger.debug("Kernel %s can't be looked at: %s", kernel.id, in_words(error))
        return None


def _is_at_rest(before: _Look, now: _Look) -> bool:
    passed = now.moment - before.moment
    return before.kernel is now.kernel and now.used - before.used < BUSY * passed
