"""The record's journal: accepts rows without waiting and commits them in groups; its `reads` read them.

A row is enqueued in microseconds and waits in memory (``backlog``) until `commit` is called or a moment has
passed. Rows are committed at once, by the redo log (``redo``); a thread later writes the logged rows into the
tables, with the SQL of ``schema``. If a session has too many rows for the log, that thread's transaction
commits them, as it does all rows with sync "full"; other sessions don't wait for it. Rows that could not be
written are kept and tried again, so a full disk costs time, not rows. A session whose rows the tables refuse
is no longer recorded, and its commits raise the reason; other sessions are not affected. The journal does not
know the rows' meaning. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path

from cellgate.errors import NotRecorded, StorageError, StorageFull
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow, storable
from cellgate.record.store.backlog import Backlog, Failures, Group, Room, cost
from cellgate.record.store.interface import FENCED, FIRST_EPOCH, Purge
from cellgate.record.store.sqlite import purge, schema, trail, upkeep
from cellgate.record.store.sqlite.eraser import Eraser
from cellgate.record.store.sqlite.file_watch import FileWatch
from cellgate.record.store.sqlite.location import wal_beside
from cellgate.record.store.sqlite.reads import Queries
from cellgate.record.store.sqlite.record_files import RecordFiles
from cellgate.record.store.sqlite.redo import MOST_BYTES, beside
from cellgate.record.store.sqlite.schema import Sync
from cellgate.record.store.sqlite.syncing import Syncer
from cellgate.record.trail import NewEntry
from cellgate_kernels.base.errors import GatewayFault
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.trees import free

__all__ = ["EventRow", "ExecutionRow", "Journal", "SessionRow", "Sync"]

FLUSH_SECONDS = 0.05
"""Seconds that rows without a waiter may stay in memory."""
APPLY_SECONDS = 0.5
"""Seconds that rows may be in the redo log but not in the tables: the longer, the larger the batches."""
FLUSH_BYTES = MIB
LOGGED_AT_ONCE = MOST_BYTES // 2
"""Bytes of rows in a frame of the redo log; the encoded frame is larger."""
RETRY_SECONDS = 1.0
MOST_REWINDS = 8


class GroupWriter:
    """Brings a backlog's rows into the redo log and the tables, and notifies the waiters of the outcome."""

    def __init__(self, files: RecordFiles, room: Room, failures: Failures) -> None:
        self._backlog = room.backlog
        self._room = room
        self._failures = failures
        self._redo = files.redo
        self._writer = files.writer
        self._in_tables = files.begun.number
        self._wanted = False
        self._landed = asyncio.Event()
        self._landed.set()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._apply_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        # An internal error on the way to a commit must reach the commit's waiters.
        guard = Supervisor(lambda: {"record": str(files.path)}, self._fault).guard
        self._guarded_flush = guard(self._flush, "flush of the record")
        self._guarded_write = guard(self._write, "write of the record")
        self._guarded_retry = guard(self._retry, "retry of the record")
        self._guarded_written = guard(self._written, "end of a write of the record")
        self.syncer = None if files.always_synced else Syncer(files.path, files.redo, lambda: self._in_tables)

    async def applied(self) -> None:
        """Return when all committed rows are in the tables. Raises StorageError if that fails now."""
        if not self._backlog.committed.empty:
            await self.landing_of(self._backlog.committed)

    async def landing_of(self, group: Group) -> None:
        """Return when a group has been written. Raises StorageError if that fails now."""
        self._failures.check()
        waiter = self._loop.create_future()
        group.waiters.append(waiter)
        if group is not self._backlog.writing:
            self.write_next()
        await waiter

    def write_soon(self) -> None:
        """Commit all rows in a moment."""
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._guarded_flush)

    def _flush(self) -> None:
        self._flush_timer = None
        self.log()
        if not self._backlog.held.empty:
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

    def log(self) -> None:
        """Commit the enqueued rows that the redo log accepts; hold the rest for a transaction."""
        backlog = self._backlog
        if backlog.enqueued.empty:
            return
        # A scheduled flush stays: canceling and rescheduling would cost every cell time.
        for part in backlog.take_enqueued(LOGGED_AT_ONCE):
            if self._log_part(part):
                continue
            # One of its sessions may be the cause; a single session needs no second attempt.
            sessions = part.by_session().values()
            for one in sessions:
                if len(sessions) == 1 or not self._log_part(one):
                    backlog.hold(one)
        if backlog.logged.empty:
            return
        if self._redo.crowded or 2 * self._room.pending_bytes >= self._room.limit:
            self.write_next()
        elif self._apply_timer is None:
            self._apply_timer = self._loop.call_later(APPLY_SECONDS, self._guarded_write)

    def _log_part(self, group: Group) -> bool:
        """Commit the group by the redo log; return whether that was possible."""
        if self._failures.failure is not None or not self._redo.append(group):
            return False
        self._backlog.log(group)
        if self.syncer is not None and self.syncer.timer is None:
            self.syncer.soon()
        return True

    def write_next(self) -> None:
        """Write at the loop's next turn, so that rows of all sessions from this turn stay together."""
        if not self._wanted:
            self._wanted = True
            self._loop.call_soon(self._guarded_write)

    def _write(self) -> None:
        """Give the writer the next group, or do so once it has finished the current one."""
        backlog = self._backlog
        self._wanted = not backlog.writing.empty
        if self._wanted or self._failures.broken is not None:
            return
        self.log()
        group = backlog.take()
        if group.empty:
            group.settle(None)  # the rows that they waited for are no longer recorded
            return
        self._cancel_apply()
        if backlog.writing_logged:
            self._redo.switch()
        else:
            self._cancel_flush()
            # The logged rows for which the timer was set are written next.
            self._wanted = not backlog.logged.empty
            # Only commits of the log have numbers: this group leaves the tables' number unchanged.
            group.number = self._in_tables
        self._landed.clear()
        refused, acknowledged = self._failures.refused.copy(), backlog.writing_logged
        self._writer.start(self._guarded_written, schema.write, group, refused, acknowledged=acknowledged)

    def _written(self, written: Future[dict[int, str]]) -> None:
        backlog = self._backlog
        try:
            refused = written.result()
        except StorageError as error:
            self._failed(error)
        else:
            self._failures.recovered()
            self._in_tables = backlog.writing.number
            for session_id, why in refused.items():
                self._failures.refuse(session_id, f"the record refused its rows ({why})")
            backlog.land().settle(None)
            self._room.wake()
            if self.syncer is not None:
                (self.syncer.now if self._redo.cramped else self.syncer.soon)()
        finally:
            self._landed.set()
        if self._wanted or backlog.waited_for:
            self._write()
        elif not (backlog.enqueued.empty and backlog.held.empty):
            self.write_soon()

    def _failed(self, error: StorageError) -> None:
        self._failures.fail(error)
        self._wanted = False
        self._backlog.put_back()
        self._cancel_flush()
        self._flush_timer = self._loop.call_later(RETRY_SECONDS, self._guarded_retry)

    def _fault(self, name: str, error: Exception) -> None:
        """Stop the writer after an internal error, which has been logged."""
        self._failures.stop(StorageError("The record's writer has stopped; the gateway's log says why"))

    async def out_of_log(self, number: int) -> None:
        """Return when the redo log holds no commit up to `number`. Raises StorageError if that fails."""
        for _ in range(MOST_REWINDS):
            if not self._redo.holds(number):
                return
            await self.applied()
            if self.syncer is not None:
                await self.syncer.done()
        raise StorageError("The redo log can't be overwritten")

    async def close(self) -> None:
        """Wait for the group in progress, and write nothing more."""
        self._cancel_flush()
        self._cancel_apply()
        await self._landed.wait()
        self._failures.stop(StorageError("The record is closed"))
        if self.syncer is not None:
            await self.syncer.close()


