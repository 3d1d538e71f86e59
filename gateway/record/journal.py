"""The record's journal: takes rows without waiting and commits them in groups; `Queries` reads them back.

A row is enqueued in microseconds and waits in memory, bounded by `pending_bytes`, until somebody calls
`commit` or a moment has passed. A small group is committed at once, by the redo log (``redo``); a thread
writes what has gathered there into the tables, by the SQL of ``schema``. A group that is too large for the
log, and with sync "full" every group, is committed by that thread's transaction. A group that could not be
written is kept and tried again, so that a full disk costs waiting, not rows. What the rows mean is not known
here. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from gateway.record import redo, schema, trail, upkeep
from gateway.record.backlog import Backlog
from gateway.record.database import Database, has_room, lock
from gateway.record.errors import StorageError, StorageFull
from gateway.record.group import Group
from gateway.record.queries import Queries
from gateway.record.redo import RedoLog
from gateway.record.rows import EventRow, ExecutionRow, SessionRow
from gateway.record.schema import Sync
from kernels.limits import MIB

__all__ = ["EventRow", "ExecutionRow", "Journal", "SessionRow", "Sync"]

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.05
"""How long rows that nobody waits for may lie in memory."""
APPLY_SECONDS = 0.5
"""How long rows may be in the redo log and not in the tables: the longer, the more go there at one go."""
ALWAYS_TAKEN = frozenset({"session", "started", "finished"})
FLUSH_BYTES = MIB
RETRY_SECONDS = 1.0
ROW_COST = 384
"""Bytes that a row takes in memory besides its body."""


class Journal(Queries):
    """The rows of all sessions in one file. Made by `open`; `close` it in the end."""

    def __init__(
        self,
        path: Path,
        lock: int,
        writer: Database,
        reader: Database,
        redo_log: RedoLog,
        last_id: int,
        bound: int,
        room_left: Callable[[], bool],
    ) -> None:
        super().__init__(path, reader)
        self._lock = lock
        self._room_left = room_left
        self._writer = writer
        self._redo = redo_log
        self._last_id = last_id
        self._bound = bound
        self._backlog = Backlog()
        self._purges = 0
        self._failure: StorageError | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._wanted = False
        self._landed = asyncio.Event()
        self._landed.set()
        self._broken: StorageError | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._apply_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls, path: Path, *, sync: Sync = "normal", pending_bytes: int = 64 * MIB, reserve: int = 0
    ) -> Journal:
        """Open or make the record at `path`, which no other process may have open.

        With `sync` "normal" a commit outlives any end of the gateway, with "full" one of the machine too.
        About `pending_bytes` of rows may wait in memory. With less than `reserve` bytes free on the disk,
        nothing new is to be begun: what runs then still has room for its end.

        Raises StorageError for a folder in use, a file of a newer schema and a file that is no record.
        """
        held = lock(path)
        writer, reader = Database("record-writer"), Database("record-reader")
        try:
            await writer.open(lambda: schema.open_writer(path, sync))
            await reader.open(lambda: schema.open_reader(path))
            log = redo.beside(path)
            number = await writer.run(redo.recover, log)
            last_id = await reader.run(schema.last_session_id)
            left = partial(has_room, path.parent, reserve)
            make = RedoLog.create if sync == "normal" else RedoLog.without
            redo_log = await asyncio.to_thread(make, log, number)
            return cls(path, held, writer, reader, redo_log, last_id, pending_bytes, left)
        except BaseException:
            await reader.close()
            await writer.close()
            os.close(held)
            raise

    # ---- writing ------------------------------------------------------------------------------------------

    def new_session_id(self) -> int:
        """An id that no session ever had."""
        self._last_id += 1
        return self._last_id

    def save_session(self, row: SessionRow) -> None:
        """Enqueue the session's row; it replaces an earlier one. Its dicts must not change afterwards."""
        self._check_open()
        self._backlog.enqueued.sessions[row.id] = row
        self._write_soon()

    def save_execution(self, row: ExecutionRow) -> None:
        """Enqueue the execution's row; of an earlier one it replaces `last_seq` and `status`."""
        self._check_open()
        self._backlog.enqueued.executions[row.session_id, row.id] = row
        self._write_soon()

    def append(self, row: EventRow) -> None:
        """Enqueue an event; its session must be saved before the loop's next turn.

        Raises StorageFull, and keeps nothing of the row, when `pending_bytes` of rows wait already; but what
        says how a session or an execution goes on is always taken: it is small and bounded by their number.
        """
        self._check_open()
        backlog = self._backlog
        if backlog.size >= self._bound and row.type not in ALWAYS_TAKEN:
            raise StorageFull(
                "Too much waits to be written to the record; the disk takes nothing, or not enough"
            )
        size = len(row.body) + ROW_COST
        backlog.enqueued.events.append(row)
        backlog.enqueued.size += size
        backlog.size += size
        if self.full:
            self._has_room.clear()
        if backlog.enqueued.size >= FLUSH_BYTES and self.healthy:
            self._write_next()
        else:
            self._write_soon()

    async def commit(self) -> None:
        """Return when all that was enqueued before this call is committed; mostly that is at once.

        Raises StorageError when it could not be written now. It stays enqueued and is tried again, by the
        next `commit` or after a second.
        """
        if not self._log():
            await self._landing_of(self._backlog.uncommitted)

    async def applied(self) -> None:
        """Return when all that is committed is in the tables. Raises StorageError when that can't be now."""
        if not self._backlog.committed.empty:
            await self._landing_of(self._backlog.committed)

    async def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """The newest execution requested under the idempotency key, however old.

        It is asked for before each cell of some clients, so nothing is brought into the tables for it.
        """
        row = self._backlog.execution_by_key(session_id, idempotency_key)
        return row or await self._reader.run(schema.execution_by_key, session_id, idempotency_key)

    async def _landing_of(self, group: Group) -> None:
        if self._broken is not None:
            raise self._broken
        waiter = self._loop.create_future()
        group.waiters.append(waiter)
        if group is not self._backlog.writing:
            self._write_next()
        await waiter

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory that are not in the tables yet."""
        return self._backlog.size

    def check_writable(self) -> None:
        """Raises StorageError while the last group could not be written, or the disk is nearly full."""
        if self._failure is not None:
            raise self._failure
        if not self._room_left():
            raise StorageFull(
                "There is too little space left for the record; free some on the disk of the data folder"
            )

    @property
    def writable(self) -> bool:
        """Whether `check_writable` raises nothing."""
        return self.healthy and self._room_left()

    @property
    def full(self) -> bool:
        """Whether half of what may wait does: time to hold back those who append."""
        return self._backlog.size * 2 >= self._bound

    @property
    def healthy(self) -> bool:
        """Whether the last group was written."""
        return self._failure is None

    async def room(self) -> None:
        """Return when the journal is not `full`, however long the storage takes; also when it is closed."""
        await self._has_room.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("The record is closed")

    def _write_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if not self._log():
            self._write()

    def _retry(self) -> None:
        self._flush_timer = None
        self._write()

    def _cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _cancel_apply(self) -> None:
        if self._apply_timer is not None:
            self._apply_timer.cancel()
            self._apply_timer = None

    def _log(self) -> bool:
        """Commit what is enqueued by the redo log; whether nothing is left to commit, since it may not do."""
        backlog = self._backlog
        if backlog.uncommitted.empty:
            return True
        logs = self.healthy and not self._purges and backlog.may_be_logged
        if not logs or not self._redo.append(backlog.enqueued):
            return False
        self._cancel_flush()
        backlog.log()
        if self._redo.crowded or self.full:
            self._write_next()
        elif self._apply_timer is None:
            self._apply_timer = self._loop.call_later(APPLY_SECONDS, self._write)
        return True

    def _write_next(self) -> None:
        """At the loop's next turn, so that what this one enqueues stays together, of all sessions."""
        if not self._wanted:
            self._wanted = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        """Hand the writer what is to go into the tables, or do it as soon as it has written what it has."""
        backlog = self._backlog
        self._wanted = not backlog.writing.empty
        if self._wanted or self._broken is not None:
            return
        group = backlog.take()
        if group.empty:
            return
        if backlog.writing_logged:
            self._cancel_apply()
            self._redo.switch()
        else:
            self._cancel_flush()
            group.number = self._redo.count()
        self._landed.clear()
        self._writer.start(self._written, schema.write, group)

    def _written(self, written: Future[list[str]]) -> None:
        backlog = self._backlog
        try:
            refused = written.result()
        except StorageError as error:
            self._failed(error)
        except BaseException:
            self._stop(StorageError("The record's writer has stopped"))
            raise
        else:
            self._failure = None
            self._redo.rewind(wholly=backlog.logged.empty)
            self._settle(backlog.land(), refused)
            if not self.full:
                self._has_room.set()
        finally:
            self._landed.set()
        if backlog.enqueued.waiters:
            self._log()
        if self._wanted or backlog.waited_for:
            self._write()
        elif not backlog.enqueued.empty:
            self._write_soon()

    def _settle(self, group: Group, refused: list[str]) -> None:
        error = StorageError(f"The record refused rows: {'; '.join(refused)}") if refused else None
        if error is not None:
            logger.error("%s", error)
        group.settle(error)

    def _failed(self, error: StorageError) -> None:
        if self.healthy:
            logger.error("The record can't be written for now: %s", error)
        self._failure = error
        self._wanted = False
        self._backlog.settle(error)
        self._backlog.put_back()
        self._cancel_flush()
        self._flush_timer = self._loop.call_later(RETRY_SECONDS, self._retry)

    def _stop(self, why: StorageError) -> None:
        """Nothing can be written any more: closed, or the writer failed by a mistake of ours."""
        self._failure = self._broken = why
        self._backlog.settle(why)

    async def close(self) -> None:
        """Write what is enqueued and close the file. May be called again.

        Raises StorageError when that can't be; what was committed is there at the next start all the same.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close record")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._closed = True
        self._has_room.set()
        try:
            await self.commit()
            await self.applied()
        finally:
            self._cancel_flush()
            self._cancel_apply()
            await self._landed.wait()
            self._stop(StorageError("The record is closed"))
            await self._reader.close()
            await self._writer.close()
            self._redo.close()
            os.close(self._lock)

    async def purge(self, session_id: int, *, by: str, reason: str) -> bool:
        """Remove the record of a session that has ended, but for a tombstone. Raises StorageError."""
        await self.commit()
        # What is purged may still be in the log. It is overwritten once all of that is in the tables.
        self._purges += 1
        try:
            await self.applied()
            return await self._writer.run(trail.purge, session_id, by=by, reason=reason)
        finally:
            self._purges -= 1

    async def overdue(self, before: str | None, most_bytes: int | None) -> tuple[SessionRow, str] | None:
        """The ended session whose record should go first, and why; see `upkeep.overdue`."""
        await self.commit()
        await self.applied()
        return await self._writer.run(upkeep.overdue, before, most_bytes)
