"""The contract of stores of records: what each must do, as tests for whoever writes one.

Subclass `EventStoreContract` or `RecordStoreContract` in a test module, with a fixture that gives an empty
store. The methods are coroutines, run by pytest-asyncio in its auto mode. ``record.store.interface`` says for
each call when it may be made and what is durable when it returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, structs

from cellgate.errors import NotRecorded
from cellgate.record.chain import GENESIS, link
from cellgate.record.events import EventLog
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.record.store.interface import FENCED, FIRST_EPOCH, EventStore, RecordStore
from cellgate.record.store.summing import SumBy, SumQuestion
from cellgate.record.trail import ACCESS, ACT, NewEntry
from cellgate.wire.usage import KnownFigures, UsageSum

MOMENT = "2026-11-21T10:00:00.000000Z"
BODY = b'{"seq":1}'


def session_row(session_id: int, key: str = "", **fields: Any) -> SessionRow:
    """Return the row of a session of `ada`, with these fields."""
    values: dict[str, Any] = {
        "principal": "ada",
        "kernel": "python3",
        "isolation": "sandbox",
        "state": "idle",
        "cause": None,
        "created_at": MOMENT,
        "last_activity": MOMENT,
        "execution_count": 0,
        "limits": {"memory": 1 << 30, "cpus": 1.0},
        "metadata": {"née": "π"},
        "environment": {"kernel_info": {"implementation": "ipython"}},
    }
    return SessionRow(id=session_id, key=key or f"s{session_id}", **{**values, **fields})


def execution_row(session_id: int, number: int, **fields: Any) -> ExecutionRow:
    """Return the row of a session's execution with this number, which has not ended."""
    values: dict[str, Any] = {
        "id": f"e{number}",
        "msg_id": f"m{number}",
        "first_seq": number * 10,
        "last_seq": None,
        "status": None,
        "created_at": MOMENT,
        "idempotency_key": None,
        "request_hash": None,
    }
    return ExecutionRow(session_id=session_id, number=number, **{**values, **fields})


async def cells_of_two(store: RecordStore) -> tuple[int, int, int]:
    """Record cells of `ada` in sessions `a-1` and `b`, and of `bob` in `a-2`; return the sessions' ids."""
    sessions = [
        await store.begin_session(principal, key)
        for principal, key in (("ada", "a-1"), ("ada", "b"), ("bob", "a-2"))
    ]
    first, second, third = sessions
    half = 1 << 59
    rows = [
        execution_row(first, 1, **_ended("2026-11-01T00:00:00.000000Z", cpu_seconds=0.1, network_sent=half)),
        # Begun before midnight, it counts on the day of its end.
        execution_row(first, 2, **_ended("2026-11-29T00:00:00.000001Z", cpu_seconds=0.2, memory_peak=300)),
        execution_row(first, 3, **_ended("2026-11-30T23:59:59.999999Z")),
        execution_row(first, 4, **_ended("2026-12-01T00:00:00.000000Z", cpu_seconds=9.0)),
        # One that was copied from a branch, and one that runs: neither is counted.
        execution_row(first, 5, status="ok", last_seq=51),
        execution_row(first, 6),
        execution_row(
            second,
            1,
            **_ended(
                "2026-11-29T12:00:00.000000Z",
                cpu_seconds=0.4,
                memory_peak=200,
                disk_written=5,
                network_sent=half,
            ),
        ),
        execution_row(third, 1, **_ended("2026-11-30T12:00:00.000000Z")),
    ]
    store.save_session(session_row(first, "a-1"))
    store.save_session(session_row(second, "b"))
    store.save_session(session_row(third, "a-2", principal="bob"))
    for row in rows:
        store.save_execution(execution_row(row.session_id, row.number))
        store.save_execution(row)
    await store.commit()
    return first, second, third


def _ended(at: str, **figures: float) -> dict[str, Any]:
    return {"status": "ok", "last_seq": 100, "ended_at": at, **figures}


class Chain:
    """The event rows of one session, chained."""

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.seq = 0
        self.head = GENESIS

    def next(self, execution: str | None = "e1", *, size: int = 20) -> EventRow:
        """Return the next row, a `stream` event with a text of this size."""
        self.seq += 1
        body = msgspec.json.encode({"seq": self.seq, "type": "stream", "text": "x" * size})
        self.head = link(self.head, body)
        return EventRow(self.session_id, self.seq, "stream", execution, body, self.head)


