"""The record's store in PostgreSQL: takes rows without waiting, commits them in groups, one statement each.

A row waits in memory (``backlog``) until a caller awaits `commit` or a moment passed. One group is written
at a time, and rows that arrive meanwhile form the next. While the server can't be reached, rows are kept and
tried again, so an outage costs time, not rows. The statement decides which gateway may write a session
(``statements``). A session that another gateway has claimed, or whose rows can't be stored, is no longer
recorded here; other sessions are not affected. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from cellgate.errors import Fenced, StorageError
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow, storable
from cellgate.record.store.backlog import Backlog, Failures, Group, Room, cost
from cellgate.record.store.interface import ENDED_HERE, FENCED, FIRST_EPOCH, SET_BACK, Purge
from cellgate.record.store.postgresql import reads
from cellgate.record.store.postgresql.opening import bring_up
from cellgate.record.store.postgresql.reads import PostgresReads
from cellgate.record.store.postgresql.record_connection import (
    CLOSED,
    Hold,
    Query,
    RecordAddress,
    RecordConnection,
    Undecided,
)
from cellgate.record.store.postgresql.remover import Remover
from cellgate.record.store.postgresql.session_claims import SessionClaims
from cellgate.record.store.postgresql.writes import Adding, Batch, OwnNode, TableWriter
from cellgate.record.trail import NewEntry
from cellgate_kernels.base.errors import GatewayFault
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import Supervisor, guarded, outcome

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FLUSH_SECONDS = 0.05
"""The seconds that rows may stay in memory while no caller waits for them."""
FLUSH_BYTES = MIB
RETRY_SECONDS = 1.0
DECIDE_SECONDS = 20.0
"""The seconds for which a lost answer is requested again before its caller gets an error."""


class CommitWriter:
    """Writes a backlog's rows into the tables, and reports the outcome to waiting callers."""

    def __init__(
        self,
        connection: RecordConnection,
        tables: TableWriter,
        room: Room,
        failures: Failures,
        claims: SessionClaims,
    ) -> None:
        self._backlog = room.backlog
        self._room = room
        self._failures = failures
        self._connection = connection
        self._tables = tables
        self._claims = claims
        self._wanted = self._writes = self._tries_again = False
        self._batch = Batch(Group(), {}, set(), {})
        self._landed = asyncio.Event()
        self._landed.set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        # An internal error on the way to a commit must reach the waiting callers.
        guard = Supervisor(lambda: {"record": "PostgreSQL"}, self._fault).guard
        self._guarded_flush = guard(self._flush, "flush of the record")
        self._guarded_write = guard(self._write, "write of the record")
        self._guarded_written = guard(self._written, "end of a write of the record")

    async def landing_of(self, group: Group) -> None:
        """Wait until a group has been written. Raises StorageError if writing fails now."""
        self._failures.check()
        waiter = self._loop.create_future()
        group.waiters.append(waiter)
        if group is not self._backlog.writing:
            self.write_next()
        await waiter

    def write_soon(self) -> None:
        """Write all rows in a moment."""
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._guarded_flush)

    def write_next(self) -> None:
        """Write at the loop's next turn, so that rows of all sessions from this turn stay together."""
        if not self._wanted:
            self._wanted = True
            self._loop.call_soon(self._guarded_write)

    def _flush(self) -> None:
        self._timer = None
        self._write()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self) -> None:
        """Give the thread the next group, now or as soon as the thread has finished the current one."""
        self._wanted = self._writes
        if self._writes or self._failures.broken is not None:
            return
        self._backlog.hold_enqueued()
        group = self._backlog.take()
        if group.empty and self._failures.failure is None:
            group.settle(None)  # the awaited rows are no longer recorded
            return
        # After a failure an empty group shows whether the server is back.
        self._cancel_timer()
        self._writes = True
        self._landed.clear()
        ids = group.session_ids()
        batch = Batch(
            group, self._claims.epochs_of(ids), self._claims.new_of(ids), self._failures.refused.copy()
        )
        self._batch = batch
        self._connection.start(self._guarded_written, self._tables.write, batch)

    def _written(self, written: Future[dict[int, str]]) -> None:
        backlog = self._backlog
        self._writes = False
        try:
            refused = written.result()
        except StorageError as error:
            before = self._batch.epochs
            now = self._claims.epochs_of(before)
            # Rows of a claim that has been followed by another one meanwhile are nobody's any more.
            backlog.put_back([known for known, epoch in before.items() if now[known] != epoch])
            self._wanted = False
            if isinstance(error, Undecided) and not self._tries_again:
                # The server may only have been restarted since the last commit.
                self._tries_again = True
                self.write_next()
                return
            self._failures.fail(error)
            self._cancel_timer()
            self._timer = self._loop.call_later(RETRY_SECONDS, self._guarded_flush)
            return
        finally:
            self._landed.set()
        self._tries_again = False
        self._failures.failure = self._failures.broken
        claims = self._claims.epochs_of(refused)
        for session_id, why in refused.items():
            may_go_on = why in ENDED_HERE
            if may_go_on and claims[session_id] != self._batch.epochs[session_id]:
                continue  # it was claimed here meanwhile, and the rows belong to the former claim
            told = why if may_go_on else f"the record refused its rows ({why})"
            self._failures.refuse(session_id, told)
        group = backlog.land()
        self._claims.have_rows(group.sessions)
        group.settle(None)
        self._room.wake()
        if self._wanted or backlog.waited_for:
            self._write()
        elif not (backlog.enqueued.empty and backlog.held.empty):
            self.write_soon()

    def _fault(self, name: str, error: Exception) -> None:
        """Stop the writer after an internal error, which has been logged."""
        self._failures.stop(StorageError("The record's writer has stopped; the gateway's log says why"))

    async def close(self) -> None:
        """Wait for the group that is being written, and write no further group."""
        self._cancel_timer()
        await self._landed.wait()
        self._cancel_timer()
        self._failures.stop(StorageError(CLOSED))


