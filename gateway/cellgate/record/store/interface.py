"""The interface of a record's store for every other room. Types alone.

A store keeps rows and answers questions about them; ``record``, ``sessions`` and ``execution`` interpret the
rows. ``sqlite.Journal`` is the store of one gateway and its data folder.

A row is *taken* by a call that does not wait, and *durable* once a later `commit` has returned. Reads see
durable rows alone. All methods belong to one event loop, and each may be called again after it failed.

The writer of a session has claimed it, and each claim has a higher epoch. A session's part of a commit names
the head of its chain before (the hash of the first event covers it), the head after and the epoch. The store
compares and sets them in the transaction that has the rows. So only the last claimant can write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msgspec import UnsetType

from cellgate.errors import NotRecorded, RecordGone
from cellgate.record.rows import EventRow, ExecutionRow, Lineage, SessionRow
from cellgate.record.store.summing import PlacedSum, SumQuestion
from cellgate.record.trail import NewEntry, TrailRow
from cellgate.wire.events import Loss, Missing

T = TypeVar("T")

FIRST_EPOCH = 1
FENCED = "Somebody else has gone on with this session's record; nothing more of it is recorded here"
"""NotRecorded's text for a former claim."""
SET_BACK = (
    "The database with the record went back to an older state, which lacks the last events of this session,"
    " so its kernel has ended; ask again to go on from what is recorded"
)
"""NotRecorded's text for a session whose durable events are gone, as by a restore of an older copy."""
ENDED_HERE = frozenset({FENCED, SET_BACK})
"""The texts of sessions that end here and may be claimed again."""


class GivenUp(Exception):
    """Ends a reading in steps for which nobody waits any more."""


@dataclass(frozen=True, slots=True)
class LastLife:
    """The end of a session's last life, from its events, for the next one.

    `unannounced`: a loss that no execution has announced. `packages`: installed ones, by name. `missing`:
    what the life already lacked at its beginning.
    """

    unannounced: Loss | None
    packages: tuple[str, ...]
    missing: Missing | UnsetType


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Programs and ports of a session whose end is not recorded, in the order in which they began."""

    processes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Purge:
    """A purge in progress. `removed` is done when no row is left, `erased` when the bytes are gone.

    Both fail with StorageError when the store is closed first; the next gateway then carries on.
    """

    session_id: int
    number: int
    removed: asyncio.Future[None]
    erased: asyncio.Future[None]


class Steps(Protocol):
    """The rows of sessions, read by one thread in short steps, with no lock held in between.

    Each step raises GivenUp once the caller of `Reads.in_steps` is cancelled, and StorageError if the record
    can't be read.
    """

    def go_on(self) -> None:
        """Return if the caller still waits. Call it in long work between two steps."""

    def events(self, session_id: int, after: int, last: int) -> Sequence[EventRow]:
        """Return the next events with `after` < seq <= `last`, in order: at least one, if there is one."""

    def is_there(self, session_id: int) -> bool:
        """Return whether there is such a session, and it has not been purged."""

    def origin_problem(self, session: SessionRow) -> str | None:
        """Return why a session does not continue the origin that it names; None if it does."""


class EventStore(Protocol):
    """Accepts the rows of sessions: the record's store, or memory for a session that is not recorded."""

    def reserve(self, event_type: str, size: int, *, principal: str = "") -> None:
        """Reserve room for a row of about `size` bytes, which is appended later. Raises StorageFull."""

    def unreserve(self, size: int, *, principal: str = "") -> None:
        """Release the room for a row that has arrived, or will not come."""

    def append(
        self, row: EventRow, *, principal: str = "", reserved: bool = False, epoch: int = FIRST_EPOCH
    ) -> None:
        """Take a row of a principal's session; it is durable after the next `commit`.

        `reserved`: whether room was reserved for it. Raises StorageFull when there is none. Drops a row of a
        session that is no longer recorded, or of a former claim; `commit` reports that.
        """

    async def commit(self, session_id: int | None = None, *, epoch: int | None = None) -> None:
        """Return when all rows taken before are durable, or those of one session.

        Raises StorageError, after which the rows are kept and tried again. Raises NotRecorded or RecordGone
        when this session is no longer recorded, or another gateway has claimed it since this `epoch`.
        """

    def refuse(self, session_id: int, why: str) -> None:
        """Record nothing more of the session: its rows are dropped, `commit` and `check_writable` raise."""

    def check_writable(self, session_id: int | None = None) -> None:
        """Raise StorageError while rows can't be written, so that nothing new is started.

        Raises NotRecorded or RecordGone when this session is no longer recorded.
        """

    def failure_of(self, session_id: int) -> NotRecorded | RecordGone | None:
        """Return why the session is no longer recorded, None while it is."""

    def full_for(self, principal: str = "") -> bool:
        """Return whether a principal's sessions are to slow down, because so much waits to be written."""

    async def room(self, principal: str = "") -> None:
        """Return when the store is no longer `full_for` a principal."""

    def save_session(self, row: SessionRow, *, epoch: int = FIRST_EPOCH) -> None:
        """Take a session's row, which replaces an earlier one; durable like `append`'s.

        Its dicts must not change afterwards. One that can't be stored ends the recording, as by `refuse`.
        """

    def save_execution(self, row: ExecutionRow, *, epoch: int = FIRST_EPOCH) -> None:
        """Take an execution's row, which replaces `last_seq` and `status` of an earlier one."""

    async def execution_by_key(self, session_id: int, idempotency_key: str) -> ExecutionRow | None:
        """Return the newest execution that was requested under the idempotency key, however old."""

    async def events(
        self,
        session_id: int,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
    ) -> list[EventRow]:
        """Return durable rows with `after` < seq <= `until`, in order.

        At most `limit`, and as many as have `max_bytes` of bodies together, but at least one if there is one.
        """


