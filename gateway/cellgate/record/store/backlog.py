"""The rows of a store that are not in the tables yet, grouped by their progress.

Plain data structures: the store decides when rows move on, and does the work. A `Group` is the content of one
commit: rows, and the waiters for that commit. The `Backlog` has the groups of a store, `Room` limits how much
may wait in them, and `Failures` lists sessions whose rows are refused.

One session's rows don't wait for another's. Rows that a redo log (if any) can't take are `held` for a
transaction; only later rows of the same sessions wait for them. Rows of all other sessions can be logged
while that transaction is written, however long the disk takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from cellgate.errors import Fenced, NotRecorded, RecordGone, RecordSetBack, StorageError, StorageFull
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.record.store.interface import ENDED_HERE, FENCED, SET_BACK
from cellgate_kernels.base.resources import KIB

logger = logging.getLogger(__name__)

ROW_COST = 384
"""Bytes that a row takes in memory in addition to its body."""
ALWAYS_TAKEN = frozenset({"session", "started", "finished", "rolled_back"})
SMALL_ROW = 16 * KIB
"""Most bytes of a row that may use the reserve."""
RESERVE_PART = 4
"""The reserve is the limit divided by this."""
OTHERS_PART = 4
"""This part of the limit is for all principals but the largest, however much that one has."""
MOST_PURGED = 65_536
"""Most purged sessions that are remembered, so that late rows of them are dropped."""
MOST_FENCED = 65_536
"""Most fenced sessions that are remembered."""


class RefusedRows(Exception):
    """Rows don't follow each other, or the recorded rows of their session."""


def cost(row: EventRow) -> int:
    """Return the bytes that the row takes in memory."""
    return len(row.body) + ROW_COST


def tell(waiters: Iterable[asyncio.Future[None]], error: StorageError | None) -> None:
    """Resolve the futures that are still waiting: with `error`, or as done."""
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


@dataclass(slots=True)
class Group:
    """The rows of one commit; the last row of a session or an execution counts. `number`: the commit's."""

    sessions: dict[int, SessionRow] = field(default_factory=dict)
    executions: dict[tuple[int, str], ExecutionRow] = field(default_factory=dict)
    events: list[EventRow] = field(default_factory=list)
    size: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    number: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.events or self.executions or self.sessions)

    def session_ids(self) -> set[int]:
        """Return the sessions whose rows are in it."""
        events = {row.session_id for row in self.events}
        return events | self.sessions.keys() | {session_id for session_id, _ in self.executions}

    def concerns(self, sessions: Mapping[int, str]) -> bool:
        """Return whether the group has rows of one of these sessions."""
        return bool(sessions) and not self.session_ids().isdisjoint(sessions)

    def drop(self, session_id: int) -> int:
        """Drop all rows of a session; return by how many bytes the group shrank."""
        self.sessions.pop(session_id, None)
        self.executions = {key: row for key, row in self.executions.items() if key[0] != session_id}
        freed = sum(cost(row) for row in self.events if row.session_id == session_id)
        self.events = [row for row in self.events if row.session_id != session_id]
        self.size -= freed
        return freed

    def absorb(self, later: Group) -> None:
        """Add the rows and waiters of a later group."""
        self.sessions |= later.sessions
        self.executions |= later.executions
        self.events += later.events
        self.size += later.size
        self.waiters += later.waiters
        self.number = max(self.number, later.number)

    def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """Return the newest of these executions that was requested under the idempotency key."""
        found = (
            row
            for row in self.executions.values()
            if row.session_id == session_id and row.idempotency_key == idempotency_key
        )
        return max(found, key=attrgetter("number"), default=None)

    def by_session(self) -> dict[int, Group]:
        """Return the same rows as one group per session, without waiters."""
        parts: defaultdict[int, Group] = defaultdict(Group)
        for session in self.sessions.values():
            parts[session.id].sessions[session.id] = session
        for key, execution in self.executions.items():
            parts[execution.session_id].executions[key] = execution
        for event in self.events:
            part = parts[event.session_id]
            part.events.append(event)
            part.size += cost(event)
        return parts

    def settle(self, error: StorageError | None) -> None:
        """Resolve all waiters: with `error`, or as done."""
        tell(self.waiters, error)
        self.waiters = []


