"""The record's journal: takes rows without waiting, writes them in groups, reads them back.

One thread writes and one reads, each with a connection of its own; the SQL they run is ``schema``'s. A row is
enqueued in microseconds; `commit` waits for its group's transaction. Until then rows wait in memory,
bounded by `pending_bytes`. A group that could not be written is kept and tried again, so that a full
disk costs waiting, not rows. What the rows mean is not known here. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from gateway.record import schema, trail, upkeep
from gateway.record.database import Database, has_room, lock
from gateway.record.errors import StorageError, StorageFull
from gateway.record.group import Group
from gateway.record.rows import EventRow, ExecutionRow, SessionRow
from gateway.record.schema import Sync
from kernels.limits import MIB

__all__ = ["EventRow", "ExecutionRow", "Journal", "SessionRow", "Sync"]

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.05
"""How long rows that nobody waits for may lie in memory."""
ALWAYS_TAKEN = frozenset({"session", "started", "finished"})
FLUSH_BYTES = MIB
RETRY_SECONDS = 1.0
LONG_READS = 4
"""Readings of whole sessions that go on at once; others wait."""
ROW_COST = 384
"""Bytes that a row takes in memory besides its body."""


class Journal:
    """The rows of all sessions in one file. Made by `open`; `close` it in the end.

    Reads see what is committed, not what is still enqueued.
    """

    def __init__(
        self,
        path: Path,
        lock: int,
        writer: Database,
        reader: Database,
        last_id: int,
        bound: int,
        room_left: Callable[[], bool],
    ) -> None:
        self._path = path
        self._lock = lock
        self._room_left = room_left
        self._writer = writer
        self._reader = reader
        self._last_id = last_id
        self._bound = bound
        self._pending = Group()
        self._writing = Group()
        self._failure: StorageError | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._long_reads = asyncio.Semaphore(LONG_READS)
        self._wanted = False
        self._in_flight = False
        self._landed = asyncio.Event()
        self._landed.set()
        self._broken: StorageError | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._timer: asyncio.TimerHandle | None = None
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
            last_id = await reader.run(schema.last_session_id)
            left = partial(has_room, path.parent, reserve)
            return cls(path, held, writer, reader, last_id, pending_bytes, left)
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
        self._pending.sessions[row.id] = row
        self._write_soon()

    def save_execution(self, row: ExecutionRow) -> None:
        """Enqueue the execution's row; of an earlier one it replaces `last_seq` and `status`."""
        self._check_open()
        self._pending.executions[row.session_id, row.id] = row
        self._write_soon()

    def append(self, row: EventRow) -> None:
        """Enqueue an event; its session must be saved before the loop's next turn.

        Raises StorageFull, and keeps nothing of the row, when `pending_bytes` of rows wait already; but what
        says how a session or an execution goes on is always taken: it is small and bounded by their number.
        """
        self._check_open()
        pending = self._pending
        if pending.size + self._writing.size >= self._bound and row.type not in ALWAYS_TAKEN:
            raise StorageFull(
                "Too much waits to be written to the record; the disk takes nothing, or not enough"
            )
        pending.events.append(row)
        pending.size += len(row.body) + ROW_COST
        if self.full:
            self._has_room.clear()
        if pending.size >= FLUSH_BYTES and self.healthy:
            self._write_next()
        else:
            self._write_soon()

    async def commit(self) -> None:
        """Return when all that was enqueued before this call is committed.

        Raises StorageError when it could not be written now. It stays enqueued and is tried again, by the
        next `commit` or after a second.
        """
        group = self._writing if self._pending.empty else self._pending
        if group.empty:
            return
        if self._broken is not None:
            raise self._broken
        waiter = self._loop.create_future()
        group.waiters.append(waiter)
        if group is self._pending:
            self._write_next()
        await waiter

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory that wait to be written."""
        return self._pending.size + self._writing.size

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
        return (self._pending.size + self._writing.size) * 2 >= self._bound

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
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._write)

    def _write_next(self) -> None:
        """At the loop's next turn, so that what this one enqueues stays together, of all sessions."""
        if not self._wanted:
            self._wanted = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        """Hand what is enqueued to the writer, or as soon as it has written what it has."""
        self._wanted = self._in_flight
        if self._in_flight or self._broken is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending.empty:
            return
        group, self._pending = self._pending, Group()
        self._writing, self._in_flight = group, True
        self._landed.clear()
        self._writer.start(
            self._written, schema.write, group.sessions.values(), group.executions.values(), group.events
        )

    def _written(self, written: Future[list[str]]) -> None:
        group, self._in_flight = self._writing, False
        try:
            refused = written.result()
        except StorageError as error:
            self._failed(group, error)
        except BaseException:
            self._stop(StorageError("The record's writer has stopped"))
            raise
        else:
            self._failure = None
            self._writing = Group()
            if not self.full:
                self._has_room.set()
            group.settle(StorageError(f"The record refused rows: {'; '.join(refused)}") if refused else None)
        finally:
            self._landed.set()
        if self._wanted or self._pending.waiters:
            self._write()

    def _failed(self, group: Group, error: StorageError) -> None:
        if self.healthy:
            logger.error("The record can't be written for now: %s", error)
        self._failure = error
        group.settle(error)
        group.absorb(self._pending)
        self._pending, self._writing = group, Group()
        if self._timer is None:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._write)

    def _stop(self, why: StorageError) -> None:
        """Nothing can be written any more: closed, or the writer failed by a mistake of ours."""
        self._failure = self._broken = why
        self._writing.settle(why)
        self._pending.settle(why)

    async def close(self) -> None:
        """Write what is enqueued and close the file. May be called again.

        Raises StorageError when something enqueued could not be written, and is lost.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close record")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._closed = True
        self._has_room.set()
        try:
            await self.commit()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._landed.wait()
            self._stop(StorageError("The record is closed"))
            await self._reader.close()
            await self._writer.close()
            os.close(self._lock)

    # ---- reading ------------------------------------------------------------------------------------------

    async def session(self, principal: str, key: str) -> SessionRow | None:
        """The session that the principal calls `key`."""
        return await self._reader.run(schema.session, principal, key)

    async def sessions(
        self,
        principal: str | None = None,
        states: Collection[str] | None = None,
        *,
        limit: int = 100,
        after: int = 0,
    ) -> list[SessionRow]:
        """Up to `limit` sessions with an id above `after`, by id; None: of all principals, in any state."""
        return await self._reader.run(schema.sessions, principal, states, limit, after)

    async def unfinished_sessions(self) -> list[SessionRow]:
        """All sessions that have not ended; at the start those that a former gateway left."""
        return await self._reader.run(schema.unfinished_sessions)

    async def execution(self, session_id: int, execution_id: str) -> ExecutionRow | None:
        """One execution."""
        return await self._reader.run(schema.execution, session_id, execution_id)

    async def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """The newest execution requested under the idempotency key, however old."""
        return await self._reader.run(schema.execution_by_key, session_id, idempotency_key)

    async def last_execution(self, session_id: int) -> ExecutionRow | None:
        """The newest execution; its `number` is how many there are."""
        return await self._reader.run(schema.last_execution, session_id)

    async def executions(self, session_id: int, *, limit: int = 100, after: int = 0) -> list[ExecutionRow]:
        """Up to `limit` executions with a number above `after`, in their order."""
        return await self._reader.run(schema.executions, session_id, limit, after)

    async def unfinished_executions(self, session_id: int) -> list[ExecutionRow]:
        """Executions that have not ended, in their order."""
        return await self._reader.run(schema.unfinished_executions, session_id)

    async def last_event(self, session_id: int) -> tuple[int, bytes] | None:
        """The sequence number and the hash of the last event."""
        return await self._reader.run(schema.last_event, session_id)

    async def events(
        self,
        session_id: int,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        max_bytes: int = MIB,
    ) -> list[EventRow]:
        """Events with `after` < seq <= `until`, in order.

        At most `limit`, and as many as have `max_bytes` of bodies together, but at least one if there is one.
        """
        return await self._reader.run(schema.events, session_id, after, until, limit, max_bytes)

    @asynccontextmanager
    async def long_read(self) -> AsyncIterator[Database]:
        """A connection and a thread of its own, for what reads whole sessions and may hold up nobody else."""
        async with self._long_reads:
            database = Database("record-export")
            try:
                await database.open(lambda: schema.open_reader(self._path))
                yield database
            finally:
                await database.close()

    async def purge(self, session_id: int, *, by: str, reason: str) -> bool:
        """Remove the record of a session that has ended, but for a tombstone. Raises StorageError."""
        await self.commit()
        return await self._writer.run(trail.purge, session_id, by=by, reason=reason)

    async def overdue(self, before: str | None, most_bytes: int | None) -> tuple[SessionRow, str] | None:
        """The ended session whose record should go first, and why; see `upkeep.overdue`."""
        await self.commit()
        return await self._writer.run(upkeep.overdue, before, most_bytes)

    async def event_batches(
        self, session_id: int, *, after: int = 0, until: int | None = None
    ) -> AsyncGenerator[list[EventRow], None]:
        """All events that `events` would give without its bounds, in batches of its size."""
        while batch := await self.events(session_id, after=after, until=until):
            yield batch
            after = batch[-1].seq
