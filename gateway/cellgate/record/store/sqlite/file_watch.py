"""Watches whether the files of a record in use are removed, and logs the consequences."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from cellgate.errors import StorageError
from cellgate.record.store.backlog import Failures
from cellgate.record.store.sqlite import schema
from cellgate.record.store.sqlite.record_files import RecordFiles
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
"""Seconds between checks that the record's files are still ours."""


class FileWatch:
    """The watch of one journal. `stored` returns once all committed rows are in the tables."""

    def __init__(self, files: RecordFiles, failures: Failures, stored: Callable[[], Awaitable[None]]) -> None:
        self._files = files
        self._failures = failures
        self._stored = stored
        self._lock_is_missed = self._is_blind = False

    def start(self, tasks: Supervisor) -> None:
        """Watch until these tasks are cancelled."""
        tasks.repeat(self._watch, "watch the record's files", pause=WATCH_SECONDS)

    async def _watch(self) -> float:
        """Check that nobody has removed the files; returns the seconds until the next check."""
        try:
            await self._look()
        except OSError as error:
            # This proves nothing about the files: a network file system may just not answer.
            if not self._is_blind:
                path, why = self._files.path, in_words(error)
                logger.error("The files of the record %s can't be looked at for now: %s", path, why)
            self._is_blind = True
        else:
            self._is_blind = False
        return WATCH_SECONDS

    async def _look(self) -> None:
        if self._failures.broken is not None:
            return
        path, lock, redo = self._files.path, self._files.lock, self._files.redo
        if not lock.record_is_ours:
            logger.critical("The record %s was removed or replaced while it is in use", path)
            why = StorageError(f"The record {path} was removed or replaced; start the gateway again")
            self._failures.stop(why)
        elif not lock.is_ours and not self._lock_is_missed:
            self._lock_is_missed = True
            logger.error("The lock file of the record %s was removed while it is in use", path)
        if redo.usable and not redo.is_ours:
            logger.error("The redo log of %s was removed; each commit is a transaction now", path)
            redo.retire()
            await self._forget_log()

    async def _forget_log(self) -> None:
        """Note, once all rows are in the tables, that the next start need not expect a log."""
        try:
            await self._stored()
            await self._files.writer.run(schema.expect_log, None)
        except StorageError as error:
            logger.error("The next start will miss the redo log: %s", error.message)