class EventStoreContract:
    """The contract of any store of events. The fixture `events`: a store with a session whose id is 1."""

    async def test_events_come_back_by_number_count_and_bytes(self, events: EventStore) -> None:
        chain = Chain(1)
        rows = [chain.next(size=100) for _ in range(20)]
        for row in rows:
            events.append(row)
        await events.commit(1)
        assert await events.events(1) == rows
        assert await events.events(1, after=5, until=8) == rows[5:8]
        assert await events.events(1, limit=3) == rows[:3]
        assert await events.events(1, max_bytes=5 * len(rows[0].body)) == rows[:5]
        assert await events.events(1, after=5, max_bytes=1) == rows[5:6]
        assert not events.full_for("ada")
        await events.room("ada")

    async def test_a_session_that_is_refused_is_not_recorded_any_more(self, events: EventStore) -> None:
        events.refuse(1, "a reason")
        events.append(Chain(1).next())
        assert "a reason" in str(events.failure_of(1))
        with pytest.raises(NotRecorded, match="a reason"):
            await events.commit(1)
        with pytest.raises(NotRecorded, match="a reason"):
            events.check_writable(1)
        assert await events.events(1) == []

    async def test_whoever_has_a_former_claim_writes_nothing_and_is_told(self, events: EventStore) -> None:
        chain = Chain(1)
        events.append(chain.next(), epoch=FIRST_EPOCH)
        await events.commit(1, epoch=FIRST_EPOCH)
        former = FIRST_EPOCH - 1
        events.append(chain.next(), epoch=former)
        events.save_session(session_row(1, state="ended"), epoch=former)
        events.save_execution(execution_row(1, 1, idempotency_key="k"), epoch=former)
        with pytest.raises(NotRecorded, match=FENCED):
            await events.commit(1, epoch=former)
        await events.commit(1, epoch=FIRST_EPOCH)
        assert [row.seq for row in await events.events(1)] == [1]
        assert await events.execution_by_key(1, "k") is None
        log = EventLog(events, 1, "s", last_seq=1)
        log.epoch = former
        log.append("session", None, {})
        with pytest.raises(NotRecorded, match=FENCED):
            await log.commit()


