"""A gateway's reads of the record in PostgreSQL: functions of a connection, and `PostgresReads` over them.

Each read is one statement, so it sees one moment. Reads through a whole session go step by step, because rows
never change. One thread and one connection serve all short reads; principals with waiting reads take turns.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from threading import Event
from typing import Any, Concatenate, ParamSpec, TypeVar

from cellgate.errors import RecordGone
from cellgate.fairness.turns import Turns
from cellgate.record.chain import GENESIS
from cellgate.record.rows import LARGEST, EventRow, ExecutionRow, Lineage, SessionRow
from cellgate.record.store import ancestry, lives
from cellgate.record.store.ancestry import OriginRows
from cellgate.record.store.backlog import ROW_COST
from cellgate.record.store.event_pages import batches_of
from cellgate.record.store.interface import GivenUp, LastLife, LeftOpen, Reads, Steps
from cellgate.record.store.postgresql import statements
from cellgate.record.store.postgresql.record_connection import (
    Connection,
    Query,
    RecordAddress,
    RecordConnection,
)
from cellgate.record.store.postgresql.sums import sums
from cellgate.record.store.postgresql.tables import event_row, execution_row, session_row
from cellgate.record.store.summing import (
    SUMS_AT_ONCE,
    SUMS_PATIENCE,
    SUMS_WAITING,
    TOO_MANY,
    PlacedSum,
    SumQuestion,
)
from cellgate.record.trail import TrailRow
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import json_decoder

MANY_EVENTS = 10_000
"""The number of events of a session from which a search takes more than some milliseconds."""
LONG_LIVES_AT_ONCE = 2
LONG_LIVES_WAITING = 512
LONG_LIVES_PATIENCE = 60.0
STEP_ROWS = 256
"""The most rows that one step reads."""
STEP_BYTES = 2 * MIB
"""The most bytes that one step reads; a larger row is a step by itself."""
PAGE_BYTES = MIB
"""The most bytes of audit trail entries that are read at once."""

P = ParamSpec("P")
T = TypeVar("T")

_decode = json_decoder(dict[str, Any]).decode


def session(db: Connection, principal: str, key: str) -> SessionRow | None:
    """Return the session that the principal calls `key`."""
    return next(_sessions(db, statements.SESSION, (principal, key)), None)


def session_by_id(db: Connection, session_id: int) -> SessionRow | None:
    """Return the session with this id."""
    return next(_sessions(db, statements.SESSION_BY_ID, (session_id,)), None)


def sessions(
    db: Connection,
    principal: str | None = None,
    states: Collection[str] | None = None,
    *,
    limit: int = 100,
    after: int = 0,
    prefix: str = "",
    exact: bool = False,
    newest: bool = False,
) -> list[SessionRow]:
    """Return sessions as `Reads.sessions`."""
    how = "exact" if exact else "prefix" if prefix else ""
    query = statements.sessions(
        how, of_one=principal is not None, in_states=states is not None, newest=newest
    )
    asked = {"principal": principal, "states": list(states or ()), "after": after, "limit": limit}
    return list(_sessions(db, query, asked | {"prefix": prefix}))


def unfinished_sessions(db: Connection, keys: Collection[tuple[str, str]] | None = None) -> list[SessionRow]:
    """Return the sessions that have not ended, by id; None: those with any key."""
    if keys is None:
        return list(_sessions(db, statements.UNFINISHED_SESSIONS))
    asked = [principal for principal, _ in keys], [key for _, key in keys]
    return list(_sessions(db, statements.UNFINISHED_OF_KEYS, asked))


def descendants(db: Connection, session_id: int, limit: int) -> list[SessionRow]:
    """Return the branches of a session, their branches and so on, by id; at most `limit` of them."""
    return list(_sessions(db, statements.DESCENDANTS, {"id": session_id, "limit": limit}))


def session_folders(db: Connection) -> list[str]:
    """Return the folder of each session, as its row has it."""
    return [folder for (folder,) in db.execute(statements.FOLDERS)]


def holds_folder(db: Connection, folder: str, but: int) -> bool:
    """Return whether another session, which was not deleted, has its files in this folder."""
    return bool(_value(db, statements.HOLDS_FOLDER, (folder, but)))


def last_activity(db: Connection) -> str | None:
    """Return the time at which any session was last used, as stored in rows; None without sessions."""
    found: str | None = _value(db, statements.LAST_ACTIVITY)
    return found


def record_sizes(db: Connection) -> dict[str, int]:
    """Return the bytes of all events of each principal."""
    return dict(db.execute(statements.RECORD_SIZES).fetchall())


def record_size(db: Connection, session_id: int) -> int:
    """Return the bytes of all events of a session."""
    found = db.execute(statements.RECORD_SIZE, (session_id,)).fetchone()
    return 0 if found is None else int(found[0])


def overdue(
    db: Connection, before: str | None, most_bytes: int | None, but: Collection[int] = ()
) -> tuple[SessionRow, str] | None:
    """Return the next ended session whose record should be purged, and why; None when all may stay.

    The size that counts is the sum of all events' bodies: their size in the tables depends on PostgreSQL.
    """
    found = next(_sessions(db, statements.LONGEST_ENDED, (list(but),)), None)
    if found is None:
        return None
    if before is not None and found.last_activity < before:
        return found, "retention_age"
    if most_bytes is not None and int(_value(db, statements.ALL_BYTES)) > most_bytes:
        return found, "retention_size"
    return None


def execution(db: Connection, session_id: int, execution_id: str) -> ExecutionRow | None:
    """Return one execution of a session."""
    return next(iter(_executions(db, statements.EXECUTION, session_id, execution_id)), None)


def execution_by_key(db: Connection, session_id: int, idempotency_key: str) -> ExecutionRow | None:
    """Return the newest execution that was requested under the key."""
    return next(iter(_executions(db, statements.EXECUTION_BY_KEY, session_id, idempotency_key)), None)


def last_execution(db: Connection, session_id: int) -> ExecutionRow | None:
    """Return the session's newest execution."""
    return next(iter(_executions(db, statements.LAST_EXECUTION, session_id)), None)