class Backlog:
    """Four groups: `enqueued`, not examined yet; `held` for a transaction; `logged`, committed by the redo
    log; and `writing`, a former `held` or `logged` on its way into the tables.

    `writing_logged`: whether it was `logged`. `size`: bytes in memory of all four; `sizes`: by principal.
    `enqueued_bytes`: the bytes of all events so far.
    """

    def __init__(self) -> None:
        self.enqueued = Group()
        self.held = Group()
        self.logged = Group()
        self.writing = Group()
        self.size = self.enqueued_bytes = 0
        self.sizes: Counter[str] = Counter()
        self.writing_logged = False
        # Of each session with events in a group: its principal, and bytes.
        self._principals: dict[int, str] = {}
        self._bytes: Counter[int] = Counter()
        # The sessions of `held`, of `logged`, and of `writing` unless that is committed.
        self._held: set[int] = set()
        self._logged: set[int] = set()
        self._written: set[int] = set()

    def enqueue(self, row: EventRow, principal: str) -> None:
        """Enqueue an event of a principal's session."""
        size = cost(row)
        self.enqueued.events.append(row)
        self.enqueued.size += size
        self.size += size
        self.enqueued_bytes += size
        self._bytes[row.session_id] += size
        self.sizes[self._principals.setdefault(row.session_id, principal)] += size

    def _left(self, session_id: int, size: int) -> None:
        """Subtract so many bytes of a session."""
        if not size:
            return
        self.size -= size
        self._bytes[session_id] -= size
        principal = self._principals[session_id]
        self.sizes[principal] -= size
        if not self._bytes[session_id]:
            del self._bytes[session_id], self._principals[session_id]
        if not self.sizes[principal]:
            del self.sizes[principal]

    def uncommitted(self, session_id: int | None = None) -> Group | None:
        """Return the last uncommitted group, except `enqueued`, of a session or any; None without."""
        if session_id is None:
            is_held = bool(self._held)
            is_written = bool(self._written)
        else:
            is_held = session_id in self._held
            is_written = session_id in self._written
        if is_held:
            return self.held
        if is_written:
            return self.writing
        return None

    @property
    def committed(self) -> Group:
        """The last committed group, empty if there is none."""
        if self.logged.empty and self.writing_logged:
            return self.writing
        return self.logged

    @property
    def waited_for(self) -> bool:
        """Whether a waiter waits for rows that are not being written yet."""
        return bool(self.held.waiters or self.logged.waiters)

    def take_enqueued(self, most: int) -> list[Group]:
        """Return the enqueued rows in groups of at most `most` bytes, unless one session alone has more. Rows
        that follow uncommitted rows of their session are held instead.
        """
        group = self.enqueued
        self.enqueued = Group()
        if not self._held and not self._written and group.size <= most:
            return [group]
        parts: list[Group] = []
        for session_id, part in group.by_session().items():
            if session_id in self._held or session_id in self._written:
                self.hold(part)
            elif parts and parts[-1].size + part.size <= most:
                parts[-1].absorb(part)
            else:
                parts.append(part)
        return parts

    def hold_enqueued(self) -> None:
        """Hold all enqueued rows for a transaction."""
        if not self.enqueued.empty:
            group, self.enqueued = self.enqueued, Group()
            self.hold(group)

    def log(self, group: Group) -> None:
        """Note that the redo log has committed the group."""
        self._logged |= group.session_ids()
        self.logged.absorb(group)

    def hold(self, group: Group) -> None:
        """Hold the group for a transaction."""
        self._held |= group.session_ids()
        self.held.absorb(group)

    def take(self) -> Group:
        """Return the group to be written next, `writing` from now on. The two kinds take turns, but held rows
        wait for the logged rows of their sessions.
        """
        follows = not self._held.isdisjoint(self._logged)
        logged_again = self.writing_logged and not self.held.empty
        self.writing_logged = not self.logged.empty and (follows or not logged_again)
        if self.writing_logged:
            self.writing = self.logged
            self.logged = Group()
            self._logged = set()
        else:
            self.writing = self.held
            self.held = Group()
            self._written = self._held
            self._held = set()
        return self.writing

    def land(self) -> Group:
        """Move the written group into the tables' state, and return it."""
        group = self.writing
        self.writing = Group()
        self._written = set()
        sizes: Counter[int] = Counter()
        for row in group.events:
            sizes[row.session_id] += cost(row)
        for session_id, size in sizes.items():
            self._left(session_id, size)
        return group

    def put_back(self, without: Collection[int] = ()) -> None:
        """Put a failed write's rows back in place, before all later rows; drop those of some sessions."""
        group = self.writing
        for session_id in without:
            self._left(session_id, group.drop(session_id))
        self.writing = Group()
        if self.writing_logged:
            self._logged |= group.session_ids()
            group.absorb(self.logged)
            self.logged = group
        else:
            self._held |= self._written.difference(without)
            self._written = set()
            group.absorb(self.held)
            self.held = group

    def drop(self, session_id: int) -> None:
        """Drop the uncommitted rows of a session, except those that are being written."""
        self._left(session_id, self.enqueued.drop(session_id) + self.held.drop(session_id))
        self._held.discard(session_id)

    def settle(self, error: StorageError) -> None:
        """Fail all waiters with an error."""
        for group in (self.writing, self.logged, self.held):
            group.settle(error)

    def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """Return the newest of these executions that was requested under the idempotency key."""
        for group in (self.enqueued, self.held, self.logged, self.writing):
            if (row := group.execution_by_key(session_id, idempotency_key)) is not None:
                return row
        return None


