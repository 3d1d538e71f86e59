"""The gateway's reads of its record. They see committed rows, not enqueued ones.

One thread and one connection serve all short reads; principals with waiting reads take turns. The SQL is in
``schema``; the meaning of the rows is not known here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Concatenate, ParamSpec, TypeVar

from cellgate.fairness.turns import Turns
from cellgate.record.rows import EventRow, SessionRow
from cellgate.record.store import lives
from cellgate.record.store.event_pages import batches_of
from cellgate.record.store.interface import GivenUp, LastLife, LeftOpen, Reads, Steps
from cellgate.record.store.sqlite import lineage as ancestry
from cellgate.record.store.sqlite import schema, upkeep
from cellgate.record.store.sqlite import trail as entries
from cellgate.record.store.sqlite.database import Database, Query
from cellgate.record.store.sqlite.sums import sums
from cellgate.record.store.sqlite.transactions import snapshot
from cellgate.record.store.summing import (
    SUMS_AT_ONCE,
    SUMS_PATIENCE,
    SUMS_WAITING,
    TOO_MANY,
    PlacedSum,
    SumQuestion,
)
from cellgate_kernels.base.resources import MIB

MANY_EVENTS = 10_000
"""Events of a session above which looking through them takes more than some milliseconds."""
LONG_LIVES_AT_ONCE = 2
LONG_LIVES_WAITING = 512
LONG_LIVES_PATIENCE = 60.0
STEP_ROWS = 256
"""Most rows that a step of `Steps` reads."""
STEP_BYTES = 2 * MIB
"""Most bytes that a step reads; a larger row is a step by itself."""

P = ParamSpec("P")
T = TypeVar("T")


class ConnectionSteps(Steps):
    """Steps over one connection, until `stop` is set. See ``interface.Steps``."""

    def __init__(self, db: sqlite3.Connection, stop: Event) -> None:
        self._db = db
        self._stop = stop

    def go_on(self) -> None:
        if self._stop.is_set():
            raise GivenUp

    def events(self, session_id: int, after: int, last: int) -> list[EventRow]:
        self.go_on()
        return schema.events(self._db, session_id, after, last, STEP_ROWS, STEP_BYTES)

    def is_there(self, session_id: int) -> bool:
        return schema.is_there(self._db, session_id)

    def origin_problem(self, session: SessionRow) -> str | None:
        return ancestry.check_origin(self._db, session).problem


def _query(query: Query[P, T]) -> Callable[Concatenate[Queries, P], Coroutine[Any, Any, T]]:
    """Return the method that runs this query."""

    async def ask(self: Queries, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.read(query, *args, **kwargs)

    return ask


class Queries(Reads):
    """The reads of a record: ``interface.Reads``. `applied` returns once committed rows are in the tables."""

    def __init__(self, path: Path, reader: Database, applied: Callable[[], Awaitable[None]]) -> None:
        self._path = path
        self._reader = reader
        self._applied = applied
        refusal = "Too many sessions with long records are being resumed; try again later"
        self._long_lives = Turns(LONG_LIVES_AT_ONCE, LONG_LIVES_WAITING, LONG_LIVES_PATIENCE, refusal)
        self._sums = Turns(SUMS_AT_ONCE, SUMS_WAITING, SUMS_PATIENCE, TOO_MANY)

    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query in turn, once the tables have all committed rows. Raises StorageError."""
        await self._applied()
        return await self._reader.run_in_turn(query, *args, **kwargs)

    session = _query(schema.session)
    sessions = _query(schema.sessions)
    unfinished_sessions = _query(schema.unfinished_sessions)
    session_folders = _query(schema.session_folders)
    holds_folder = _query(schema.holds_folder)
    lineage = _query(ancestry.lineage)
    descendants = _query(schema.descendants)
    execution = _query(schema.execution)
    last_execution = _query(schema.last_execution)
    executions = _query(schema.executions)
    execution_counts = _query(schema.execution_counts)
    unfinished_counts = _query(schema.unfinished_counts)
    unfinished_executions = _query(schema.unfinished_executions)
    last_event = _query(schema.last_event)
    are_larger = _query(schema.are_larger)
    events = _query(schema.events)
    trail = _query(entries.page)
    acts = _query(entries.acts)

    async def last_life(self, session: SessionRow) -> LastLife:
        if session.head_seq <= MANY_EVENTS:
            return await self.read(_of_events, lives.last_life, session.id)
        async with self._long_lives.turn(session.principal):
            return await self._read_long(lambda db, _: _of_events(db, lives.last_life, session.id))

    async def left_open(self, session_id: int) -> LeftOpen:
        return await self.read(_of_events, lives.left_open, session_id)

    async def in_steps(self, work: Callable[[Steps], T]) -> T:
        return await self._read_long(lambda db, stop: work(ConnectionSteps(db, stop)))

    async def _read_long(self, work: Callable[[sqlite3.Connection, Event], T]) -> T:
        await self._applied()
        database = Database("record-export")
        stop = Event()
        try:
            await database.open(lambda: schema.open_reader(self._path))
            return await database.run(work, stop)
        finally:
            stop.set()
            await database.close()

    async def sums(self, question: SumQuestion) -> list[PlacedSum]:
        async with self._sums.turn(question.principal or ""):
            return await self._read_long(lambda db, stop: sums(db, question, stop))

    async def record_sizes(self) -> dict[str, int]:
        return await self._read_long(lambda db, _: upkeep.record_sizes(db))

    async def record_size(self, session_id: int) -> int:
        return await self._read_long(lambda db, _: upkeep.record_size(db, session_id))

    def event_batches(
        self, session_id: int, *, after: int = 0, until: int | None = None
    ) -> AsyncGenerator[list[EventRow], None]:
        return batches_of(self, session_id, after=after, until=until)


def _of_events(db: sqlite3.Connection, look: Callable[[lives.Read], T], session_id: int) -> T:
    with snapshot(db):
        return look(partial(schema.events_of_types, db, session_id))
