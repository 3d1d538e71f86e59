"""Syncs commits to the disk soon after they are made, so that a power failure costs at most a second.

Only a separate thread waits for the disk. Rows in the redo log are overwritten only after the database's log
that holds them is on the disk. Not used with ``--journal-sync full``, where each commit is on the disk before
it is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cellgate.errors import StorageError
from cellgate.record.store.backlog import tell
from cellgate.record.store.sqlite.redo import RedoLog
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.tasks import guarded

logger = logging.getLogger(__name__)

SYNC_SECONDS = 0.5
"""Time from a commit to the sync that includes it, when none is running."""


class Syncer:
    """The syncer of one journal. `in_tables` returns the number up to which the tables have all commits."""

    def __init__(self, record: Path, redo: RedoLog, in_tables: Callable[[], int]) -> None:
        self._record = record
        self._redo = redo
        self._in_tables = in_tables
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record-sync")
        self.timer: asyncio.TimerHandle | None = None
        """The next sync, once it is scheduled."""
        self._running = False
        self._again = False
        self._waiters: list[asyncio.Future[None]] = []
        self._failed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def soon(self) -> None:
        """Schedule a sync, after a commit."""
        if self.timer is None and not self._closed:
            self.timer = self._loop.call_later(SYNC_SECONDS, guarded(self.now, "sync of the record"))

    def now(self) -> None:
        """Sync at once, or as soon as the running sync has ended."""
        self._cancel_timer()
        if self._closed:
            return
        if self._running:
            self._again = True
            return
        self._running = True
        self._again = False
        self._idle.clear()
        waiters = self._waiters
        self._waiters = []
        number = self._in_tables()
        guarded_synced = guarded(self._synced, "end of a sync", lambda _: self._give_up(waiters))
        running = self._thread.submit(sync_files, self._redo.descriptor, self._record)
        running.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(guarded_synced, done, number, waiters)
        )

    async def done(self) -> None:
        """Return when commits are on disk and, if possible, the log is overwritten. Raises StorageError."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        self.now()
        await waiter

    def _synced(self, done: Future[None], number: int, waiters: list[asyncio.Future[None]]) -> None:
        self._running = False
        error: StorageError | None = None
        try:
            done.result()
        except OSError as failure:
            error = StorageError(f"The disk does not keep the record: {in_brief(failure)}")
            if not self._failed:
                logger.error("%s", error)
            self.soon()
        else:
            self._redo.rewind(number)
        self._failed = error is not None
        tell(waiters, error)
        self._idle.set()
        if self._again:
            self.now()

    def _give_up(self, waiters: Iterable[asyncio.Future[None]]) -> None:
        """End all waiting after an internal error; the next commit tries again."""
        tell(waiters, StorageError("The record could not be synced; the log says why"))
        self._idle.set()

    async def close(self) -> None:
        """Wait for the running sync and start no more. May be called again."""
        self._closed = True
        self._cancel_timer()
        await self._idle.wait()
        tell(self._waiters, StorageError("The record is closed"))
        self._waiters.clear()
        self._thread.shutdown()

    def _cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def sync_files(redo: int | None, record: Path) -> None:
    """Sync all commits: the tables, the log, and the rows that went from it into the tables.

    Raises OSError. Waits for the disk, so it must not run on the event loop.
    """
    try:
        # SQLite locks other files than this one, so closing it releases none of its locks.
        wal = os.open(record.with_name(record.name + "-wal"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        wal = None
    try:
        if wal is not None:
            # Logged rows may follow rows of a transaction that the log never had.
            os.fdatasync(wal)
        if redo is not None:
            os.fdatasync(redo)
            if wal is not None:
                os.fdatasync(wal)
    finally:
        if wal is not None:
            os.close(wal)
