"""Removes the rows of purged sessions from PostgreSQL, in short steps between the commits of other sessions.

A purge has begun before it gets here: nobody sees the session any more. A purge that is unfinished when the
gateway ends goes on at its next start. What removed rows leave on the server's disk is up to its VACUUM.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from cellgate.errors import StorageError
from cellgate.record.store.backlog import tell
from cellgate.record.store.interface import Purge
from cellgate.record.store.postgresql import writes
from cellgate.record.store.postgresql.record_connection import RecordConnection
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class Remover:
    """The remover of one store. `ended` is called for each session of which no row is left."""

    def __init__(self, writer: RecordConnection, ended: Callable[[int], None]) -> None:
        self._writer = writer
        self._ended = ended
        self._tasks = Supervisor(lambda: {"record": "PostgreSQL"}, self._failed)
        self._waiting: deque[Purge] = deque()
        self._removing = False

    def add(self, session_id: int) -> Purge:
        """Remove what is left of a session."""
        loop = asyncio.get_running_loop()
        purged = Purge(session_id, 0, loop.create_future(), loop.create_future())
        for future in (purged.removed, purged.erased):
            # Nobody has to wait for them: asyncio would otherwise log an exception that nobody has retrieved.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append(purged)
        if not self._removing:
            self._removing = True
            self._tasks.start(self._remove_all(), "remove purged rows")
        return purged

    async def _remove_all(self) -> None:
        while self._waiting:
            purged = self._waiting[0]
            await self._remove(purged.session_id)
            self._waiting.popleft()
            self._ended(purged.session_id)
            tell((purged.removed, purged.erased), None)
        self._removing = False

    async def _remove(self, session_id: int) -> None:
        """Remove all rows of a session; while the storage fails, try again after growing pauses."""
        pause = FIRST_PAUSE
        more = True
        while more:
            try:
                # Groups of other sessions go in between.
                more = await self._writer.run(writes.remove_some, session_id)
                pause = FIRST_PAUSE
            except StorageError as error:
                if pause == FIRST_PAUSE:
                    logger.error("Purged records could not be erased for now: %s", error.message)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _failed(self, name: str, error: Exception) -> None:
        """Go on with further purges after an internal error; the next start continues these."""
        self._removing = False
        self._give_up(StorageError(f"Purged records could not be erased: {in_words(error)}"))

    def _give_up(self, error: StorageError) -> None:
        for purged in self._waiting:
            tell((purged.removed, purged.erased), error)
        self._waiting.clear()

    async def close(self) -> None:
        """Stop; the record notes the unfinished purges. May be called again."""
        await self._tasks.cancel()
        self._give_up(StorageError("The record is closed; the next gateway erases what was purged"))