class RecordStoreContract(EventStoreContract):
    """The contract of a whole store of records. The fixture `store`: an empty store."""

    @pytest.fixture
    async def events(self, store: RecordStore) -> EventStore:
        """Return the store with a session, as a store of events."""
        store.save_session(session_row(await store.begin_session("ada", "s1")))
        return store

    async def test_a_session_that_is_claimed_goes_on_where_its_record_ends(self, store: RecordStore) -> None:
        session_id = await store.begin_session("ada", "s")
        assert await store.begin_session("ada", "another") > session_id
        log = EventLog(store, session_id, "s")
        log.append("session", None, {})
        log.save_session(session_row(session_id, "s"))
        await log.commit()
        epoch = await store.claim(session_id)
        last = await store.reads.last_event(session_id)
        assert last == (log.head_seq, log.head)
        again = EventLog(store, session_id, "s", last_seq=last[0], head=last[1])
        again.epoch = epoch
        again.append("session", None, {})
        await again.commit()
        assert await store.reads.last_event(session_id) == (2, again.head)
        assert store.failure_of(session_id) is None

    async def test_rows_come_back_as_they_were_saved(self, store: RecordStore) -> None:
        """All columns: nested JSON, text beyond ASCII, None and bytes."""
        session_id, metadata = await store.begin_session("ada", "s1"), {"a": [1, {"b": None}], "ü": "😀"}
        session = session_row(session_id, metadata=metadata, cause="x", folder="c0ffee")
        end: dict[str, Any] = {"status": "ok", "last_seq": 9, "ended_at": MOMENT}
        figures = {"cpu_seconds": 0.1 + 0.2, "memory_peak": 1, "disk_written": 1 << 62, "network_sent": 0}
        key = {"idempotency_key": "k", "request_hash": "h"}
        execution = execution_row(session.id, 1, **key, **end, **figures)
        event = EventRow(session.id, 1, "session", None, BODY, link(GENESIS, BODY))
        store.save_session(session)
        store.save_execution(execution)
        store.append(event)
        await store.commit()
        found = await store.reads.session("ada", session.key)
        assert found == structs.replace(session, head_seq=1, head=event.hash)
        assert await store.reads.execution(session.id, "e1") == execution
        assert await store.events(session.id) == [event]
        assert await store.reads.last_event(session.id) == (1, event.hash)

    async def test_of_several_rows_of_one_thing_the_last_counts(self, store: RecordStore) -> None:
        """Within one group and over several."""
        session_id = await store.begin_session("ada", "s1")
        for count in range(3):
            store.save_session(session_row(session_id, execution_count=count))
            store.save_execution(execution_row(session_id, 1, last_seq=count))
        await store.commit()
        store.save_session(session_row(session_id, state="ended", cause="deleted", execution_count=9))
        store.save_execution(execution_row(session_id, 1, last_seq=20, status="ok"))
        await store.commit()
        assert await store.reads.sessions() == [
            session_row(session_id, state="ended", cause="deleted", execution_count=9)
        ]
        assert await store.reads.executions(session_id) == [
            execution_row(session_id, 1, last_seq=20, status="ok")
        ]

    async def test_what_is_not_there_is_none(self, store: RecordStore) -> None:
        assert await store.reads.session("ada", "s") is None
        assert await store.reads.execution(1, "e") is None
        assert await store.execution_by_key(1, "k") is None
        assert await store.reads.last_execution(1) is None
        assert await store.reads.last_event(1) is None
        assert await store.events(1) == []

    async def test_sessions_are_listed_by_principal_state_and_page(self, store: RecordStore) -> None:
        rows = [
            session_row(await store.begin_session(principal, key), key, principal=principal, state=state)
            for principal in ("ada", "bob")
            for state in ("idle", "busy", "ended")
            for key in (f"{principal}-{state}",)
        ]
        for row in rows:
            store.save_session(row)
        await store.commit()
        assert await store.reads.sessions() == rows
        assert await store.reads.sessions("bob") == rows[3:]
        assert await store.reads.sessions("ada", {"idle", "ended"}) == [rows[0], rows[2]]
        assert await store.reads.sessions("ada", []) == []
        assert await store.reads.sessions(limit=2, after=rows[1].id) == rows[2:4]
        assert await store.reads.sessions(limit=2, after=rows[5].id, newest=True) == [rows[4], rows[3]]
        assert await store.reads.sessions("ada", after=2**53, newest=True) == rows[2::-1]
        assert await store.reads.sessions(prefix="ada-") == rows[:3]
        assert await store.reads.sessions(prefix=rows[1].key, exact=True) == [rows[1]]
        assert await store.reads.sessions(prefix="s%") == []
        assert await store.reads.unfinished_sessions() == [rows[0], rows[1], rows[3], rows[4]]
        assert await store.reads.session("bob", rows[0].key) is None

    async def test_executions_are_found_by_order_key_and_end(self, store: RecordStore) -> None:
        session_id = await store.begin_session("ada", "s1")
        rows = [
            execution_row(session_id, 1, status="ok", idempotency_key="again"),
            execution_row(session_id, 2, status=None),
            execution_row(session_id, 3, status="error", idempotency_key="again"),
            execution_row(session_id, 4, status=None, idempotency_key="other"),
        ]
        store.save_session(session_row(session_id))
        for row in reversed(rows):
            store.save_execution(row)
        await store.commit()
        assert await store.reads.executions(session_id) == rows
        assert await store.reads.executions(session_id, limit=2, after=1) == rows[1:3]
        assert await store.reads.executions(session_id, limit=2, after=4, newest=True) == [rows[2], rows[1]]
        assert await store.reads.execution_counts([session_id, session_id + 1]) == {session_id: 4}
        assert await store.reads.unfinished_executions(session_id) == [rows[1], rows[3]]
        assert await store.reads.unfinished_counts([session_id, session_id + 1]) == {session_id: 2}
        assert await store.execution_by_key(session_id, "again") == rows[2]
        assert await store.reads.last_execution(session_id) == rows[3]

    async def test_events_are_read_in_batches(self, store: RecordStore) -> None:
        session_id = await store.begin_session("ada", "s1")
        store.save_session(session_row(session_id))
        chain = Chain(session_id)
        rows = [chain.next(size=1000) for _ in range(700)]
        for row in rows:
            store.append(row)
        await store.commit()
        every = [batch async for batch in store.reads.event_batches(session_id)]
        assert [row for batch in every for row in batch] == rows
        batches = [batch async for batch in store.reads.event_batches(session_id, after=1, until=600)]
        assert [row for batch in batches for row in batch] == rows[1:600]
        assert len(batches) > 1

    async def test_usage_is_summed_by_principal_session_and_day(self, store: RecordStore) -> None:
        """Of cells that ended in the time, wherever they began; of each figure, where it is known."""
        await cells_of_two(store)
        month = SumQuestion(SumBy.PRINCIPAL, "2026-11-01T00:00:00.000000Z", "2026-12-01T00:00:00.000000Z")
        ada, bob = [each.sum for each in await store.reads.sums(month)]
        assert ada == UsageSum(
            principal="ada",
            cells=4,
            unknown=1,
            cpu_seconds=0.7,
            memory_peak=300,
            disk_written=5,
            network_sent=1 << 60,
            network_received=None,
            known=KnownFigures(cpu_seconds=3, memory_peak=2, disk_written=1, network_sent=2),
        )
        assert bob == UsageSum(principal="bob", cells=1, unknown=1)
        by_session = replace(month, by=SumBy.SESSION)
        found = [each.sum for each in await store.reads.sums(by_session)]
        assert [(each.principal, each.session, each.cells) for each in found] == [
            ("ada", "a-1", 3),
            ("ada", "b", 1),
            ("bob", "a-2", 1),
        ]
        by_day = replace(month, by=SumBy.DAY)
        days = [each.sum for each in await store.reads.sums(by_day)]
        assert [(each.day, each.cells, each.cpu_seconds) for each in days] == [
            ("2026-11-01", 1, 0.1),
            ("2026-11-29", 2, 0.6),
            ("2026-11-30", 2, None),
        ]
        assert all(each.principal is UNSET and each.session is UNSET for each in days)

    async def test_sums_are_of_one_principal_prefix_and_page(self, store: RecordStore) -> None:
        await cells_of_two(store)
        since = "2026-11-29T00:00:00.000000Z"
        every = SumQuestion(SumBy.SESSION, since, "2027-01-01T00:00:00.000000Z")

        async def asked(**fields: Any) -> list[tuple[Any, Any, int]]:
            found = await store.reads.sums(replace(every, **fields))
            return [(each.sum.principal, each.sum.session, each.sum.cells) for each in found]

        assert await asked(principal="ada") == [("ada", "a-1", 3), ("ada", "b", 1)]
        assert await asked(prefix="a-") == [("ada", "a-1", 3), ("bob", "a-2", 1)]
        assert await asked(prefix="a%") == []
        assert await asked(prefix="b", exact=True) == [("ada", "b", 1)]
        assert await asked(prefix="a", exact=True) == []
        assert await asked(principal="eve") == []
        assert await asked(principal="ad\0a") == []
        assert await asked(begin="2026-12-01T00:00:00.000001Z") == []
        # The first moment counts, the last does not.
        assert await asked(begin="2026-12-01T00:00:00.000000Z") == [("ada", "a-1", 1)]
        assert await asked(end="2026-12-01T00:00:00.000000Z", prefix="a-1") == [("ada", "a-1", 2)]
        for by in SumBy:
            places: list[str] = []
            while page := await store.reads.sums(
                replace(every, by=by, limit=1, after=places[-1] if places else "")
            ):
                places += [each.place for each in page]
            assert places == [each.place for each in await store.reads.sums(replace(every, by=by))]
            assert len(places) == {"principal": 2, "session": 3, "day": 3}[by]

    async def test_what_is_purged_is_not_summed(self, store: RecordStore) -> None:
        first, *_ = await cells_of_two(store)
        store.save_session(session_row(first, "a-1", state="ended"))
        await store.commit()
        year = SumQuestion(SumBy.SESSION, "2026-01-01T00:00:00.000000Z", "2027-01-01T00:00:00.000000Z")
        assert [each.sum.session for each in await store.reads.sums(year)] == ["a-1", "b", "a-2"]
        assert await store.purge(first, by="ada", reason="request") is not None
        assert [each.sum.session for each in await store.reads.sums(year)] == ["b", "a-2"]

    async def test_acts_are_added_after_the_newest_that_is_known(self, store: RecordStore) -> None:
        acts = [NewEntry(ACT, {"number": number}) for number in (1, 2, 3)]
        assert not await store.add_to_trail(acts[:1], newest_act=7)
        assert await store.add_to_trail(acts[:1], newest_act=0)
        assert not await store.add_to_trail(acts[:1], newest_act=0)
        ((first, _),) = await store.reads.acts(None, 5)
        assert await store.add_to_trail([NewEntry(ACCESS, {"count": 1})])
        assert await store.add_to_trail(acts[1:], newest_act=first)
        assert not await store.add_to_trail(acts[1:], newest_act=first)
        assert [told["number"] for _, told in await store.reads.acts(None, 5)] == [3, 2, 1]
