"""How a gateway reads the record that it writes. Reads see committed rows, not those still enqueued.

One thread and one connection serve all short reads; those for whom reads wait take turns. The SQL is in
``schema``; the meaning of the rows is not known here.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Concatenate, ParamSpec, TypeVar

from cellgate.errors import RecordGone
from cellgate.fairness.turns import Turns
from cellgate.record.rows import EventRow, ExecutionRow, Lineage, SessionRow
from cellgate.record.store.interface import GivenUp, LastLife, LeftOpen, Steps
from cellgate.record.store.sqlite import lineage, schema, trail, upkeep
from cellgate.record.store.sqlite.database import Database
from cellgate.record.store.sqlite.last_life import last_life
from cellgate.record.store.sqlite.left_open import left_open
from cellgate.record.trail import TrailRow
from cellgate_kernels.base.resources import MIB

MANY_EVENTS = 10_000
"""Looking through more events of a session takes more than some milliseconds."""
LONG_LIVES_AT_ONCE = 2
LONG_LIVES_WAITING = 512
LONG_LIVES_PATIENCE = 60.0
STEP_ROWS = 256
"""Rows that one of the `Steps` reads at most."""
STEP_BYTES = 2 * MIB
"""Bytes that one of them reads at most; a larger row is a step by itself."""

P = ParamSpec("P")
T = TypeVar("T")


class ConnectionSteps:
    """Steps over one connection, until `stop` is set. See ``interface.Steps``."""

    def __init__(self, db: sqlite3.Connection, stop: Event) -> None:
        self._db = db
        self._stop = stop

    def go_on(self) -> None:
        """Return unless nobody waits any more. Raises GivenUp."""
        if self._stop.is_set():
            raise GivenUp

    def events(self, session_id: int, after: int, last: int) -> list[EventRow]:
        """Return the next events with `after` < seq <= `last`, at most `STEP_ROWS` and `STEP_BYTES`."""
        self.go_on()
        return schema.events(self._db, session_id, after, last, STEP_ROWS, STEP_BYTES)

    def is_there(self, session_id: int) -> bool:
        """Whether there is such a session."""
        return schema.is_there(self._db, session_id)

    def origin_problem(self, session: SessionRow) -> str | None:
        """Return why a session does not continue what it names as its origin; None if it does."""
        return lineage.check_origin(self._db, session).problem


class Queries(ABC):
    """The reading half of a ``journal``. All methods raise StorageError when the record can't be read."""

    def __init__(self, path: Path, reader: Database) -> None:
        self._path = path
        self._reader = reader
        refusal = "Too many sessions with long records are being resumed; try again later"
        self._long_lives = Turns(LONG_LIVES_AT_ONCE, LONG_LIVES_WAITING, LONG_LIVES_PATIENCE, refusal)

    @abstractmethod
    async def applied(self) -> None:
        """Return when all committed rows are in the tables, where reads look. Raises StorageError."""

    async def _read(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        await self.applied()
        return await self._reader.run_in_turn(query, *args, **kwargs)

    async def session(self, principal: str, key: str) -> SessionRow | None:
        """The session that the principal calls `key`."""
        return await self._read(schema.session, principal, key)

    async def lineage(self, session: SessionRow, covers: Callable[[str], bool]) -> Lineage:
        """The ancestors of a branch; see `lineage.lineage`."""
        return await self._read(lineage.lineage, session, covers)

    async def descendants(self, session_id: int, limit: int) -> list[SessionRow]:
        """The branches of a session, theirs and so on, by id; the first `limit` that are found."""
        return await self._read(schema.descendants, session_id, limit)

    async def sessions(
        self,
        principal: str | None = None,
        states: Collection[str] | None = None,
        *,
        limit: int = 100,
        after: int = 0,
        prefix: str = "",
        exact: bool = False,
        newest: bool = False,
    ) -> list[SessionRow]:
        """Up to `limit` sessions with an id above `after`, by id; None: of all principals, in any state.

        `prefix`: how their keys begin or, if `exact`, the one key. `newest`: those with an id below `after`,
        the highest first.
        """
        keys = (prefix, exact)
        return await self._read(schema.sessions, principal, states, limit, after, keys, newest=newest)

    async def unfinished_sessions(self) -> list[SessionRow]:
        """All sessions that have not ended; at the start, those that the previous gateway left open."""
        return await self._read(schema.unfinished_sessions)

    async def session_folders(self) -> list[str]:
        """Return the folder of each session, as its row has it."""
        return await self._read(schema.session_folders)

    async def holds_folder(self, folder: str, *, but: int) -> bool:
        """Whether another session than `but` has its files in this folder, and was not deleted.

        Looks through all sessions.
        """
        return await self._read(schema.holds_folder, folder, but)

    async def execution(self, session_id: int, execution_id: str) -> ExecutionRow | None:
        """One execution."""
        return await self._read(schema.execution, session_id, execution_id)

    async def last_execution(self, session_id: int) -> ExecutionRow | None:
        """The newest execution; its `number` is how many there are."""
        return await self._read(schema.last_execution, session_id)

    async def executions(
        self, session_id: int, *, limit: int = 100, after: int = 0, newest: bool = False
    ) -> list[ExecutionRow]:
        """Up to `limit` executions with a number above `after`, in their order.

        `newest`: those with a number below `after`, the last one first.
        """
        return await self._read(schema.executions, session_id, limit, after, newest=newest)

    async def execution_counts(self, session_ids: Sequence[int]) -> dict[int, int]:
        """How many executions each of these sessions has; sessions without any are left out."""
        return await self._read(schema.execution_counts, session_ids)

    async def unfinished_executions(self, session_id: int) -> list[ExecutionRow]:
        """Executions that have not ended, in their order."""
        return await self._read(schema.unfinished_executions, session_id)

    async def last_event(self, session_id: int) -> tuple[int, bytes] | None:
        """The sequence number and the hash of the last event, or the start of a chain if there is none.

        None when there is no such session.
        """
        return await self._read(schema.last_event, session_id)

    async def last_life(self, session: SessionRow) -> LastLife:
        """What the session had before its last end, as far as a next life has to know.

        All events of the session are looked through, which takes 0.1 s for 200,000.
        """
        if session.head_seq <= MANY_EVENTS:
            return await self._read(last_life, session.id)
        async with self._long_lives.turn(session.principal):
            return await self._read_long(lambda db, _: last_life(db, session.id))

    async def left_open(self, session_id: int) -> LeftOpen:
        """The programs and ports whose end is not recorded; for a gateway that starts, before it serves.

        All events of the session are looked through, as for `last_life`.
        """
        return await self._read(left_open, session_id)

    async def are_larger(self, session_id: int, size: int, *, after: int, until: int | None) -> bool:
        """Whether the events with `after` < seq <= `until` take more than `size` bytes in memory."""
        return await self._read(schema.are_larger, session_id, after, until, size)

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
        return await self._read(schema.events, session_id, after, until, limit, max_bytes)

    async def trail(self, after: int, limit: int) -> tuple[list[TrailRow], bool]:
        """Entries of the audit trail after the one with this number; see `trail.page`."""
        return await self._read(trail.page, after, limit)

    async def acts(self, before: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """The newest acts in the audit trail before the entry with this number; see `trail.acts`."""
        return await self._read(trail.acts, before, limit)

    async def in_steps(self, work: Callable[[Steps], T]) -> T:
        """Run `work` in a separate thread with a separate connection, so that it holds up nobody else.

        Each of its steps raises GivenUp once the caller is cancelled. Callers limit how many run at once.
        """
        return await self._read_long(lambda db, stop: work(ConnectionSteps(db, stop)))

    async def _read_long(self, work: Callable[[sqlite3.Connection, Event], T]) -> T:
        await self.applied()
        database = Database("record-export")
        stop = Event()
        try:
            await database.open(lambda: schema.open_reader(self._path))
            return await database.run(work, stop)
        finally:
            stop.set()
            await database.close()

    async def record_sizes(self) -> dict[str, int]:
        """Bytes of all events of each principal."""
        return await self._read_long(lambda db, _: upkeep.record_sizes(db))

    async def record_size(self, session_id: int) -> int:
        """Bytes of all events of a session."""
        return await self._read_long(lambda db, _: upkeep.record_size(db, session_id))

    async def event_batches(
        self, session_id: int, *, after: int = 0, until: int | None = None
    ) -> AsyncGenerator[list[EventRow], None]:
        """All events that `events` would return without its limits, in batches of its size.

        Raises RecordGone when the session is purged before its end, which is `until` if that is given.
        """
        begun = until is not None
        while until is None or after < until:
            if not (batch := await self.events(session_id, after=after, until=until)):
                break
            begun = True
            yield batch
            after = batch[-1].seq
        else:
            return
        if begun and await self.last_event(session_id) is None:
            raise RecordGone("The record of this session was purged while it was read")