def executions(
    db: Connection, session_id: int, limit: int = 100, after: int = 0, *, newest: bool = False
) -> list[ExecutionRow]:
    """Return executions as `Reads.executions`."""
    query = statements.NEWEST_EXECUTIONS if newest else statements.EXECUTIONS
    return _executions(db, query, session_id, after, limit)


def execution_counts(db: Connection, session_ids: Sequence[int]) -> dict[int, int]:
    """Count the executions of each of these sessions; sessions without any are left out."""
    return dict(db.execute(statements.EXECUTION_COUNTS, (list(session_ids),)).fetchall())


def unfinished_counts(db: Connection, session_ids: Sequence[int]) -> dict[int, int]:
    """Count the executions without a status of each of these sessions; sessions with none are left out."""
    return dict(db.execute(statements.UNFINISHED_COUNTS, (list(session_ids),)).fetchall())


def unfinished_executions(db: Connection, session_id: int) -> list[ExecutionRow]:
    """Return a session's executions without a status, in their order."""
    return _executions(db, statements.UNFINISHED_EXECUTIONS, session_id)


def is_there(db: Connection, session_id: int) -> bool:
    """Return whether this session exists; a purge removes its row before all others."""
    return bool(_value(db, statements.IS_THERE, (session_id,)))


def last_event(db: Connection, session_id: int) -> tuple[int, bytes] | None:
    """Return the number and the hash of a session's last event as `Reads.last_event`."""
    found = db.execute(statements.LAST_EVENT, (session_id,)).fetchone()
    if found is None:
        return None
    return (0, GENESIS) if found[0] is None else (found[0], found[1])


