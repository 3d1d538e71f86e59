"""A session's event log: numbers and chains each event, stores it, and wakes its followers.

An event is encoded once, as the bytes that are hashed, stored and streamed. This module holds no outputs
and knows no execution's state; it talks to a store (``store.interface.EventStore``) and to ``chain``.

A follower is a cursor, not a queue: it reads forward from a sequence number, from a short memory if the
number is recent and from the store otherwise. So a slow reader costs the gateway nothing, and a reader that
reconnects continues where it was. It sees only durable events: after a crash the numbers of lost events are
used again, and a follower that had seen the lost events would never see their replacements.

A large event is encoded and hashed in a thread. Events that arrive meanwhile get their numbers at once and
wait for their place in the chain; so do the rows that must not be stored before them (`then`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from cellgate.errors import LogClosed, NotRecorded, RecordGone, RecordSetBack, StorageError
from cellgate.record.chain import GENESIS, link
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow, storable
from cellgate.record.store.interface import FIRST_EPOCH, EventStore
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane, work_for
from cellgate_kernels.codec.encoding import encode, encode_in_steps

LARGE_EVENT = 1024 * 1024
"""Bytes above which an event is encoded in a thread: so many take about 5 ms."""
MEMORY_EVENTS = 512
MEMORY_BYTES = 1024 * 1024
BATCH_EVENTS = 256


UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""The encoder's errors for values that JSON can't represent."""


def _countable(count: object) -> bool:
    return count is None or (isinstance(count, int) and storable(count))


def now() -> str:
    """Return the current time as in events: RFC 3339 UTC with six decimals and `Z`, for any client.

    Rows and models have their times in the same form.
    """
    seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_second(seconds)}.{microseconds:06}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    # A cell has about six events, mostly within one second: format its date only once.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _make(event: dict[str, Any], head: bytes) -> tuple[bytes, bytes]:
    """Return the body of a large event and its link in the chain; runs in a thread."""
    body = b"".join(encode_in_steps(event))
    return body, link(head, body)


