"""The record's journal: takes rows without waiting and commits them in groups; its `reads` read them back.

A row is enqueued in microseconds and waits in memory, limited by `pending_bytes`, until somebody calls
`commit` or a moment has passed. A reserve above that limit is for small rows only, so that other sessions are
still recorded while one session's large outputs fill the rest, and another one for rows of all principals but
the one with most. Rows are committed at once, by the redo log
(``redo``); a thread later writes the logged rows into the tables, with the SQL of ``schema``. Rows of
sessions that have too many for the log, and with sync "full" all rows, are committed by that thread's
transaction; other sessions don't wait for it. Rows that could not be written are kept and tried again, so a
full disk costs time, not rows. A session whose rows the tables refuse is no longer recorded, and its commits
say so; other sessions are not affected. The journal does not know what the rows mean. All methods belong to
one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from cellgate.errors import NotRecorded, RecordDamaged, RecordGone, StorageError, StorageFull
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow, storable
from cellgate.record.store.interface import FENCED, FIRST_EPOCH, Purge
from cellgate.record.store.sqlite import purge, schema, trail, upkeep
from cellgate.record.store.sqlite.backlog import ROW_COST, Backlog, Group, cost
from cellgate.record.store.sqlite.database import Database
from cellgate.record.store.sqlite.eraser import Eraser
from cellgate.record.store.sqlite.location import wal_beside
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.store.sqlite.opening import RecordState, beginnings, open_writer
from cellgate.record.store.sqlite.reads import Queries
from cellgate.record.store.sqlite.redo import MOST_BYTES, RedoLog, beside
from cellgate.record.store.sqlite.schema import Sync
from cellgate.record.store.sqlite.syncing import Syncer
from cellgate.record.trail import NewEntry
from cellgate_kernels.base.errors import GatewayFault, in_words
from cellgate_kernels.base.resources import KIB, MIB
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.trees import free

__all__ = ["EventRow", "ExecutionRow", "Journal", "SessionRow", "Sync"]

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.05
"""How long rows that nobody waits for may stay in memory."""
APPLY_SECONDS = 0.5
"""How long rows may be in the redo log and not in the tables: the longer, the larger the batches."""
ALWAYS_TAKEN = frozenset({"session", "started", "finished", "rolled_back"})
SMALL_ROW = 16 * KIB
"""Bytes of a row that may use the reserve."""
RESERVE_PART = 4
"""The reserve is `pending_bytes` divided by this."""
OTHERS_PART = 4
"""Of `pending_bytes` this part is for all principals but the one with most, however much that one has."""
FLUSH_BYTES = MIB
LOGGED_AT_ONCE = MOST_BYTES // 2
"""Bytes of rows in a frame of the redo log; the encoded frame is larger."""
RETRY_SECONDS = 1.0
WATCH_SECONDS = 5.0
"""Seconds between checks that the record's files are still ours."""
MOST_REWINDS = 8
MOST_PURGED = 65_536
"""Purged sessions that are remembered, so that late rows of them are dropped."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The files of a record that `Journal.open` has opened, and where the record stood."""

    lock: RecordLock
    writer: Database
    reader: Database
    redo_log: RedoLog
    begun: RecordState