class PostgresStore:
    """The rows of all sessions in one database. Create it with `open`, and call `close` at the end."""

    def __init__(self, address: RecordAddress, writer: RecordConnection, limit: int) -> None:
        self.former_activity: str | None = None
        self._writer = writer
        self._reader = RecordConnection(address, "record-reader")
        loop = asyncio.get_running_loop()
        guarded_set_back = guarded(self._set_back, "loss of rows in PostgreSQL")
        self._tables = TableWriter(lambda lost: loop.call_soon_threadsafe(guarded_set_back, lost))
        writer.look = self._tables.look
        self._claims = SessionClaims()
        self._backlog = Backlog()
        self._room = Room(self._backlog, limit)
        self.reserve, self.unreserve = self._room.reserve, self._room.unreserve
        self.full_for, self.room = self._room.full_for, self._room.wait
        self._failures = Failures(self._room, {}, set())
        self.refuse, self.failure_of = self._failures.refuse, self._failures.failure_of
        self._groups = CommitWriter(writer, self._tables, self._room, self._failures, self._claims)
        self.reads = PostgresReads(address, self._reader)
        self.events = self.reads.events
        self._tasks = Supervisor(lambda: {"record": str(address)})
        self._remover = Remover(writer, self._failures.forget)
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, address: RecordAddress, *, hold: Hold = Hold.ALONE, pending_bytes: int = 64 * MIB
    ) -> PostgresStore:
        """Open the record at an address, or make it in an empty database.

        About `pending_bytes` of rows may wait in memory, and a quarter of that in addition for small rows.
        Raises StorageError for a server that can't be reached or is too old, another encoding or schema, and
        a record that another gateway holds.
        """
        writer = RecordConnection(address, "record-writer", hold)
        try:
            begun = await writer.open(bring_up)
        except BaseException:
            await writer.close()
            raise
        store = cls(address, writer, pending_bytes)
        store.former_activity = begun.last_activity
        store._failures.purging.update(begun.purges)
        for session_id in begun.purges:
            store._remover.add(session_id)
        return store

    def join(self, node: str, incarnation: int) -> None:
        """Claim and begin only sessions whose keys this node of the cluster has, from now on."""
        self._tables.own_node = OwnNode(node, incarnation)

    # ---- writing ------------------------------------------------------------------------------------------

    async def begin_session(self, principal: str, key: str) -> int:
        session_id = await self._writer.repeatable(self._tables.new_id)
        self._claims.begin(session_id)
        return session_id

    async def claim(self, session_id: int) -> int:
        self._backlog.hold_enqueued()
        if (group := self._backlog.uncommitted(session_id)) is not None:
            await self._groups.landing_of(group)
        epoch = await self._writer.repeatable(self._tables.claim, session_id)
        if epoch is None:
            self._failures.reclaimed(session_id)
            return FIRST_EPOCH
        # Rows that the former claim has enqueued meanwhile are dropped.
        self._backlog.drop(session_id)
        self._failures.reclaimed(session_id)
        self._claims.note(session_id, epoch)
        return epoch

    def _takes(self, session_id: int, epoch: int) -> bool:
        """Return whether rows of this claim of a session are accepted. Raises StorageError after the end."""
        return self._failures.takes(session_id) and self._claims.is_known(session_id, epoch)

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
        self._groups.write_soon()

    async def commit(self, session_id: int | None = None, *, epoch: int | None = None) -> None:
        self._check_claim(session_id, epoch)
        self._backlog.hold_enqueued()
        if (group := self._backlog.uncommitted(session_id)) is not None:
            await self._groups.landing_of(group)
            self._check_claim(session_id, epoch)

    def _check_claim(self, session_id: int | None, epoch: int | None) -> None:
        """Check that a session is recorded, by this claim. Raises NotRecorded, RecordGone."""
        if session_id is None:
            return
        if epoch is not None and not self._claims.is_known(session_id, epoch):
            raise Fenced(FENCED)
        if (failure := self.failure_of(session_id)) is not None:
            raise failure

    def _set_back(self, lost: Collection[int]) -> None:
        """Stop recording these sessions, whose last events the database lacks since it went back."""
        logger.error("The database went back to an older state, which lacks events of %d sessions", len(lost))
        for session_id in lost:
            self.refuse(session_id, SET_BACK)

    async def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        row = self._backlog.execution_by_key(session_id, idempotency_key)
        return row or await self.reads.read(reads.execution_by_key, session_id, idempotency_key)

    def follow(self, fenced: Callable[[int], None]) -> None:
        self._failures.fenced = fenced

    async def look(self) -> None:
        await self._writer.repeatable(self._tables.look)

    def check_writable(self, session_id: int | None = None) -> None:
        if session_id is not None and (failure := self.failure_of(session_id)) is not None:
            raise failure
        if self._failures.failure is not None:
            raise self._failures.failure

    @property
    def not_recorded(self) -> int:
        return len(self._failures.refused)

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
        return self._failures.failure is None

    async def disk_bytes(self) -> int:
        return 0  # the database server alone knows the record's size on disk

    async def close(self) -> None:
        if self._closing is None:
            self._closing = Supervisor().share(self._close(), "close record")
        await outcome(self._closing, GatewayFault)

    async def _close(self) -> None:
        self._room.close()
        try:
            # The tasks that start purges end before the task that carries them out.
            await self._tasks.cancel()
            await self._remover.close()
            await self.commit()
            self._failures.check()
        finally:
            await self._groups.close()
            await self._reader.close()
            await self._writer.close()

    # ---- the audit trail, and purges ----------------------------------------------------------------------

    async def _decided(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that may be repeated; if an answer is lost, retry for a while.

        Raises StorageError when nothing was sent, or no answer came in time.
        """
        lost = 0
        until = asyncio.get_running_loop().time() + DECIDE_SECONDS
        while True:
            self._failures.check()
            try:
                return await self._writer.run(query, *args, **kwargs)
            except StorageError as error:
                may_wait = asyncio.get_running_loop().time() < until and not self._room.closed
                if not may_wait or not (lost or isinstance(error, Undecided)):
                    raise
            # At first the server may only have been restarted since the last statement.
            await asyncio.sleep(RETRY_SECONDS if lost else 0)
            lost += 1

    async def add_to_trail(self, entries: Collection[NewEntry], *, newest_act: int | None = None) -> bool:
        return await self._decided(self._tables.add, Adding(entries, newest_act))

    async def purge(self, session_id: int, *, by: str, reason: str, epoch: int = FIRST_EPOCH) -> Purge | None:
        if session_id in self._failures.purging:
            return None
        self._failures.purging.add(session_id)
        # Once the tombstone is written the purge must go on, even if the caller is cancelled.
        purging = self._purge(session_id, by, reason, epoch)
        return await self._tasks.complete(purging, f"purge of session {session_id}")

    async def _purge(self, session_id: int, by: str, reason: str, epoch: int) -> Purge | None:
        begun = False
        try:
            await self.commit()
            begun = await self._decided(self._tables.begin_purge, session_id, by, reason, epoch)
        finally:
            if not begun:
                self._failures.purging.discard(session_id)
        return self._remover.add(session_id) if begun else None

    async def overdue(
        self, before: str | None, most_bytes: int | None, but: Collection[int] = ()
    ) -> tuple[SessionRow, str] | None:
        await self.commit()
        return await self.reads.read(reads.overdue, before, most_bytes, but)
