"""Records that a session's record lacks its last events, since its database went back to an older state.

``fences`` ends such a session here. What is recorded of it afterwards is its end, with a cause that its next
results, exports and other gateways of the cluster show: no events follow on the older ones as if none were
missing. A session that is missing altogether gets a record of its end alone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import structs

from cellgate.errors import NotRecorded, OwnedElsewhere, StorageError
from cellgate.record.rows import SessionRow
from cellgate.sessions.takeover import LostBy, end_session
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor

if TYPE_CHECKING:
    from cellgate.sessions.opener import SessionOpener
    from cellgate.sessions.session import Session

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""Seconds between attempts to record a loss, in which requests for the session wait."""
TOLD_AFTER = 60
"""Attempts after which the failure is logged."""


class SetBackRecords:
    """Marks the records of sessions that `opener` has opened. `tasks`: the registry's."""

    def __init__(self, opener: SessionOpener, tasks: Supervisor) -> None:
        self._opener = opener
        self._tasks = tasks

    def mark_once_over(self, session: Session) -> None:
        """Mark the record of a session that is ending, in the background; its key stays taken until then."""
        row = session.row
        if self._opener.keys.find((row.principal, row.key)).removed_by is None:
            self._tasks.start(self._mark(session), f"mark {row.key}", session=row.key)

    async def _mark(self, session: Session) -> None:
        row = session.row
        ids = {"principal": row.principal, "session": row.key}
        with self._opener.keys.removing((row.principal, row.key)):
            await asyncio.wait([session.over])
            tries = 0
            # Whoever opened the session before it is marked would go on from the older state.
            while (failure := await self._try_to_mark(row)) is not None:
                tries += 1
                final = self._opener.keys.closing or isinstance(failure, OwnedElsewhere | NotRecorded)
                if final or tries == TOLD_AFTER:
                    logger.error(
                        "The loss of a session's events could not be recorded: %s", failure.message, extra=ids
                    )
                if final:
                    return
                # After a restart of the database it takes a beat until a node of a cluster may claim keys.
                await asyncio.sleep(PAUSE_SECONDS)
        logger.warning("The record lacks the last events of a session, and says so now", extra=ids)

    async def _try_to_mark(self, row: SessionRow) -> CellgateError | None:
        """Return why the record could not be marked, or None."""
        try:
            if not await self._opener.claim_set_back((row.principal, row.key)):
                await self._begin_again(row)
        except (OwnedElsewhere, StorageError) as error:
            return error
        return None

    async def _begin_again(self, row: SessionRow) -> None:
        """Record the end of a session whose whole record is missing, under a new id."""
        journal = self._opener.journal
        with suppress(NotRecorded):
            # The former id counts no longer as a session that is not recorded.
            await journal.claim(row.id)
        session_id = await journal.begin_session(row.principal, row.key)
        found = structs.replace(row, id=session_id, execution_count=0, parent=0, branched_from=None)
        log = self._opener.new_log(found)
        end_session(found, log, LostBy.RECORD_SET_BACK)
        await log.commit()
