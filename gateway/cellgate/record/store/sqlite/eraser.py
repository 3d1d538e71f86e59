"""Carries out purges: first in the tables, then in the redo log and in the database's log.

A purge has begun before it gets here (``purge.begin``): the session is already invisible. This module does
the rest in the background, however many purges there are, without delaying other writers: rows are removed in
short steps between the groups of other sessions, and the database's log is truncated when nobody reads it, by
a connection that waits for nobody. Unfinished purges go on at the gateway's next start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from cellgate.errors import StorageError
from cellgate.record.store.backlog import tell
from cellgate.record.store.interface import Purge
from cellgate.record.store.sqlite import purge, schema
from cellgate.record.store.sqlite.database import Database
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor

T = TypeVar("T")

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
TELL_SECONDS = 60.0
REMOVING = "remove purged rows"
ERASING = "erase purged rows"


class Eraser:
    """The eraser of one journal. `out_of_log` returns when the redo log holds no commit up to a number.

    `ended` is called for each session that is completely erased.
    """

    def __init__(
        self,
        record: Path,
        writer: Database,
        out_of_log: Callable[[int], Awaitable[None]],
        ended: Callable[[int], None],
    ) -> None:
        self._record = record
        self._writer = writer
        self._out_of_log = out_of_log
        self._ended = ended
        self._tasks = Supervisor(lambda: {"record": str(record)}, self._failed)
        self._to_remove: deque[Purge] = deque()
        self._to_erase: list[Purge] = []
        self._removing = False
        self._erasing = False

    def add(self, session_id: int, number: int) -> Purge:
        """Erase the rest of a session whose last commits have numbers up to `number`."""
        loop = asyncio.get_running_loop()
        purged = Purge(session_id, number, loop.create_future(), loop.create_future())
        for future in (purged.removed, purged.erased):
            # The futures may have no waiter: asyncio would otherwise log an unretrieved exception.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._to_remove.append(purged)
        if not self._removing:
            self._removing = True
            self._tasks.start(self._remove_all(), REMOVING)
        return purged

    async def _remove_all(self) -> None:
        while self._to_remove:
            purged = self._to_remove[0]
            await self._until_done(self._remove, purged)
            self._to_remove.popleft()
            tell((purged.removed,), None)
            self._to_erase.append(purged)
            if not self._erasing:
                self._erasing = True
                self._tasks.start(self._erase_all(), ERASING)
        self._removing = False

    async def _erase_all(self) -> None:
        while self._to_erase:
            some = self._to_erase.copy()
            await self._until_done(self._erase, some)
            del self._to_erase[: len(some)]
            for purged in some:
                self._ended(purged.session_id)
                tell((purged.erased,), None)
        self._erasing = False

    async def _until_done(self, step: Callable[[T], Awaitable[None]], what: T) -> None:
        """Retry `step` until it succeeds, with growing pauses."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await step(what)
            except StorageError as error:
                if pause == FIRST_PAUSE:
                    logger.error("Purged records could not be erased for now: %s", error.message)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _remove(self, purged: Purge) -> None:
        more = True
        while more:
            # Groups of other sessions go in between.
            more = await self._writer.run(purge.remove_some, purged.session_id)

    async def _erase(self, some: list[Purge]) -> None:
        await self._out_of_log(max(purged.number for purged in some))
        await self._empty_log()
        await self._writer.run(purge.end, [purged.session_id for purged in some])

    async def _empty_log(self) -> None:
        """Truncate the database's log, once its current readers are done."""
        pause = FIRST_PAUSE
        begun = time.monotonic()
        warned = False
        database = Database("record-eraser")
        try:
            # The connection can write, and never waits for another one.
            await database.open(lambda: schema.open_reader(self._record, "rw", 0.0))
            while not await database.run(purge.empty_log):
                if not warned and time.monotonic() - begun > TELL_SECONDS:
                    warned = True
                    logger.warning("Purged bytes wait for a reader of the database's log to end")
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            await database.close()

    def _failed(self, name: str, error: Exception) -> None:
        """Go on with further purges after an internal error; the next start continues these."""
        why = StorageError(f"Purged records could not be erased: {in_words(error)}")
        if name == REMOVING:
            self._removing = False
            self._give_up(self._to_remove, why)
        else:
            self._erasing = False
            self._give_up(self._to_erase, why)

    @staticmethod
    def _give_up(waiting: deque[Purge] | list[Purge], error: StorageError) -> None:
        for purged in waiting:
            tell((purged.removed, purged.erased), error)
        waiting.clear()

    async def close(self) -> None:
        """Stop; the record has the unfinished purges. May be called again."""
        await self._tasks.cancel()
        closed = StorageError("The record is closed; the next gateway erases what was purged")
        self._give_up(self._to_remove, closed)
        self._give_up(self._to_erase, closed)