def events(
    db: Connection,
    session_id: int,
    after: int = 0,
    until: int | None = None,
    limit: int = 256,
    max_bytes: int = MIB,
) -> list[EventRow]:
    """Return events with `after` < seq <= `until`, in order, of at most `max_bytes`, or one.

    Raises RecordGone for events of a purged session that have not been removed yet.
    """
    asked = {"id": session_id, "after": after, "until": LARGEST if until is None else until}
    query = statements.EVENTS
    found = db.execute(query, asked | {"limit": limit, "max_bytes": max_bytes}, binary=True).fetchall()
    if found and not found[0][6]:
        raise RecordGone("The record of this session was purged while it was read")
    return [event_row(values) for values in found]


def event(db: Connection, session_id: int, seq: int) -> EventRow | None:
    """Return a session's event with this number."""
    found = db.execute(statements.EVENT, (session_id, seq), binary=True).fetchone()
    return None if found is None else event_row(found)


def events_of_types(
    db: Connection, session_id: int, types: Collection[str], after: int = 0
) -> Iterator[EventRow]:
    """Yield a session's events of these types with a seq above `after`, in order, read in steps.

    Raises RecordGone when the session is purged meanwhile.
    """
    while True:
        asked = (session_id, after, list(types), STEP_ROWS)
        found = db.execute(statements.EVENTS_OF_TYPES, asked, binary=True).fetchall()
        yield from map(event_row, found)
        if len(found) < STEP_ROWS:
            break
        after = found[-1][1]
    if not is_there(db, session_id):
        raise RecordGone("The record of this session was purged while it was read")


def are_larger(db: Connection, session_id: int, size: int, after: int, until: int | None) -> bool:
    """Return whether these events take more than `size` bytes in memory."""
    last = LARGEST if until is None else until
    asked = {"id": session_id, "size": size, "after": after, "until": last, "row_cost": ROW_COST}
    return bool(_value(db, statements.ARE_LARGER, asked))


def trail_page(db: Connection, after: int, limit: int) -> tuple[list[TrailRow], bool]:
    """Return up to `limit` entries after a number, fewer if long, and whether more follow."""
    rows = [TrailRow(*values) for values in db.execute(statements.TRAIL, (after, limit + 1))]
    found: list[TrailRow] = []
    size = 0
    for row in rows:
        size += len(row.body)
        if len(found) == limit or (found and size > PAGE_BYTES):
            return found, True
        found.append(row)
    return found, False


def acts(db: Connection, before: int | None, limit: int) -> list[tuple[int, dict[str, Any]]]:
    """Return the number and the body of entries as `Reads.acts`."""
    asked = (LARGEST if before is None else before, limit)
    return [(seq, _decode(body)) for seq, body in db.execute(statements.ACTS, asked)]


def lineage(db: Connection, session: SessionRow, covers: Callable[[str], bool]) -> Lineage:
    """Return the recorded ancestors, up to the first whose key is not covered."""
    return ancestry.lineage(DatabaseOrigins(db), session, covers)


@dataclass(frozen=True, slots=True)
class DatabaseOrigins(OriginRows):
    """The rows of a connection's tables."""

    db: Connection

    def session_by_id(self, session_id: int) -> SessionRow | None:
        return session_by_id(self.db, session_id)

    def event(self, session_id: int, seq: int) -> EventRow | None:
        return event(self.db, session_id, seq)

    def tombstones(self, session_id: int) -> Iterator[dict[str, Any]]:
        for (body,) in self.db.execute(statements.TOMBSTONES):
            told = _decode(body)
            if told["session_id"] == session_id:
                yield told


def _value(db: Connection, query: str, asked: Any = ()) -> Any:
    row = db.execute(query, asked).fetchone()
    assert row is not None
    return row[0]


def _sessions(
    db: Connection, query: str, asked: Sequence[object] | Mapping[str, object] = ()
) -> Iterator[SessionRow]:
    values = asked.values() if isinstance(asked, Mapping) else asked
    return iter(()) if _unknown(values) else map(session_row, db.execute(query, asked))


def _executions(db: Connection, query: str, *asked: object) -> list[ExecutionRow]:
    return [] if _unknown(asked) else [execution_row(values) for values in db.execute(query, asked)]


