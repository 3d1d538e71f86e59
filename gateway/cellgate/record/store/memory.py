"""The store of a session that is not recorded: memory, gone with the session.

It accepts rows as ``interface.EventStore`` and answers no other question about them.
"""

from __future__ import annotations

from cellgate.errors import NotRecorded
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.record.store.interface import FENCED, FIRST_EPOCH, EventStore


class MemoryStore(EventStore):
    """Rows of a session that is not recorded; gone with it. The caps of its one execution limit them."""

    def __init__(self) -> None:
        self._rows: list[EventRow] = []
        self._forgotten = 0
        self._refused: NotRecorded | None = None

    def reserve(self, event_type: str, size: int, *, principal: str = "") -> None:
        """Do nothing: there is always room."""

    def unreserve(self, size: int, *, principal: str = "") -> None:
        """Do nothing: there is always room."""

    def full_for(self, principal: str = "") -> bool:
        """Return False: the caps of the session's execution limit the rows."""
        return False

    def append(
        self, row: EventRow, *, principal: str = "", reserved: bool = False, epoch: int = FIRST_EPOCH
    ) -> None:
        if self._refused is None and epoch == FIRST_EPOCH:
            self._rows.append(row)

    def forget(self) -> None:
        """Drop all rows so far, once nobody will read them any more."""
        self._forgotten += len(self._rows)
        self._rows.clear()

    async def commit(self, session_id: int | None = None, *, epoch: int | None = None) -> None:
        self.check_writable(session_id)
        if epoch not in {None, FIRST_EPOCH}:
            raise NotRecorded(FENCED)

    def refuse(self, session_id: int, why: str) -> None:
        assert session_id
        self._refused = NotRecorded(f"Nothing more of this session can be told: {why}")

    def failure_of(self, session_id: int) -> NotRecorded | None:
        assert session_id
        return self._refused

    def check_writable(self, session_id: int | None = None) -> None:
        assert session_id != 0
        if self._refused is not None:
            raise self._refused

    def save_session(self, row: SessionRow, *, epoch: int = FIRST_EPOCH) -> None:
        """Do nothing: the session itself has its row."""

    def save_execution(self, row: ExecutionRow, *, epoch: int = FIRST_EPOCH) -> None:
        """Do nothing: nobody looks up an execution that is not recorded."""

    async def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """Return None: executions that are not recorded are not looked up."""

    async def room(self, principal: str = "") -> None:
        """Do nothing: there is always room."""

    async def events(
        self,
        session_id: int,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
    ) -> list[EventRow]:
        assert all(row.session_id == session_id for row in self._rows[:1])
        rows: list[EventRow] = []
        size = 0
        first = max(0, after - self._forgotten)
        for row in self._rows[first : None if until is None else max(0, until - self._forgotten)]:
            if len(rows) >= limit or (rows and size + len(row.body) > max_bytes):
                break
            rows.append(row)
            size += len(row.body)
        return rows
