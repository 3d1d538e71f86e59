"""What goes into one transaction of the record: rows, and who waits for them to be written.

A plain data structure; ``journal`` fills it, writes it and settles it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.record.errors import StorageError
from gateway.record.rows import EventRow, ExecutionRow, SessionRow


@dataclass(slots=True)
class Group:
    """Of a session or an execution only the last row counts."""

    sessions: dict[int, SessionRow] = field(default_factory=dict)
    executions: dict[tuple[int, str], ExecutionRow] = field(default_factory=dict)
    events: list[EventRow] = field(default_factory=list)
    size: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.events or self.executions or self.sessions)

    def absorb(self, later: Group) -> None:
        """Add what came later; who waits is then only who waited for that."""
        self.sessions |= later.sessions
        self.executions |= later.executions
        self.events += later.events
        self.size += later.size
        self.waiters = later.waiters

    def settle(self, error: StorageError | None) -> None:
        """Tell who waits how it went."""
        for waiter in self.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self.waiters = []