class EventLog:
    """The events of one session. `append` is quick and never waits.

    `last_seq`: the last number assigned. `head_seq`, `head`: the last event in the chain and its hash.
    `lane`: threads for large events; without it they are encoded at once.
    """

    def __init__(
        self,
        store: EventStore,
        session_id: int,
        key: str,
        *,
        last_seq: int = 0,
        head: bytes = GENESIS,
        lane: Lane | None = None,
    ) -> None:
        self.session_id = session_id
        self.key = key
        self.last_seq = self.head_seq = last_seq
        self.head = head
        self._store = store
        self._lane = lane
        # Waiting for the chain, in order: events with their sizes, and functions to be called between them.
        self._unchained: deque[tuple[dict[str, Any], int] | Callable[[], None]] = deque()
        self._chained = asyncio.Event()
        self._tasks = Supervisor(lambda: {"session": key})
        self._visible = self._durable = last_seq
        self._withheld: deque[int] = deque()
        self._memory: deque[EventRow] = deque()
        self._memory_bytes = 0
        self._followers: set[asyncio.Event] = set()
        self._closed = False
        self._overdue: list[int] = []
        self._failures = 0
        self._failure: StorageError | None = None
        self._recorded = True
        self.epoch = FIRST_EPOCH
        """The epoch of the session's claim. Set it before any event."""
        self.whose = ""
        """The session's principal, on whose behalf threads chain large events and rows wait. Set it before
        any event; by default there is none.
        """
        self.overfull: Callable[[], None] = lambda: None
        """Called after each event that is appended while the store is `full_for` the principal."""
        self.stored: Callable[[int], None] | None = None
        """Called with the size of each event that the store has accepted."""

    @property
    def followed(self) -> bool:
        """Whether the log has followers now."""
        return bool(self._followers)

    def append(
        self,
        event_type: str,
        execution: str | None,
        fields: Mapping[str, Any],
        *,
        withhold: bool = False,
        size: int = 0,
    ) -> dict[str, Any]:
        """Number, chain and store an event; return it as the wire has it. It must not change afterwards.

        With `withhold`, followers don't see this event or later ones before `release` of its seq. `size`: its
        approximate bytes, if it may be large. Raises StorageFull when there is no room. Raises LogClosed
        after `close`: a session that gets a kernel again may continue with another log, and rows of two logs
        can't form one chain.
        """
        if self._closed:
            raise LogClosed("The session has ended; nothing more is recorded of it")
        seq = self.last_seq + 1
        event: dict[str, Any] = {
            "seq": seq,
            "session": self.key,
            "execution": execution,
            "type": event_type,
            "at": now(),
            **fields,
        }
        if event_type == "finished" and not _countable(fields.get("execution_count")):
            self._store.refuse(self.session_id, "a cell's execution count can't be stored")
        if self._lane is not None and (self._unchained or size > LARGE_EVENT):
            reserved = max(size, 1)
            self._store.reserve(event_type, reserved, principal=self.whose)
            self._unchained.append((event, reserved))
            if len(self._unchained) == 1:
                self._tasks.start(self._chain_up(self._lane), "large event", self._break_off)
        else:
            body, head = self._made(event)
            row = EventRow(self.session_id, seq, event_type, execution, body, head)
            self._store.append(row, principal=self.whose, epoch=self.epoch)
            self._chained_to(row)
        self.last_seq = seq
        if withhold:
            self._withheld.append(seq)
        self._publish()
        if self._store.full_for(self.whose):
            self.overfull()
        return event

    def then(self, save: Callable[[], None]) -> None:
        """Call `save` when the store has all events so far, which is usually now."""
        if self._unchained:
            self._unchained.append(save)
        else:
            save()

    def save_session(self, row: SessionRow) -> None:
        """Store the session's row, once the store has all events so far."""
        if self._unchained:
            self.then(partial(self._store.save_session, row, epoch=self.epoch))
        else:
            self._store.save_session(row, epoch=self.epoch)

    def save_execution(self, row: ExecutionRow) -> None:
        """Store an execution's row, once the store has all events so far."""
        if self._unchained:
            self.then(partial(self._store.save_execution, row, epoch=self.epoch))
        else:
            self._store.save_execution(row, epoch=self.epoch)

    def _made(self, event: dict[str, Any]) -> tuple[bytes, bytes]:
        try:
            body = encode(event)
        except UNWRITABLE as error:
            body = self._refuse(event, error)
        return body, link(self.head, body)

    def _refuse(self, event: dict[str, Any], error: Exception) -> bytes:
        why = f"a {event['type']} event can't be written down: {in_words(error)}"
        self._store.refuse(self.session_id, why)
        return b"{}"  # a placeholder: the store drops the rows of a refused session

    def _chained_to(self, row: EventRow) -> None:
        """Set the chain's head to a row that the store has."""
        self.head_seq = row.seq
        self.head = row.hash
        if self.stored is not None:
            self.stored(len(row.body))
        if self._followers:
            self._remember(row)

    async def _chain_up(self, lane: Lane) -> None:
        """Encode and chain the waiting events in order, the large ones in threads."""
        work_for(self.whose)
        while self._unchained:
            first = self._unchained[0]
            if callable(first):
                first()
            else:
                event, size = first
                if size > LARGE_EVENT:
                    try:
                        made = await lane.run(_make, event, self.head)
                    except UNWRITABLE as error:
                        body = self._refuse(event, error)
                        made = body, link(self.head, body)
                else:
                    made = self._made(event)
                row = EventRow(self.session_id, event["seq"], event["type"], event["execution"], *made)
                self._store.append(row, principal=self.whose, reserved=True, epoch=self.epoch)
                self._chained_to(row)
                self._store.unreserve(size, principal=self.whose)
            self._unchained.popleft()
            self._chained.set()
            self._publish()

    def _break_off(self, error: Exception) -> None:
        """Drop the waiting events: nothing can follow a break in the chain."""
        self._store.refuse(self.session_id, f"an event could not be written down: {in_words(error)}")
        reserved = sum(0 if callable(waiting) else waiting[1] for waiting in self._unchained)
        self._store.unreserve(reserved, principal=self.whose)
        self._unchained.clear()
        self.head_seq = self.last_seq
        self._chained.set()
        self._publish()

    async def chained(self) -> None:
        """Return when the store has all events so far."""
        seq = self.last_seq
        while self.head_seq < seq:
            self._chained.clear()
            await self._chained.wait()

    async def release(self, seq: int) -> None:
        """Make the withheld event `seq` durable, then show it and the later ones.

        Raises StorageError when it could not be made durable now; it is then shown after a later commit.
        """
        if seq in self._withheld and seq not in self._overdue:
            self._overdue.append(seq)
        await self.commit()

    def _publish(self) -> None:
        self._visible = min(self._withheld[0] - 1, self.head_seq) if self._withheld else self.head_seq
        if not self._recorded:
            self._visible = min(self._visible, self._durable)
        for follower in self._followers:
            follower.set()

    def _remember(self, row: EventRow) -> None:
        self._memory.append(row)
        self._memory_bytes += len(row.body)
        while len(self._memory) > MEMORY_EVENTS or self._memory_bytes > MEMORY_BYTES:
            self._memory_bytes -= len(self._memory.popleft().body)

    async def commit(self) -> None:
        """Return when all events so far are durable. Raises StorageError, to all followers too."""
        await self.chained()
        await self._commit()

    async def _commit(self) -> None:
        durable = self.head_seq
        try:
            await self._store.commit(self.session_id, epoch=self.epoch)
        except StorageError as error:
            self._failures += 1
            self._recorded = not isinstance(error, NotRecorded)
            self._failure = error
            self._publish()
            raise
        self._durable = max(self._durable, durable)
        for seq in [seq for seq in self._overdue if seq <= durable]:
            self._overdue.remove(seq)
            self._withheld.remove(seq)
        self._publish()

    def close(self) -> None:
        """Accept no more events, and end all followers once they have read the existing ones."""
        self._closed = True
        self._publish()

    def reopen(self) -> None:
        """Accept events again after `close`: the session has a kernel again."""
        self._closed = False

    async def read(self, after: int, until: int | None = None) -> list[EventRow]:
        """Return a batch of visible, durable events after `after`, possibly empty, without waiting.

        Raises StorageError when they can't be made durable now, and RecordGone when they were purged.
        """
        until = self._visible if until is None else min(until, self._visible)
        if after >= until:
            return []
        if until > self._durable:
            try:
                await self._commit()
            except NotRecorded:
                # Earlier events can still be read; `follow` then raises the reason why they end there.
                until = self._durable
                if after >= until:
                    return []
        if self._memory and self._memory[0].seq <= after + 1:
            return self._from_memory(after, until)
        rows = await self._store.events(self.session_id, after=after, until=until, limit=BATCH_EVENTS)
        if not rows:
            self._end_at(after)
        return rows

    def _end_at(self, last: int) -> None:
        """End the log after this event, the store's last. Followers get an error for the refused rest.

        Raises RecordGone when the whole record is gone: a follower would take an empty batch for the end.
        """
        failure = self._store.failure_of(self.session_id)
        if not isinstance(failure, NotRecorded):
            raise RecordGone("The record of this session was purged while it was read")
        self._recorded, self._failure, self._durable = False, failure, last
        self._publish()

    def _from_memory(self, after: int, until: int) -> list[EventRow]:
        start = after + 1 - self._memory[0].seq
        count = min(until - after, BATCH_EVENTS)
        return [self._memory[index] for index in range(start, start + count)]

    def check_reaches(self, after: int) -> None:
        """Check that the log has an event of this number, which a follower has seen. Raises RecordSetBack.

        Without the error the follower would miss all new events that get the numbers up to this one.
        """
        if after > self.last_seq:
            raise RecordSetBack(
                f"The session's record ends with event {self.last_seq} and has no event {after}. If there was"
                " one, its database went back to an older state: follow the record from an earlier event"
            )

    async def follow(self, after: int) -> AsyncGenerator[list[EventRow], None]:
        """Yield batches of events after `after`, then live ones, until `close`. Close the iterator."""
        wake = asyncio.Event()
        known_failures = self._failures
        self._followers.add(wake)
        try:
            while True:
                wake.clear()
                closed = self._closed
                if rows := await self.read(after):
                    after = rows[-1].seq
                    yield rows
                elif self._failure is not None and (self._failures > known_failures or not self._recorded):
                    raise self._failure
                elif closed and not self._unchained:
                    return
                else:
                    await wake.wait()
        finally:
            self._followers.discard(wake)
            if not self._followers:
                self._memory.clear()
                self._memory_bytes = 0

    async def follow_execution(self, execution: str, after: int) -> AsyncGenerator[list[EventRow], None]:
        """Like `follow`, of one execution only, until its `finished`."""
        async with aclosing(self.follow(after)) as batches:
            async for rows in batches:
                mine = [row for row in rows if row.execution == execution]
                if mine:
                    yield mine
                if mine and mine[-1].type == "finished":
                    return