class Journal:
    """The rows of all sessions in one file. Create it with `open`, and `close` it at the end."""

    def __init__(self, path: Path, opened: _Opened, limit: int, reserve: int) -> None:
        self.reads = Queries(path, opened.reader, self.applied)
        self.events = self.reads.events
        begun = opened.begun
        self._lock = opened.lock
        self._folder = path.parent
        self._disk_reserve = reserve
        self._path = path
        self._writer = opened.writer
        self._reader = opened.reader
        self._redo = opened.redo_log
        self._last_id = begun.last_session
        self.former_activity = begun.last_activity
        self._limit = limit
        self._backlog = Backlog()
        self._reserved: Counter[str] = Counter()
        self._reserved_bytes = 0
        # Bytes of the reserve that small rows have used since there was last room for all rows.
        self._reserve_used = 0
        self.appended_bytes = 0
        self.write_failures = 0
        self._in_tables = begun.number
        # Sessions that are no longer recorded, and why.
        self._refused = dict(begun.refused)
        self._purging = set(begun.purges)
        self._purged: deque[int] = deque(maxlen=MOST_PURGED)
        self._failure: StorageError | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._wanted = False
        self._landed = asyncio.Event()
        self._landed.set()
        self._broken: StorageError | None = None
        # Set when rows have left, and replaced by a new one for those that go on waiting.
        self._less = asyncio.Event()
        self._flush_timer: asyncio.TimerHandle | None = None
        self._apply_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks = Supervisor(lambda: {"record": str(path)})
        self._lock_is_missed = self._is_blind = False
        # An internal error on the way to a commit must reach those who wait for it.
        guard = Supervisor(lambda: {"record": str(path)}, self._fault).guard
        self._guarded_flush = guard(self._flush, "flush of the record")
        self._guarded_write = guard(self._write, "write of the record")
        self._guarded_retry = guard(self._retry, "retry of the record")
        self._guarded_written = guard(self._written, "end of a write of the record")
        self._syncer: Syncer | None = None
        self._eraser = Eraser(path, opened.writer, self._out_of_log, self._erased)
        for session_id in begun.purges:
            self._eraser.add(session_id, begun.number)

    @classmethod
    async def open(
        cls, path: Path, *, sync: Sync = "normal", pending_bytes: int = 64 * MIB, reserve: int = 0
    ) -> Journal:
        """Open or make the record at `path`, which no other process may have open.

        With `sync` "normal" a commit survives the end of the gateway at once and a crash of the machine after
        a second; with "full" it survives both at once. About `pending_bytes` of rows may wait in memory, and
        a quarter of that in addition for small rows. With less than `reserve` bytes free on the disk nothing
        new may be started, so that what is running has room to finish.

        Raises StorageError for a folder in use, a newer schema, and a file that is not a record.
        """
        held = await asyncio.to_thread(RecordLock, path)
        path = held.record
        writer, reader = Database("record-writer"), Database("record-reader")
        redo_log = RedoLog.without(path, 0)
        try:
            await writer.open(lambda: open_writer(path, sync))
            held.watch()
            await reader.open(lambda: schema.open_reader(path))
            begun = await writer.run(beginnings)
            make = RedoLog.create if sync == "normal" else RedoLog.without
            redo_log = await asyncio.to_thread(make, path, begun.number)
            if redo_log.usable:
                redo_log = await _expected(writer, redo_log)
            opened = _Opened(held, writer, reader, redo_log, begun)
            journal = cls(path, opened, pending_bytes, reserve)
        except BaseException as error:
            redo_log.close(clean=True)
            await reader.close()
            await writer.close()
            held.release()
            if isinstance(error, RecordDamaged):
                raise RecordDamaged(f"The record {path}", error.why) from error
            raise
        if sync == "normal":
            journal._syncer = Syncer(path, redo_log, lambda: journal._in_tables)
        journal._tasks.repeat(journal._watch, "watch the record's files", pause=WATCH_SECONDS)
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

    def save_session(self, row: SessionRow, *, epoch: int = FIRST_EPOCH) -> None:
        if not self._takes(row.id, epoch):
            return
        if not storable(row.execution_count):
            self.refuse(row.id, f"an execution count of {row.execution_count} can't be stored")
            return
        self._backlog.enqueued.sessions[row.id] = row
        self._write_soon()

    def save_execution(self, row: ExecutionRow, *, epoch: int = FIRST_EPOCH) -> None:
        if not self._takes(row.session_id, epoch):
            return
        if not storable(row.number, row.first_seq, row.last_seq or 0):
            self.refuse(row.session_id, f"the numbers of execution {row.id} can't be stored")
            return
        self._backlog.enqueued.executions[row.session_id, row.id] = row
        self._write_soon()

    def reserve(self, event_type: str, size: int, *, principal: str = "") -> None:
        self._take_room(event_type, size + ROW_COST, principal)
        self._reserved[principal] += size
        self._reserved_bytes += size

    def unreserve(self, size: int, *, principal: str = "") -> None:
        self._reserved_bytes -= size
        self._reserved[principal] -= size
        if not self._reserved[principal]:
            del self._reserved[principal]
        self._wake()

    def _wake(self) -> None:
        """Let those look again that wait for `room`, after rows have left."""
        self._less.set()
        self._less = asyncio.Event()

    def full_for(self, principal: str = "") -> bool:
        """Return whether so much waits that the sessions of a principal are to slow down.

        That is half of the limit, if the principal has most of it, or the others have half of their part.
        """
        if 2 * self.pending_bytes < self._limit:
            return False
        others = self._of_others(principal)
        return others is None or 2 * OTHERS_PART * others >= self._limit

    def _of_others(self, principal: str) -> int | None:
        """Return the bytes that wait for others than the principal with most; None for that one."""
        pending = self._backlog.sizes + self._reserved
        largest = max(pending.values(), default=0)
        return None if pending[principal] == largest else self.pending_bytes - largest

    def _take_room(self, event_type: str, size: int, principal: str) -> None:
        if self.pending_bytes < self._limit:
            self._reserve_used = 0
        elif event_type in ALWAYS_TAKEN or self._is_for_others(size, principal):
            return
        elif size <= SMALL_ROW and self._reserve_used + size <= self._limit // RESERVE_PART:
            # The reserve is released only as a whole, above: that limits memory without counting small rows.
            self._reserve_used += size
        else:
            raise StorageFull(
                "Too much is waiting to be written to the record: the disk accepts nothing, or not enough"
            )

    def _is_for_others(self, size: int, principal: str) -> bool:
        others = self._of_others(principal)
        return others is not None and OTHERS_PART * (others + size) <= self._limit

    def append(
        self, row: EventRow, *, principal: str = "", reserved: bool = False, epoch: int = FIRST_EPOCH
    ) -> None:
        """Enqueue an event of a principal's session, which must be saved before the loop's next turn.

        Raises StorageFull, and keeps nothing of the row, when `pending_bytes` of rows already wait and it is
        not small, or the reserve for small rows is used up too; unless another principal has more than this
        one, and the others' part is not used up. Rows that change the state of a session or an execution are
        always taken: they are small, and limited by the number of these.
        """
        if not self._takes(row.session_id, epoch):
            return
        if not reserved:
            self._take_room(row.type, cost(row), principal)
        backlog = self._backlog
        self.appended_bytes += backlog.enqueue(row, principal)
        if backlog.enqueued.size + backlog.held.size >= FLUSH_BYTES and self.healthy:
            self._write_next()
        # Also then: while a transaction is being written, the flush logs the rows of other sessions.
        self._write_soon()

    async def commit(self, session_id: int | None = None, *, epoch: int | None = None) -> None:
        if epoch is not None and epoch != FIRST_EPOCH:
            raise NotRecorded(FENCED)
        if session_id is not None and (failure := self.failure_of(session_id)) is not None:
            raise failure
        self._log()
        if (group := self._backlog.uncommitted(session_id)) is not None:
            await self._landing_of(group)
            if session_id is not None and (failure := self.failure_of(session_id)) is not None:
                raise failure

    def failure_of(self, session_id: int) -> NotRecorded | RecordGone | None:
        if session_id in self._purging:
            return RecordGone("The record of this session was purged")
        if (why := self._refused.get(session_id)) is None:
            return None
        return NotRecorded(f"This session is not recorded any more: {why}; go on in another session")

    def refuse(self, session_id: int, why: str) -> None:
        if session_id not in self._refused:
            logger.error("Session %d is not recorded any more: %s", session_id, why)
            self._refused[session_id] = why
            self._backlog.drop(session_id)
            self._wake()

    def _takes(self, session_id: int, epoch: int) -> bool:
        if self._closed:
            raise StorageError("The record is closed")
        # Nobody else writes: whoever has the folder's lock has the one claim of each session.
        recorded = session_id not in self._refused and session_id not in self._purging
        return recorded and epoch == FIRST_EPOCH

    @property
    def not_recorded(self) -> int:
        return len(self._refused)

    async def applied(self) -> None:
        """Return when all committed rows are in the tables. Raises StorageError if that fails now."""
        if not self._backlog.committed.empty:
            await self._landing_of(self._backlog.committed)

    async def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """Return the newest execution requested under the idempotency key, however old.

        Some clients cause this query before each cell, so it does not wait for rows to reach the tables.
        """
        row = self._backlog.execution_by_key(session_id, idempotency_key)
        return row or await self._reader.run_in_turn(schema.execution_by_key, session_id, idempotency_key)

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
        return self._backlog.size + self._reserved_bytes

    def check_writable(self, session_id: int | None = None) -> None:
        if session_id is not None and (failure := self.failure_of(session_id)) is not None:
            raise failure
        if self._failure is not None:
            raise self._failure
        if not self._disk_has_room:
            raise StorageFull("Too little space is left for the record; free some on the data folder's disk")

    @property
    def writable(self) -> bool:
        return self.healthy and self._disk_has_room

    @property
    def _disk_has_room(self) -> bool:
        """Whether the reserve is free: one system call of microseconds on a local file system."""
        return not self._disk_reserve or free(self._folder) >= self._disk_reserve

    @property
    def healthy(self) -> bool:
        """Whether the last group was written."""
        return self._failure is None

    async def room(self, principal: str = "") -> None:
        while self.full_for(principal) and not self._closed:
            await self._less.wait()

    def _write_soon(self) -> None:
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._guarded_flush)

    def _flush(self) -> None:
        self._flush_timer = None
        self._log()
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

    def _log(self) -> None:
        """Commit the enqueued rows that the redo log takes; the rest is held for a transaction."""
        backlog = self._backlog
        if backlog.enqueued.empty:
            return
        # A scheduled flush stays: to cancel it and schedule it again would cost every cell time.
        for part in backlog.take_enqueued(LOGGED_AT_ONCE):
            if self._log_part(part):
                continue
            # One of its sessions may be the cause; a session alone needs no second attempt.
            sessions = part.by_session().values()
            for one in sessions:
                if len(sessions) == 1 or not self._log_part(one):
                    backlog.hold(one)
        if backlog.logged.empty:
            return
        if self._redo.crowded or 2 * self.pending_bytes >= self._limit:
            self._write_next()
        elif self._apply_timer is None:
            self._apply_timer = self._loop.call_later(APPLY_SECONDS, self._guarded_write)

    def _log_part(self, group: Group) -> bool:
        """Commit the group by the redo log; returns whether that was possible."""
        if not self.healthy or not self._redo.append(group):
            return False
        self._backlog.log(group)
        if self._syncer is not None:
            self._syncer.soon()
        return True

    def _write_next(self) -> None:
        """Write at the loop's next turn, so that rows of all sessions from this turn stay together."""
        if not self._wanted:
            self._wanted = True
            self._loop.call_soon(self._guarded_write)

    def _write(self) -> None:
        """Give the writer the next group, or do so as soon as it has finished the current one."""
        backlog = self._backlog
        self._wanted = not backlog.writing.empty
        if self._wanted or self._broken is not None:
            return
        self._log()
        group = backlog.take()
        if group.empty:
            group.settle(None)  # the rows that they waited for are no longer recorded
            return
        if backlog.writing_logged:
            self._cancel_apply()
            self._redo.switch()
        else:
            self._cancel_flush()
            # The logged rows whose timer brought us here are written next.
            self._cancel_apply()
            self._wanted = not backlog.logged.empty
            # Only commits of the log have numbers: this group does not change how much of it the tables have.
            group.number = self._in_tables
        self._landed.clear()
        acknowledged = backlog.writing_logged
        self._writer.start(
            self._guarded_written, schema.write, group, self._refused.copy(), acknowledged=acknowledged
        )

    def _written(self, written: Future[dict[int, str]]) -> None:
        backlog = self._backlog
        try:
            refused = written.result()
        except StorageError as error:
            self._failed(error)
        else:
            self._failure = None
            self._in_tables = backlog.writing.number
            for session_id, why in refused.items():
                self.refuse(session_id, f"the record refused its rows ({why})")
            backlog.land().settle(None)
            self._wake()
            self._sync()
        finally:
            self._landed.set()
        if self._wanted or backlog.waited_for:
            self._write()
        elif not (backlog.enqueued.empty and backlog.held.empty):
            self._write_soon()

    def _sync(self) -> None:
        if self._syncer is None:
            return
        if self._redo.cramped:
            self._syncer.now()
        else:
            self._syncer.soon()

    def _failed(self, error: StorageError) -> None:
        self.write_failures += 1
        if self.healthy:
            logger.error("The record can't be written for now: %s", error)
        self._failure = error
        self._wanted = False
        self._backlog.settle(error)
        self._backlog.put_back()
        self._cancel_flush()
        self._flush_timer = self._loop.call_later(RETRY_SECONDS, self._guarded_retry)

    def _fault(self, name: str, error: Exception) -> None:
        """Stop the writer after an internal error, which has been logged."""
        self._stop(StorageError("The record's writer has stopped; the gateway's log says why"))

    def _stop(self, why: StorageError) -> None:
        """Refuse all writes from now on: the journal is closed, or an internal error stopped the writer."""
        self._failure = self._broken = why
        self._backlog.settle(why)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = Supervisor().share(self._close(), "close record")
        await outcome(self._closing, GatewayFault)

    async def _close(self) -> None:
        self._closed = True
        self._wake()
        clean = False
        try:
            # The tasks that start purges end before the eraser that carries them out.
            await self._tasks.cancel()
            await self._eraser.close()
            await self.commit()
            await self.applied()
            if self._broken is not None:
                raise self._broken
            await self._writer.run(schema.expect_log, None)
            clean = True
        finally:
            self._cancel_flush()
            self._cancel_apply()
            await self._landed.wait()
            self._stop(StorageError("The record is closed"))
            if self._syncer is not None:
                await self._syncer.close()
            await self._reader.close()
            await self._writer.close()
            self._redo.close(clean=clean)
            self._lock.release()

    async def _watch(self) -> float:
        """Check that nobody has removed the files; returns the seconds until the next check."""
        try:
            await self._look()
        except OSError as error:
            # This says nothing about the files: a network file system may just not answer.
            if not self._is_blind:
                logger.error(
                    "The files of the record %s can't be looked at for now: %s", self._path, in_words(error)
                )
            self._is_blind = True
        else:
            self._is_blind = False
        return WATCH_SECONDS

    async def _look(self) -> None:
        if self._broken is not None:
            return
        if not self._lock.record_is_ours:
            logger.critical("The record %s was removed or replaced while it is in use", self._path)
            self._stop(
                StorageError(f"The record {self._path} was removed or replaced; start the gateway again")
            )
        elif not self._lock.is_ours and not self._lock_is_missed:
            self._lock_is_missed = True
            logger.error("The lock file of the record %s was removed while it is in use", self._path)
        if self._redo.usable and not self._redo.is_ours:
            logger.error("The redo log of %s was removed; each commit is a transaction now", self._path)
            self._redo.retire()
            await self._forget_log()

    async def _forget_log(self) -> None:
        """Once all rows are in the tables, the next start need not expect a log."""
        try:
            await self.applied()
            await self._writer.run(schema.expect_log, None)
        except StorageError as error:
            logger.error("The next start will miss the redo log: %s", error.message)

    async def add_to_trail(self, entries: Collection[NewEntry]) -> None:
        if self._broken is not None:
            raise self._broken
        await self._writer.run(trail.add, entries)

    async def disk_bytes(self) -> int:
        files = (self._path, wal_beside(self._path), beside(self._path))
        return await asyncio.to_thread(lambda: sum(path.stat().st_size for path in files if path.exists()))

    # ---- purging ------------------------------------------------------------------------------------------

    async def purge(self, session_id: int, *, by: str, reason: str) -> Purge | None:
        if session_id in self._purging:
            return None
        self._purging.add(session_id)
        # Once the tombstone is written the purge must go on, even if the caller is cancelled.
        purging = self._purge(session_id, by, reason)
        return await self._tasks.complete(purging, f"purge of session {session_id}")

    async def _purge(self, session_id: int, by: str, reason: str) -> Purge | None:
        begun = False
        try:
            await self.commit()
            await self.applied()
            begun = await self._writer.run(purge.begin, session_id, by=by, reason=reason)
        finally:
            if not begun:
                self._purging.discard(session_id)
        return self._eraser.add(session_id, self._redo.number) if begun else None

    def _erased(self, session_id: int) -> None:
        """Forget a session that was erased; rows of it that still arrive are dropped for a long time yet."""
        if len(self._purged) == MOST_PURGED:
            self._purging.discard(self._purged[0])
        self._purged.append(session_id)
        self._refused.pop(session_id, None)

    async def _out_of_log(self, number: int) -> None:
        """Return when the redo log holds no commit up to `number`. Raises StorageError if that fails."""
        for _ in range(MOST_REWINDS):
            if not self._redo.holds(number):
                return
            await self.applied()
            if self._syncer is not None:
                await self._syncer.done()
        raise StorageError("The redo log can't be overwritten")

    async def overdue(self, before: str | None, most_bytes: int | None) -> tuple[SessionRow, str] | None:
        await self.commit()
        return await self.reads.read(upkeep.overdue, before, most_bytes)


async def _expected(writer: Database, redo_log: RedoLog) -> RedoLog:
    """Return the log, once the tables note it; on a full disk, a closed one that takes nothing."""
    try:
        await writer.run(schema.expect_log, redo_log.seed)
    except StorageFull as error:
        logger.warning("There is no redo log, and each commit is a transaction: %s", error.message)
        redo_log.close(clean=True)
    return redo_log