class Reads(Protocol):
    """Answers questions about durable rows. All methods raise StorageError when the record can't be read."""

    async def session(self, principal: str, key: str) -> SessionRow | None:
        """Return the session that the principal calls `key`."""

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
        """Return up to `limit` sessions with an id above `after`, by id; None: of all, in any state.

        `prefix`: the beginning of their keys or, if `exact`, the whole key. `newest`: sessions with ids below
        `after`, highest first.
        """

    async def unfinished_sessions(self, keys: Collection[tuple[str, str]] | None = None) -> list[SessionRow]:
        """Return the sessions that have not ended: with these principals and keys, or (None) all."""

    async def session_folders(self) -> list[str]:
        """Return the folder of each session, as its row has it."""

    async def holds_folder(self, folder: str, *, but: int) -> bool:
        """Return whether a session other than `but`, not deleted, has its files in this folder."""

    async def lineage(self, session: SessionRow, covers: Callable[[str], bool]) -> Lineage:
        """Return the ancestors of a branch that are recorded, up to the first whose key is not covered."""

    async def descendants(self, session_id: int, limit: int) -> list[SessionRow]:
        """Return up to `limit` branches of a session, branches of these and so on, by id."""

    async def execution(self, session_id: int, execution_id: str) -> ExecutionRow | None:
        """Return one execution; None if there is none."""

    async def last_execution(self, session_id: int) -> ExecutionRow | None:
        """Return the newest execution; its `number` is the count of all."""

    async def executions(
        self, session_id: int, *, limit: int = 100, after: int = 0, newest: bool = False
    ) -> list[ExecutionRow]:
        """Return `limit` executions after number `after`, in order; `newest`: those before it, last first."""

    async def execution_counts(self, session_ids: Sequence[int]) -> dict[int, int]:
        """Return how many executions each of these sessions has; sessions without any are left out."""

    async def unfinished_counts(self, session_ids: Sequence[int]) -> dict[int, int]:
        """Return how many executions of each of these sessions have not ended, without sessions with none."""

    async def unfinished_executions(self, session_id: int) -> list[ExecutionRow]:
        """Return the executions that have not ended, in their order."""

    async def last_event(self, session_id: int) -> tuple[int, bytes] | None:
        """Return the last event's number and hash, or a chain's start; None without such a session."""

    async def last_life(self, session: SessionRow) -> LastLife:
        """Return the session's state before its last end. Reads all its events."""

    async def left_open(self, session_id: int) -> LeftOpen:
        """Return programs and ports whose end is not recorded. Reads all the session's events."""

    async def are_larger(self, session_id: int, size: int, *, after: int, until: int | None) -> bool:
        """Return whether the events with `after` < seq <= `until` take more than `size` bytes in memory."""

    def event_batches(
        self, session_id: int, *, after: int = 0, until: int | None = None
    ) -> AsyncGenerator[list[EventRow], None]:
        """Yield all events that `events` would return without its limits, in batches of its size.

        Raises RecordGone if the session is purged meanwhile, before `until`, if given.
        """

    async def in_steps(self, work: Callable[[Steps], T]) -> T:
        """Return the value of `work`, which reads rows in a separate thread. Callers limit the number."""

    async def record_sizes(self) -> dict[str, int]:
        """Return the bytes of all events of each principal."""

    async def record_size(self, session_id: int) -> int:
        """Return the bytes of all events of a session."""

    async def sums(self, question: SumQuestion) -> list[PlacedSum]:
        """Return sums of what cells used, in order of their places, without those of no cell.

        Raises InvalidInput if it takes too long, and QueueFull while too many others ask.
        """

    async def trail(self, after: int, limit: int) -> tuple[list[TrailRow], bool]:
        """Return entries of the audit trail after the one with this number, and whether there are more."""

    async def acts(self, before: int | None, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the newest acts in the audit trail, newest first; `before`: only acts before that entry."""


class RecordStore(EventStore, Protocol):
    """Keeps the record of all sessions of a gateway."""

    @property
    def reads(self) -> Reads:
        """Return the object that answers questions about the durable rows."""

    former_activity: str | None
    """When any session of earlier gateways was last used, as rows have it; None without sessions."""

    @property
    def appended_bytes(self) -> int:
        """Bytes of all events that were accepted since the start."""

    @property
    def write_failures(self) -> int:
        """The number of writes that failed."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of rows in memory, including rows that are still being made."""

    @property
    def not_recorded(self) -> int:
        """The number of sessions that are no longer recorded; `failure_of` says why."""

    @property
    def writable(self) -> bool:
        """Whether `check_writable` raises nothing."""

    async def begin_session(self, principal: str, key: str) -> int:
        """Return an id that no session has ever had, claimed by `FIRST_EPOCH`. The caller saves the row."""

    async def claim(self, session_id: int) -> int:
        """Return the epoch of a new claim of a session, whose head only this gateway moves from now on.

        Raises NotRecorded if another gateway has the session's key (``sessions.ownership``).
        """

    def follow(self, fenced: Callable[[int], None]) -> None:
        """Call `fenced` with the id of each session that another gateway turns out to have claimed, or whose
        durable events are gone: `failure_of` then returns `RecordSetBack`.
        """

    async def look(self) -> None:
        """Look now whether durable events are gone, and tell `follow`'s callback. Raises StorageError."""

    async def add_to_trail(self, entries: Collection[NewEntry], *, newest_act: int | None = None) -> bool:
        """Append these entries to the audit trail, all or none; durable on return. Raises StorageError.

        `newest_act`: the number of the trail's newest act, as the caller knows it; 0: there is none. If it is
        another, because another gateway was first, nothing is appended. Returns whether they were.
        """

    async def purge(self, session_id: int, *, by: str, reason: str, epoch: int = FIRST_EPOCH) -> Purge | None:
        """Remove the record of an ended session, except for a tombstone; None if there is no such session.

        On return nobody can find the session any more, and its key is free. Raises NotRecorded, and removes
        nothing, if the session was claimed again since this `epoch`; StorageError.
        """

    async def overdue(
        self, before: str | None, most_bytes: int | None, but: Collection[int] = ()
    ) -> tuple[SessionRow, str] | None:
        """Return the ended session whose record should go first, and why: its age, or all records' size.

        `but`: the ids of sessions that stay.
        """

    async def disk_bytes(self) -> int:
        """Return the bytes that the record takes on this machine's disk. Raises OSError."""

    async def close(self) -> None:
        """Make all rows durable and end. Raises StorageError when they can't be written; may be repeated."""
