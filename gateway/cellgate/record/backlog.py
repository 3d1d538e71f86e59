"""The rows of a journal that are not in the tables yet, by how far they have come.

A plain data structure: ``journal`` decides when something moves on, and does what that takes.
"""

from __future__ import annotations

from cellgate.record.group import Group
from cellgate.record.rows import ExecutionRow
from cellgate.wire.errors import StorageError


class Backlog:
    """Three groups: `enqueued`; `logged`, so committed by the redo log; and `writing`, one of the two before.

    `writing_logged`: which of them. `size`: bytes in memory of all three.
    """

    def __init__(self) -> None:
        self.enqueued = Group()
        self.logged = Group()
        self.writing = Group()
        self.size = 0
        self.writing_logged = False

    @property
    def uncommitted(self) -> Group:
        """The last group that is not committed, empty if there is none."""
        if self.enqueued.empty and not self.writing_logged:
            return self.writing
        return self.enqueued

    @property
    def committed(self) -> Group:
        """The last group that is committed, empty if there is none."""
        if self.logged.empty and self.writing_logged:
            return self.writing
        return self.logged

    @property
    def may_be_logged(self) -> bool:
        """Whether what is enqueued may be committed now: not before what is being written."""
        return self.writing.empty or self.writing_logged

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for what is not on its way yet."""
        return bool(self.enqueued.waiters or self.logged.waiters)

    def log(self) -> None:
        """What is enqueued is committed by the redo log now."""
        group, self.enqueued = self.enqueued, Group()
        group.settle(None)
        self.logged.absorb(group)

    def take(self) -> Group:
        """The group that is to be written next, `writing` from now on: what is logged first, and alone."""
        self.writing_logged = not self.logged.empty
        if self.writing_logged:
            self.writing, self.logged = self.logged, Group()
        else:
            self.writing, self.enqueued = self.enqueued, Group()
        return self.writing

    def land(self) -> Group:
        """What was being written is in the tables; returns it."""
        group, self.writing = self.writing, Group()
        self.writing_logged = False
        self.size -= group.size
        return group

    def put_back(self) -> None:
        """What was being written could not be: it is where it was, before all that came since."""
        group, self.writing = self.writing, Group()
        if self.writing_logged:
            group.absorb(self.logged)
            self.logged = group
        else:
            group.absorb(self.enqueued)
            self.enqueued = group
        self.writing_logged = False

    def drop(self, session_id: int) -> None:
        """Forget what of a session is not committed."""
        self.size -= self.enqueued.drop(session_id)

    def settle(self, error: StorageError) -> None:
        """Tell all who wait."""
        for group in (self.writing, self.logged, self.enqueued):
            group.settle(error)

    def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """The newest of these executions that was requested under the idempotency key."""
        for group in (self.enqueued, self.logged, self.writing):
            if (row := group.execution_by_key(session_id, idempotency_key)) is not None:
                return row
        return None
