"""The contents of one transaction of the record: rows, and the waiters for their commit.

A plain data structure; ``journal`` fills it, writes it and settles it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.wire.errors import StorageError

ROW_COST = 384
"""Bytes that a row takes in memory in addition to its body."""


def cost(row: EventRow) -> int:
    """Bytes that the row takes in memory."""
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
        """The sessions whose rows are in it."""
        events = {row.session_id for row in self.events}
        return events | self.sessions.keys() | {session_id for session_id, _ in self.executions}

    def concerns(self, sessions: Mapping[int, str]) -> bool:
        """Whether rows of one of these sessions are in it."""
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
        """The newest of these executions that was requested under the idempotency key."""
        found = (
            row
            for row in self.executions.values()
            if row.session_id == session_id and row.idempotency_key == idempotency_key
        )
        return max(found, key=attrgetter("number"), default=None)

    def by_session(self) -> dict[int, Group]:
        """The same rows as one group per session, without waiters."""
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
