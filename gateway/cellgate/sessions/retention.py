"""Removes the records of ended sessions when they are too old or take too much space.

One task checks at intervals. Each removal is a purge with a tombstone, done by ``purger`` so that nobody can
open the session at the same time. Each gateway removes the sessions whose files it has, and those of
gateways that are gone. Records age by ``proven_time``, because the wall clock may be wrong for a minute.
Without limits there is no task.
"""

from __future__ import annotations

import logging

from cellgate.errors import Conflict, Fenced, NotFound, OwnedElsewhere
from cellgate.record.store.interface import RecordStore
from cellgate.sessions.proven_time import ProvenTime, in_rfc3339, moment_of
from cellgate.sessions.purger import SessionPurger
from cellgate.sessions.settings import RetentionSettings
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 1000


class Retention:
    """Runs the checks. `start` it once the registry has recovered, `close` it before the journal."""

    def __init__(
        self,
        journal: RecordStore,
        purger: SessionPurger,
        settings: RetentionSettings,
        clock: ProvenTime,
        lane: Lane,
    ) -> None:
        self._journal = journal
        self._purger = purger
        self._settings = settings
        self._clock = clock
        self._newest = moment_of(journal.former_activity)
        self._lane = lane
        self._tasks = Supervisor()
        self.unproven_leaps = 0

    def start(self) -> None:
        """Start checking, if there is a limit."""
        if self._settings.age is not None or self._settings.size is not None:
            self._tasks.repeat(self._look_once, "retention", pause=self._settings.interval)

    async def close(self) -> None:
        """Stop checking; a purge in progress goes on."""
        await self._tasks.cancel()

    async def _look_once(self) -> float:
        """Check once; return the seconds until the next check."""
        try:
            removed = await self._look()
        except CellgateError as error:
            logger.error("Old records could not be removed for now: %s", error.message)
        else:
            if removed:
                logger.info("Removed the records of %d ended sessions", removed)
        return self._settings.interval

    async def _look(self) -> int:
        before = await self._before()
        count, elsewhere = 0, set[int]()
        while count + len(elsewhere) < MOST_AT_ONCE:
            found = await self._journal.overdue(before, self._settings.size, elsewhere)
            if found is None:
                break
            try:
                if not await self._purger.purge_ended(*found):
                    break
                count += 1
            except (OwnedElsewhere, Fenced, NotFound, Conflict):
                # Another gateway has this session or its files, opens it again just now, was first to purge
                # it, or the session was used in between.
                elsewhere.add(found[0].id)
        return count

    async def _before(self) -> str | None:
        """Return the time before which a session's last use is too old; None if no session is too old."""
        if self._settings.age is None:
            return None
        state = await self._lane.run(self._clock.look, self._newest)
        self.unproven_leaps = len(state.leaps)
        return None if state.proven is None else in_rfc3339(state.proven - self._settings.age)