class Room:
    """Limits a backlog to `limit` bytes. A reserve above that is for small rows, so that other sessions are
    still recorded while one session's large outputs fill the rest. A part of the limit is for all principals
    but the largest. `closed`: whether no more rows will come.
    """

    def __init__(self, backlog: Backlog, limit: int) -> None:
        self.limit = limit
        self.closed = False
        self.backlog = backlog
        self._reserved: Counter[str] = Counter()
        self._reserved_bytes = 0
        # Bytes of the reserve that small rows have used since there was last room for all rows.
        self._reserve_used = 0
        # Set when rows have left, then replaced for the callers that go on waiting.
        self._less = asyncio.Event()

    @property
    def pending_bytes(self) -> int:
        """Bytes of rows in memory, including rows that are still being made."""
        return self.backlog.size + self._reserved_bytes

    def reserve(self, event_type: str, size: int, *, principal: str = "") -> None:
        self.take(event_type, size + ROW_COST, principal)
        self._reserved[principal] += size
        self._reserved_bytes += size

    def unreserve(self, size: int, *, principal: str = "") -> None:
        self._reserved_bytes -= size
        self._reserved[principal] -= size
        if not self._reserved[principal]:
            del self._reserved[principal]
        self.wake()

    def wake(self) -> None:
        """Wake the callers that wait for room, after rows have left."""
        self._less.set()
        self._less = asyncio.Event()

    async def wait(self, principal: str = "") -> None:
        """Return when a principal's sessions need not slow down."""
        while self.full_for(principal) and not self.closed:
            await self._less.wait()

    def close(self) -> None:
        """Let nobody wait any more."""
        self.closed = True
        self.wake()

    def full_for(self, principal: str = "") -> bool:
        """Return whether so many bytes wait that the sessions of a principal are to slow down.

        True at half of the limit for the principal with the most, at half of the others' part for others.
        """
        if 2 * self.pending_bytes < self.limit:
            return False
        others = self._of_others(principal)
        return others is None or 2 * OTHERS_PART * others >= self.limit

    def _of_others(self, principal: str) -> int | None:
        """Return the bytes that wait for all principals but the largest; None for that one."""
        pending = self.backlog.sizes + self._reserved
        largest = max(pending.values(), default=0)
        return None if pending[principal] == largest else self.pending_bytes - largest

    def take(self, event_type: str, size: int, principal: str) -> None:
        """Raise StorageFull when there is no room for a row of so many bytes.

        That is when `limit` bytes already wait and it is not small, or the reserve for small rows is used up
        too; unless another principal has more than this one, and the others' part is not used up. Rows that
        change the state of a session or an execution are always taken: they are small, and limited by the
        number of these.
        """
        if self.pending_bytes < self.limit:
            self._reserve_used = 0
        elif event_type in ALWAYS_TAKEN or self._is_for_others(size, principal):
            return
        elif size <= SMALL_ROW and self._reserve_used + size <= self.limit // RESERVE_PART:
            # The reserve is released only as a whole, above: that limits memory without counting small rows.
            self._reserve_used += size
        else:
            raise StorageFull(
                "Too much is waiting to be written to the record: the disk accepts nothing, or not enough"
            )

    def _is_for_others(self, size: int, principal: str) -> bool:
        others = self._of_others(principal)
        return others is not None and OTHERS_PART * (others + size) <= self.limit