def _unknown(asked: Iterable[object]) -> bool:
    """Return whether a text is none that PostgreSQL could have stored: it has no zero character."""
    return any(isinstance(value, str) and "\0" in value for value in asked)


class DatabaseSteps(Steps):
    """Steps over one connection, until `stop` is set. See ``interface.Steps``."""

    def __init__(self, db: Connection, stop: Event) -> None:
        self._db = db
        self._stop = stop

    def go_on(self) -> None:
        if self._stop.is_set():
            raise GivenUp

    def events(self, session_id: int, after: int, last: int) -> list[EventRow]:
        self.go_on()
        return events(self._db, session_id, after, last, STEP_ROWS, STEP_BYTES)

    def is_there(self, session_id: int) -> bool:
        return is_there(self._db, session_id)

    def origin_problem(self, session: SessionRow) -> str | None:
        return ancestry.check_origin(DatabaseOrigins(self._db), session).problem


def _query(query: Query[P, T]) -> Callable[Concatenate[PostgresReads, P], Coroutine[Any, Any, T]]:
    """Return the method that asks this."""

    async def ask(self: PostgresReads, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.read(query, *args, **kwargs)

    return ask


class PostgresReads(Reads):
    """The reads of a record: ``interface.Reads``, by a connection of its own."""

    def __init__(self, address: RecordAddress, reader: RecordConnection) -> None:
        self._address = address
        self._reader = reader
        refusal = "Too many sessions with long records are being resumed; try again later"
        self._long_lives = Turns(LONG_LIVES_AT_ONCE, LONG_LIVES_WAITING, LONG_LIVES_PATIENCE, refusal)
        self._sums = Turns(SUMS_AT_ONCE, SUMS_WAITING, SUMS_PATIENCE, TOO_MANY)

    async def read(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask this in turn. Raises StorageError."""
        return await self._reader.read_in_turn(query, *args, **kwargs)

    session = _query(session)
    sessions = _query(sessions)
    unfinished_sessions = _query(unfinished_sessions)
    session_folders = _query(session_folders)
    holds_folder = _query(holds_folder)
    lineage = _query(lineage)
    descendants = _query(descendants)
    execution = _query(execution)
    last_execution = _query(last_execution)
    executions = _query(executions)
    execution_counts = _query(execution_counts)
    unfinished_counts = _query(unfinished_counts)
    unfinished_executions = _query(unfinished_executions)
    last_event = _query(last_event)
    are_larger = _query(are_larger)
    events = _query(events)
    trail = _query(trail_page)
    acts = _query(acts)
    record_sizes = _query(record_sizes)
    record_size = _query(record_size)

    async def last_life(self, session: SessionRow) -> LastLife:
        if session.head_seq <= MANY_EVENTS:
            return await self.read(_of_events, lives.last_life, session.id)
        async with self._long_lives.turn(session.principal):
            return await self._read_long(lambda db, _: _of_events(db, lives.last_life, session.id))

    async def left_open(self, session_id: int) -> LeftOpen:
        return await self.read(_of_events, lives.left_open, session_id)

    async def sums(self, question: SumQuestion) -> list[PlacedSum]:
        async with self._sums.turn(question.principal or ""):
            return await self._read_long(lambda db, _: sums(db, question))

    async def in_steps(self, work: Callable[[Steps], T]) -> T:
        return await self._read_long(lambda db, stop: work(DatabaseSteps(db, stop)))

    async def _read_long(self, work: Callable[[Connection, Event], T]) -> T:
        connection = RecordConnection(self._address, "record-export")
        stop = Event()
        try:
            return await connection.run(work, stop)
        finally:
            stop.set()
            await connection.close()

    def event_batches(
        self, session_id: int, *, after: int = 0, until: int | None = None
    ) -> AsyncGenerator[list[EventRow], None]:
        return batches_of(self, session_id, after=after, until=until)


def _of_events(db: Connection, look: Callable[[lives.Read], T], session_id: int) -> T:
    return look(lambda types, after: events_of_types(db, session_id, types, after))