class Journal:
    """The rows of all sessions in one file. Create it with `open`, and `close` it at the end."""

    def __init__(self, files: RecordFiles, limit: int, reserve: int) -> None:
        path, begun = files.path, files.begun
        self._files = files
        self._disk_reserve = reserve
        self._last_id = begun.last_session
        self.former_activity = begun.last_activity
        self._backlog = Backlog()
        self._room = Room(self._backlog, limit)
        self.reserve, self.unreserve = self._room.reserve, self._room.unreserve
        self.full_for, self.room = self._room.full_for, self._room.wait
        self._failures = Failures(self._room, dict(begun.refused), set(begun.purges))
        self.refuse, self.failure_of = self._failures.refuse, self._failures.failure_of
        self._groups = GroupWriter(files, self._room, self._failures)
        self.applied = self._groups.applied
        self.reads = Queries(path, files.reader, self.applied)
        self.events = self.reads.events
        self._closing: asyncio.Task[None] | None = None
        self._tasks = Supervisor(lambda: {"record": str(path)})
        self._eraser = Eraser(path, files.writer, self._groups.out_of_log, self._failures.forget)
        for session_id in begun.purges:
            self._eraser.add(session_id, begun.number)

    @classmethod
    async def open(
        cls, path: Path, *, sync: Sync = "normal", pending_bytes: int = 64 * MIB, reserve: int = 0
    ) -> Journal:
        """Open or make the record at `path`, which no other process may have open.

        With `sync` "normal" a commit survives the end of the gateway at once and a crash of the machine after
        a second; with "full" it survives both at once. About `pending_bytes` of rows may wait in memory, plus
        a quarter of that for small rows. With less than `reserve` bytes free on the disk nothing new may be
        started, so that running work can finish.

        Raises StorageError for a folder in use, a newer schema, and a file that is not a record.
        """
        journal = cls(await RecordFiles.open(path, sync), pending_bytes, reserve)
        FileWatch(journal._files, journal._failures, journal.applied).start(journal._tasks)
        return journal

    # ---- writing ------------------------------------------------------------------------------------------

    def new_session_id(self) -> int:
        """Return an id that no session has ever had."""
        self._last_id += 1
        return self._last_id

    async def begin_session(self, principal: str, key: str) -> int:
        return self.new_session_id()

    async def claim(self, session_id: int) -> int:
        return FIRST_EPOCH

    def _takes(self, session_id: int, epoch: int) -> bool:
        """Return whether rows of this claim of a session are accepted. Raises StorageError after the end."""
        # Nobody else writes: the holder of the folder's lock has the only claim of each session.
        return self._failures.takes(session_id) and epoch == FIRST_EPOCH

    def save_session(self, row: SessionRow, *, epoch: int = FIRST_EPOCH) -> None:
        if not self._takes(row.id, epoch):
            return
        if not storable(row.execution_count):
            self.refuse(row.id, f"an execution count of {row.execution_count} can't be stored")
            return
        self._backlog.enqueued.sessions[row.id] = row
        self._groups.write_soon()

    def save_execution(self, row: ExecutionRow, *, epoch: int = FIRST_EPOCH) -> None:
        if not self._takes(row.session_id, epoch):
            return
        if not storable(row.number, row.first_seq, row.last_seq or 0):
            self.refuse(row.session_id, f"the numbers of execution {row.id} can't be stored")
            return
        self._backlog.enqueued.executions[row.session_id, row.id] = row
        self._groups.write_soon()

    def append(
        self, row: EventRow, *, principal: str = "", reserved: bool = False, epoch: int = FIRST_EPOCH
    ) -> None:
        """Enqueue an event, whose session must be saved before the loop's next turn."""
        if not self._takes(row.session_id, epoch):
            return
        if not reserved:
            self._room.take(row.type, cost(row), principal)
        backlog = self._backlog
        backlog.enqueue(row, principal)
        if backlog.enqueued.size + backlog.held.size >= FLUSH_BYTES and self._failures.failure is None:
            self._groups.write_next()
        # Needed then too: while a transaction is being written, the flush logs the rows of other sessions.
        self._groups.write_soon()

    async def commit(self, session_id: int | None = None, *, epoch: int | None = None) -> None:
        if epoch is not None and epoch != FIRST_EPOCH:
            raise NotRecorded(FENCED)
        if session_id is not None and (failure := self.failure_of(session_id)) is not None:
            raise failure
        self._groups.log()
        if (group := self._backlog.uncommitted(session_id)) is not None:
            await self._groups.landing_of(group)
            if session_id is not None and (failure := self.failure_of(session_id)) is not None:
                raise failure

    @property
    def not_recorded(self) -> int:
        return len(self._failures.refused)

    async def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        # Some clients cause this query before each cell, so it does not wait for rows to reach the tables.
        row = self._backlog.execution_by_key(session_id, idempotency_key)
        find = schema.execution_by_key
        return row or await self._files.reader.run_in_turn(find, session_id, idempotency_key)

    def follow(self, fenced: Callable[[int], None]) -> None:
        """Call nothing: the file has one writer."""

    async def look(self) -> None:
        """Find nothing: the log and the tables are checked whenever they are opened."""

    def check_writable(self, session_id: int | None = None) -> None:
        if session_id is not None and (failure := self.failure_of(session_id)) is not None:
            raise failure
        if self._failures.failure is not None:
            raise self._failures.failure
        if not self._disk_has_room:
            raise StorageFull("Too little space is left for the record; free some on the data folder's disk")

    @property
    def pending_bytes(self) -> int:
        return self._room.pending_bytes

    @property
    def appended_bytes(self) -> int:
        return self._backlog.enqueued_bytes

    @property
    def write_failures(self) -> int:
        return self._failures.count

    @property
    def writable(self) -> bool:
        return self._failures.failure is None and self._disk_has_room

    @property
    def _disk_has_room(self) -> bool:
        """Whether the reserve is free: one system call of microseconds on a local file system."""
        return not self._disk_reserve or free(self._files.path.parent) >= self._disk_reserve

    async def close(self) -> None:
        if self._closing is None:
            self._closing = Supervisor().share(self._close(), "close record")
        await outcome(self._closing, GatewayFault)

    async def _close(self) -> None:
        self._room.close()
        clean = False
        try:
            # The tasks that start purges end before the eraser that carries them out.
            await self._tasks.cancel()
            await self._eraser.close()
            await self.commit()
            await self.applied()
            self._failures.check()
            await self._files.writer.run(schema.expect_log, None)
            clean = True
        finally:
            await self._groups.close()
            await self._files.close(clean=clean)

    async def add_to_trail(self, entries: Collection[NewEntry], *, newest_act: int | None = None) -> bool:
        self._failures.check()
        return await self._files.writer.run(trail.add, entries, newest_act)

    async def disk_bytes(self) -> int:
        path = self._files.path
        files = (path, wal_beside(path), beside(path))
        return await asyncio.to_thread(lambda: sum(path.stat().st_size for path in files if path.exists()))

    # ---- purging ------------------------------------------------------------------------------------------

    async def purge(self, session_id: int, *, by: str, reason: str, epoch: int = FIRST_EPOCH) -> Purge | None:
        if epoch != FIRST_EPOCH:
            raise NotRecorded(FENCED)
        if session_id in self._failures.purging:
            return None
        self._failures.purging.add(session_id)
        # Once the tombstone is written the purge must go on, even if the caller is cancelled.
        purging = self._purge(session_id, by, reason)
        return await self._tasks.complete(purging, f"purge of session {session_id}")

    async def _purge(self, session_id: int, by: str, reason: str) -> Purge | None:
        begun = False
        try:
            await self.commit()
            await self.applied()
            begun = await self._files.writer.run(purge.begin, session_id, by=by, reason=reason)
        finally:
            if not begun:
                self._failures.purging.discard(session_id)
        return self._eraser.add(session_id, self._files.redo.number) if begun else None

    async def overdue(
        self, before: str | None, most_bytes: int | None, but: Collection[int] = ()
    ) -> tuple[SessionRow, str] | None:
        await self.commit()
        return await self.reads.read(upkeep.overdue, before, most_bytes, but)