class Failures:
    """The reasons why rows are refused: of one session, because it was refused or purged (`purging`, and long
    after), or of all. `failure`: why the last group was not written. `broken`: why nothing is written any
    more. `count`: of failed writes.
    """

    def __init__(self, room: Room, refused: dict[int, str], purging: set[int]) -> None:
        self.refused = refused
        self.purging = purging
        self.failure: StorageError | None = None
        self.broken: StorageError | None = None
        self.count = 0
        self.fenced: Callable[[int], None] = lambda _: None
        """Called with the id of each session that another gateway has claimed, or whose events are gone."""
        self._room = room
        self._purged: deque[int] = deque(maxlen=MOST_PURGED)
        self._fenced: deque[int] = deque(maxlen=MOST_FENCED)

    def refuse(self, session_id: int, why: str) -> None:
        if session_id not in self.refused:
            logger.error("Session %d is not recorded any more: %s", session_id, why)
            self.refused[session_id] = why
            if why in ENDED_HERE:
                # If rows of a forgotten session still come, the store refuses them once more.
                if len(self._fenced) == MOST_FENCED:
                    self.reclaimed(self._fenced[0])
                self._fenced.append(session_id)
            self._room.backlog.drop(session_id)
            self._room.wake()
            if why in ENDED_HERE:
                self.fenced(session_id)

    def reclaimed(self, session_id: int) -> None:
        """Forget that another gateway has claimed a session, or that its last events are gone."""
        if self.refused.get(session_id) in ENDED_HERE:
            del self.refused[session_id]

    def failure_of(self, session_id: int) -> NotRecorded | RecordGone | None:
        if session_id in self.purging:
            return RecordGone("The record of this session was purged")
        if (why := self.refused.get(session_id)) is None:
            return None
        if why == FENCED:
            return Fenced(FENCED)
        if why == SET_BACK:
            return RecordSetBack(SET_BACK)
        return NotRecorded(f"This session is not recorded any more: {why}; go on in another session")

    def takes(self, session_id: int) -> bool:
        """Return whether rows of a session are accepted. Raises StorageError after the end."""
        if self._room.closed:
            raise StorageError("The record is closed")
        return session_id not in self.refused and session_id not in self.purging

    def forget(self, session_id: int) -> None:
        """Forget a session that was erased; late rows of it are dropped for a long time yet."""
        if len(self._purged) == MOST_PURGED:
            self.purging.discard(self._purged[0])
        self._purged.append(session_id)
        self.refused.pop(session_id, None)

    def check(self) -> None:
        """Raise StorageError if nothing is written any more."""
        if self.broken is not None:
            raise self.broken

    def fail(self, error: StorageError) -> None:
        """Fail all waiters, because a group could not be written for now."""
        self.count += 1
        if self.failure is None:
            logger.error("The record can't be written for now: %s", error)
        self.failure = error
        self._room.backlog.settle(error)

    def stop(self, why: StorageError) -> None:
        """Refuse all writes from now on: the journal is closed, or it can't go on."""
        self.failure = self.broken = why
        self._room.backlog.settle(why)
