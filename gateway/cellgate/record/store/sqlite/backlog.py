"""The rows of a journal that are not in the tables yet, in groups by how far they have come.

Plain data structures: ``journal`` decides when rows move on, and does the work. A `Group` is what one
commit takes: rows, and the waiters for that commit. The `Backlog` has the groups of a journal.

One session's rows don't wait for another's: rows that the redo log does not take are `held` for a
transaction, and only later rows of the same sessions wait for them. Rows of all other sessions can be logged
while that transaction is written, however long the disk takes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from cellgate.errors import StorageError
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow

ROW_COST = 384
"""Bytes that a row takes in memory in addition to its body."""


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
    """Only the last row of a session or an execution counts. `number`: the commit's, once it has one."""

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
        """Return whether rows of one of these sessions are in it."""
        return bool(sessions) and not self.session_ids().isdisjoint(sessions)

    def drop(self, session_id: int) -> int:
        """Drop all rows of a session; returns how many bytes smaller the group is now."""
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

    `writing_logged`: whether it was `logged`. `size`: bytes in memory of all four. `sizes`: the same by
    principal.
    """

    def __init__(self) -> None:
        self.enqueued = Group()
        self.held = Group()
        self.logged = Group()
        self.writing = Group()
        self.size = 0
        self.sizes: Counter[str] = Counter()
        self.writing_logged = False
        # Of each session with events in a group: its principal, and bytes.
        self._principals: dict[int, str] = {}
        self._bytes: Counter[int] = Counter()
        # The sessions of `held`, of `logged`, and of `writing` unless that is committed.
        self._held: set[int] = set()
        self._logged: set[int] = set()
        self._written: set[int] = set()

    def enqueue(self, row: EventRow, principal: str) -> int:
        """Take an event of a principal's session; returns the bytes that it takes in memory."""
        size = cost(row)
        self.enqueued.events.append(row)
        self.enqueued.size += size
        self.size += size
        self._bytes[row.session_id] += size
        self.sizes[self._principals.setdefault(row.session_id, principal)] += size
        return size

    def _left(self, session_id: int, size: int) -> None:
        """Count out so many bytes of a session."""
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
        """Return the last group with uncommitted, not `enqueued` rows, of a session or any; None without."""
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
        """Whether somebody waits for rows that are not being written yet."""
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
        """Return the group that was being written is in the tables; returns it."""
        group = self.writing
        self.writing = Group()
        self._written = set()
        sizes: Counter[int] = Counter()
        for row in group.events:
            sizes[row.session_id] += cost(row)
        for session_id, size in sizes.items():
            self._left(session_id, size)
        return group

    def put_back(self) -> None:
        """Put a failed write's rows back where they were, before all that came since."""
        group = self.writing
        self.writing = Group()
        if self.writing_logged:
            self._logged |= group.session_ids()
            group.absorb(self.logged)
            self.logged = group
        else:
            self._held |= self._written
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
