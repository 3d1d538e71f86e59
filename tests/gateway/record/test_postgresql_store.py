"""The record in a real PostgreSQL server: the contract of stores, outages, lost answers, former claims."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import msgspec
import psutil
import psycopg
import pytest
from msgspec import structs

from cellgate.errors import NotRecorded, RecordDamaged, RecordGone, RecordSetBack, StorageError, StorageFull
from cellgate.record.chain import verify
from cellgate.record.events import EventLog
from cellgate.record.rows import FIGURES, EventRow
from cellgate.record.store import backlog
from cellgate.record.store.interface import FENCED, FIRST_EPOCH, RecordStore
from cellgate.record.store.postgresql import record_connection, statements, sums, tables, writes
from cellgate.record.store.postgresql import store as store_module
from cellgate.record.store.postgresql.check import check_database, describe_database
from cellgate.record.store.postgresql.known_heads import KnownHeads
from cellgate.record.store.postgresql.opening import bring_up
from cellgate.record.store.postgresql.record_connection import Hold, RecordAddress, connect
from cellgate.record.store.postgresql.session_claims import SessionClaims
from cellgate.record.store.postgresql.store import PostgresStore
from cellgate.record.store.summing import SumBy, SumQuestion
from cellgate.record.trail import ACCESS, ACT, BEGUN, PURGED, NewEntry
from cellgate.testing.record_store import Chain, RecordStoreContract, cells_of_two, execution_row, session_row
from cellgate.wire.events import BranchedFrom
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import KIB, MIB
from tests.pure.record.conftest import eventually
from tests.support.postgresql import PostgresServer


@asynccontextmanager
async def store_at(database: str, **options: Any) -> AsyncGenerator[PostgresStore, None]:
    store = await PostgresStore.open(RecordAddress.of(database), **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(database: str) -> AsyncGenerator[PostgresStore, None]:
    async with store_at(database) as opened:
        yield opened


@pytest.fixture
def other(database: str, store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """Another connection to the tables of `store`."""
    assert store.writable
    with closing(psycopg.connect(database, autocommit=True)) as db:
        db.execute("SET search_path = cellgate")
        yield db


async def begun(store: RecordStore, key: str = "s", **fields: Any) -> Chain:
    """A session with its row and one event, and the chain of that."""
    chain = Chain(await store.begin_session("ada", key))
    store.save_session(session_row(chain.session_id, key, **fields))
    store.append(chain.next(), principal="ada")
    await store.commit(chain.session_id)
    return chain


async def all_events(store: RecordStore, session_id: int) -> list[EventRow]:
    return [row async for batch in store.reads.event_batches(session_id) for row in batch]


async def whole(store: RecordStore, chain: Chain) -> bool:
    """Whether each row of the chain is there once."""
    rows = await all_events(store, chain.session_id)
    found = verify(((row.seq, row.body, row.hash) for row in rows), head=chain.head)
    return found.valid and found.rows == chain.seq


async def trail_of(store: RecordStore) -> list[tuple[str, dict[str, Any]]]:
    """The types and bodies of the audit trail, whose chain is checked."""
    rows, more = await store.reads.trail(0, 1000)
    assert not more
    assert verify((row.seq, row.body, row.hash) for row in rows).valid
    return [(row.type, msgspec.json.decode(row.body)) for row in rows]


class TestPostgresStore(RecordStoreContract):
    """The contract, as for each store."""


# ---- rows -------------------------------------------------------------------------------------------------


async def test_a_reopened_record_has_all_and_gives_new_ids(database: str) -> None:
    async with store_at(database) as first:
        chain = await begun(first)
        assert first.former_activity is None
    async with store_at(database) as second:
        assert await second.begin_session("ada", "other") > chain.session_id
        assert second.former_activity == session_row(chain.session_id).last_activity
        epoch = await second.claim(chain.session_id)
        second.append(chain.next(), epoch=epoch)
        await second.commit(chain.session_id, epoch=epoch)
        assert await whole(second, chain)


async def test_rows_that_nobody_commits_are_written_soon(store: PostgresStore) -> None:
    session_id = await store.begin_session("ada", "s")
    store.save_session(session_row(session_id, "s"))

    async def written() -> bool:
        return len(await store.reads.sessions()) == 1

    await eventually(written)
    assert store.pending_bytes == 0


async def test_a_branch_comes_back_with_its_origin_and_its_line(store: PostgresStore) -> None:
    parent = await begun(store, "parent", folder="f00d")
    origin = BranchedFrom(session="parent", seq=1, head=parent.head.hex())
    row = session_row(await store.begin_session("ada", "child"), "child", folder="c0ffee")
    row = structs.replace(row, parent=parent.session_id, branched_from=origin)
    store.save_session(row)
    store.save_session(structs.replace(row, folder="another"))
    await store.commit()
    found = await store.reads.session("ada", "child")
    assert found == structs.replace(row, folder="another")
    (ancestor,) = (await store.reads.lineage(found, lambda _: True)).ancestors
    assert (ancestor.row.key, ancestor.until) == ("parent", origin)
    assert await store.reads.descendants(parent.session_id, 10) == [found]
    store.save_session(row)
    await store.commit()
    assert await store.reads.session("ada", "child") == found, "the folder never changes"
    assert await store.reads.holds_folder("another", but=parent.session_id)
    assert not await store.reads.holds_folder("f00d", but=parent.session_id)
    assert sorted(await store.reads.session_folders()) == ["another", "f00d"]


async def test_large_and_many_events_are_read_in_steps(store: PostgresStore) -> None:
    chain = await begun(store)
    rows = [chain.next(size=size) for size in (5 * MIB, 10, 20, 5 * MIB, *[10] * 600)]
    for row in rows:
        store.append(row)
    await store.commit()
    assert await whole(store, chain)
    assert [row.seq for row in await store.events(chain.session_id, after=1)] == [2]

    def steps(work: Any) -> list[int]:
        counts, after = [], 0
        while found := work.events(chain.session_id, after, chain.seq):
            counts.append(len(found))
            after = found[-1].seq
        assert work.is_there(chain.session_id)
        return counts

    counts = await store.reads.in_steps(steps)
    assert sum(counts) == chain.seq
    assert max(counts) == 256
    assert await store.reads.are_larger(chain.session_id, 10 * MIB, after=0, until=None)
    assert not await store.reads.are_larger(chain.session_id, 10 * MIB, after=2, until=None)


async def test_sizes_are_those_of_the_events_and_retention_goes_by_them(store: PostgresStore) -> None:
    first = await begun(store, "first", state="ended", last_activity="2026-01-01T00:00:00.000000Z")
    second = await begun(store, "second", state="ended", principal="bob")
    events = [await all_events(store, chain.session_id) for chain in (first, second)]
    bodies = [sum(len(row.body) for row in rows) for rows in events]
    assert await store.reads.record_sizes() == {"ada": bodies[0], "bob": bodies[1]}
    assert await store.reads.record_size(first.session_id) == bodies[0]
    assert await store.overdue(None, sum(bodies)) is None
    row, why = await store.overdue(None, sum(bodies) - 1) or (None, "")
    assert (row and row.key, why) == ("first", "retention_size")
    row, why = await store.overdue("2026-02-01T00:00:00.000000Z", None) or (None, "")
    assert (row and row.key, why) == ("first", "retention_age")
    assert await store.overdue("2025-02-01T00:00:00.000000Z", None) is None


async def test_what_no_text_can_be_is_not_found(store: PostgresStore) -> None:
    chain = await begun(store)
    assert await store.reads.session("ada", "s\0") is None
    assert await store.reads.sessions(prefix="\0") == []
    assert await store.execution_by_key(chain.session_id, "\0") is None


# ---- rows that can't be stored ----------------------------------------------------------------------------


async def test_a_row_that_can_not_be_stored_stops_its_session_alone(store: PostgresStore) -> None:
    """In one group: a text that PostgreSQL has no place for, a key too long for an index, a gap, a break."""
    chains = [await begun(store, f"s{number}") for number in range(5)]
    nul, long, gap, broken, good = chains
    store.save_execution(execution_row(nul.session_id, 1, idempotency_key="a\0b"))
    # What compresses fits: the key has to be noise.
    noise = "".join(chr(0x100 + (number * 7919) % 20011) for number in range(9000))
    store.save_execution(execution_row(long.session_id, 1, idempotency_key=noise))
    gap.next()
    broken.head = bytes(32)
    for chain in chains:
        store.append(chain.next())
    store.save_execution(execution_row(good.session_id, 1))
    reasons = {nul: "0x00", long: "index row", gap: "do not follow", broken: "do not follow"}
    for chain, reason in reasons.items():
        with pytest.raises(NotRecorded, match=reason):
            await store.commit(chain.session_id)
        assert len(await all_events(store, chain.session_id)) == 1
        assert await store.reads.executions(chain.session_id) == []
    await store.commit(good.session_id)
    assert await whole(store, good)
    assert await store.reads.executions(good.session_id) == [execution_row(good.session_id, 1)]
    assert store.not_recorded == 4
    assert store.writable


async def test_a_second_session_with_a_key_is_refused_alone(store: PostgresStore) -> None:
    await begun(store, "s")
    rows = [session_row(await store.begin_session("ada", key), key) for key in ("s", "t")]
    for row in rows:
        store.save_session(row)
    await store.commit(rows[1].id)
    with pytest.raises(NotRecorded, match="sessions_of_key"):
        await store.commit(rows[0].id)
    assert [kind for kind, _ in await trail_of(store)] == [BEGUN, BEGUN]
    assert len(await store.reads.sessions()) == 2


# ---- claims -----------------------------------------------------------------------------------------------


async def test_a_former_claim_writes_nothing_and_its_session_is_told(database: str) -> None:
    """Of two gateways the one that claimed last writes; what the other one enqueues goes nowhere."""
    async with store_at(database, hold=Hold.SHARED) as former, store_at(database, hold=Hold.SHARED) as later:
        chain = await begun(former)
        head = chain.head
        epoch = await later.claim(chain.session_id)
        assert epoch == FIRST_EPOCH + 1
        former.append(chain.next())
        former.save_session(session_row(chain.session_id, "s", state="ended"))
        former.save_execution(execution_row(chain.session_id, 1))
        with pytest.raises(NotRecorded, match=FENCED):
            await former.commit(chain.session_id, epoch=FIRST_EPOCH)
        assert str(former.failure_of(chain.session_id)) == FENCED
        found = await later.reads.session("ada", "s")
        assert found is not None
        assert (found.state, found.head_seq, found.head) == ("idle", 1, head)
        assert await later.reads.executions(chain.session_id) == []
        chain.seq, chain.head = 1, head
        later.append(chain.next(), epoch=epoch)
        await later.commit(chain.session_id, epoch=epoch)
        assert await whole(later, chain)
        # And back: whoever claims again goes on.
        again = await former.claim(chain.session_id)
        assert former.failure_of(chain.session_id) is None
        former.append(chain.next(), epoch=again)
        await former.commit(chain.session_id, epoch=again)
        assert await whole(former, chain)
        later.append(Chain(chain.session_id).next(), epoch=epoch)
        with pytest.raises(NotRecorded, match=FENCED):
            await later.commit(chain.session_id, epoch=epoch)


async def test_a_claim_of_the_same_gateway_ends_the_one_before(store: PostgresStore) -> None:
    chain = await begun(store)
    epoch = await store.claim(chain.session_id)
    store.append(chain.next(), epoch=FIRST_EPOCH)
    with pytest.raises(NotRecorded, match=FENCED):
        await store.commit(chain.session_id, epoch=FIRST_EPOCH)
    await store.commit(chain.session_id, epoch=epoch)
    assert len(await all_events(store, chain.session_id)) == 1


async def test_rows_of_a_former_claim_that_are_on_their_way_do_not_bar_the_next_one(
    store: PostgresStore,
) -> None:
    """They reach the thread between the new claim and its answer, and are refused after that."""
    chain = await begun(store)
    head = chain.head
    claiming = asyncio.ensure_future(store.claim(chain.session_id))
    await asyncio.sleep(0)
    store.append(chain.next())
    store._groups._write()
    epoch = await claiming
    await store.commit()
    chain.seq, chain.head = 1, head
    store.append(chain.next(), epoch=epoch)
    await store.commit(chain.session_id, epoch=epoch)
    assert await whole(store, chain)
    assert store.not_recorded == 0


async def test_rows_of_a_former_claim_whose_write_failed_are_not_tried_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise psycopg.OperationalError("not now")

    chain = await begun(store)
    head = chain.head
    claiming = asyncio.ensure_future(store.claim(chain.session_id))
    await asyncio.sleep(0)
    store.append(chain.next())
    with monkeypatch.context() as patch:
        patch.setattr(store._tables, "write", failing)
        store._groups._write()
    epoch = await claiming
    await eventually(lambda: store.write_failures > 0)
    chain.seq, chain.head = 1, head
    store.append(chain.next(), epoch=epoch)
    await store.commit(chain.session_id, epoch=epoch)
    assert await whole(store, chain)
    assert store.not_recorded == 0


async def test_a_database_without_the_last_commits_is_found(
    store: PostgresStore, other: psycopg.Connection[Any]
) -> None:
    """As after a restore of an older copy, or a standby that lacked them: nothing forks the chain."""
    chain = await begun(store)
    store.append(chain.next())
    await store.commit()
    other.execute("DELETE FROM events WHERE seq = 2")
    other.execute("UPDATE sessions SET head_seq = 1, head = (SELECT hash FROM events WHERE seq = 1)")
    store.append(chain.next())
    with pytest.raises(RecordSetBack):
        await store.commit(chain.session_id)
    assert len(await all_events(store, chain.session_id)) == 1


async def test_a_server_that_went_back_is_found_before_anything_is_written(
    postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a store that writes nothing. Ids are not given again, and the audit trail stays one chain."""
    monkeypatch.setattr(record_connection, "LOOK_SECONDS", 0.05)
    async with store_at(database) as store:
        told: list[int] = []
        store.follow(told.append)
        kept, lost, ended, reopened = [
            await begun(store, key, state=state)
            for key, state in (("kept", "idle"), ("lost", "idle"), ("ended", "idle"), ("reopened", "ended"))
        ]
        postgres_server.keep_copy()
        new, over = [
            await begun(store, key, state=state) for key, state in (("new", "idle"), ("over", "ended"))
        ]
        store.append(lost.next())
        store.append(ended.next())
        store.save_session(session_row(ended.session_id, "ended", state="ended"))
        epoch = await store.claim(reopened.session_id)
        store.append(reopened.next(), epoch=epoch)
        await store.add_to_trail([NewEntry(ACT, {"number": 1})])
        await store.commit()
        postgres_server.put_copy_back()
        missing = {chain.session_id for chain in (lost, ended, reopened, new)}
        await eventually(lambda: {*told} == missing)
        assert len(told) == len(missing), "each is told once, and of what may have been purged nothing"
        for session_id in missing:
            assert isinstance(store.failure_of(session_id), RecordSetBack)
        store.append(kept.next())
        store.append(lost.next())
        store.save_session(session_row(lost.session_id, "lost", state="busy"))
        await store.commit(kept.session_id)
        assert await whole(store, kept)
        assert len(await all_events(store, lost.session_id)) == 1
        row = await store.reads.session("ada", "lost")
        assert row is not None
        assert (row.state, row.head_seq) == ("idle", 1)
        assert (await begun(store, "next")).session_id > over.session_id
        assert [kind for kind, _ in await trail_of(store)] == [BEGUN] * 5
        again = Chain(lost.session_id)
        again.seq, again.head = row.head_seq, row.head
        epoch = await store.claim(lost.session_id)
        store.append(again.next(), epoch=epoch)
        await store.commit(lost.session_id, epoch=epoch)
        assert await whole(store, again)


async def test_a_loss_is_told_even_if_the_new_connection_breaks_at_once(
    postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_connection, "LOOK_SECONDS", 0.05)
    taken, broken = writes.new_ids, []

    def take(db: psycopg.Connection[Any], count: int) -> int:
        if not broken:
            broken.append(count)
            raise psycopg.OperationalError("the connection is gone")
        return taken(db, count)

    async with store_at(database) as store:
        told: list[int] = []
        store.follow(told.append)
        lost = await begun(store)
        postgres_server.keep_copy()
        store.append(lost.next())
        await store.commit()
        monkeypatch.setattr(writes, "new_ids", take)
        postgres_server.put_copy_back()
        await eventually(lambda: told == [lost.session_id] and bool(broken))
        assert await store.begin_session("ada", "another") > lost.session_id
        assert told == [lost.session_id]


def test_what_is_known_of_heads_is_bounded() -> None:
    heads = KnownHeads(most=2)
    for session_id in (1, 2, 1, 3, 4):
        heads.note(session_id, session_id, b"", ended=False)
    heads.note(4, 0, b"", ended=False)
    assert [*heads._heads] == [3]


def test_what_is_known_of_claims_is_bounded() -> None:
    claims = SessionClaims(most=3)
    for session_id in range(10):
        claims.begin(session_id)
        assert claims.is_known(0, FIRST_EPOCH)
    assert claims.epochs_of(range(10)) == dict.fromkeys(range(10), FIRST_EPOCH)
    assert claims.new_of(range(10)) == {7, 8, 9}
    claims.note(0, 5)
    assert not claims.is_known(0, FIRST_EPOCH)
    assert claims.is_known(1, 7), "what was forgotten is learned again"


def test_what_is_remembered_of_others_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_FENCED", 2)
    failures = backlog.Failures(backlog.Room(backlog.Backlog(), MIB), {}, set())
    failures.refuse(9, "a reason")
    for session_id in range(5):
        failures.refuse(session_id, FENCED)
    assert failures.refused == {9: "a reason", 3: FENCED, 4: FENCED}
    for session_id in (3, 9):
        failures.reclaimed(session_id)
    assert failures.refused == {9: "a reason", 4: FENCED}


async def test_one_gateway_holds_the_record_unless_all_share_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_connection, "HOLD_SECONDS", 0.1)
    async with store_at(database):
        with pytest.raises(StorageError, match="Another gateway, or a command, uses the record"):
            await PostgresStore.open(RecordAddress.of(database))
        with pytest.raises(StorageError, match="Another gateway, or a command, uses the record"):
            await PostgresStore.open(RecordAddress.of(database), hold=Hold.SHARED)
    async with store_at(database, hold=Hold.SHARED), store_at(database, hold=Hold.SHARED) as second:
        await begun(second)


# ---- outages ----------------------------------------------------------------------------------------------


async def test_an_outage_costs_no_rows(postgres_server: PostgresServer, store: PostgresStore) -> None:
    """What is recorded meanwhile waits; commits fail and are tried again, and all is there afterwards."""
    chain = await begun(store)
    postgres_server.stop()
    try:
        for _ in range(20):
            store.append(chain.next(), principal="ada")
        with pytest.raises(StorageError, match="PostgreSQL"):
            await store.commit(chain.session_id)
        assert not store.writable
        assert store.write_failures > 0
        with pytest.raises(StorageError, match="PostgreSQL"):
            store.check_writable()
        with pytest.raises(StorageError, match="can't be reached"):
            await store.reads.sessions()
        with pytest.raises(StorageError, match="can't be reached") as refused:
            await store.begin_session("ada", "new")
        assert str(postgres_server.folder) not in refused.value.message, "clients need not know where it is"
        with pytest.raises(StorageError, match="can't be reached"):
            await store.add_to_trail([NewEntry(ACT, {"number": 1})])
        store.append(chain.next(), principal="ada")
    finally:
        postgres_server.start()
    await eventually(lambda: store.writable)
    await store.commit(chain.session_id)
    assert await whole(store, chain)
    assert chain.seq == 22
    await begun(store, "another")


async def test_a_record_is_held_again_after_a_restart_of_the_server_though_nothing_is_written(
    postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_connection, "LOOK_SECONDS", 0.05)
    async with store_at(database):
        postgres_server.stop()
        postgres_server.start()
        with closing(psycopg.connect(database, autocommit=True)) as db:

            def is_held() -> bool:
                held = db.execute("SELECT pg_try_advisory_lock_shared(1128614983, 1)").fetchone()
                db.execute("SELECT pg_advisory_unlock_all()")
                return held == (False,)

            await eventually(is_held)


async def test_a_server_that_takes_a_statement_and_does_not_answer_is_an_outage(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are stopped: the connections stay whole. What it has taken is written once."""
    monkeypatch.setattr(record_connection, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(record_connection, "HOLD_SECONDS", 0.1)

    def process(db: Any) -> int:
        return int(db.info.backend_pid)

    async with store_at(database) as store:
        chain = await begun(store)
        processes = [await store._writer.repeatable(process), await store._reader.repeatable(process)]
        monkeypatch.setattr(record_connection, "ANSWER_SECONDS", 0.5)
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            store.append(chain.next())
            with pytest.raises(StorageError):
                await store.commit(chain.session_id)
            assert not store.writable
            assert len(await store.reads.sessions()) == 1
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)
        monkeypatch.setattr(record_connection, "ANSWER_SECONDS", 75.0)
        await eventually(lambda: store.writable)
        await store.commit(chain.session_id)
        assert await whole(store, chain)


async def test_a_server_that_answers_nobody_is_noticed_long_before_a_statement_may_end(
    postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its processes are stopped. One that answers others is waited for, because it has work to do."""
    monkeypatch.setattr(record_connection, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(record_connection, "DOUBT_SECONDS", 0.1)
    monkeypatch.setattr(record_connection, "CONNECT_SECONDS", 2)

    def sleep(db: Any) -> int:
        db.execute("SELECT pg_sleep(1)")
        return int(db.info.backend_pid)

    async with store_at(database) as store:
        chain = await begun(store)
        assert await store._writer.repeatable(sleep) == await store._writer.repeatable(sleep)
        server = psutil.Process(postgres_server.pid)
        processes = [server, *server.children()]
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        try:
            store.append(chain.next())
            with pytest.raises(StorageError):
                await store.commit(chain.session_id)
            assert not store.writable
        finally:
            for each in processes:
                with suppress(psutil.NoSuchProcess):
                    each.resume()
        await eventually(lambda: store.writable)
        await store.commit(chain.session_id)
        assert await whole(store, chain)


@pytest.mark.parametrize("patience", [None, 0.3])
def test_a_server_that_takes_a_connection_and_does_not_answer_is_given_up(
    database: str, monkeypatch: pytest.MonkeyPatch, patience: float | None
) -> None:
    monkeypatch.setattr(record_connection, "ANSWER_SECONDS", 60.0 if patience else 0.3)
    monkeypatch.setattr(statements, "SET", "SELECT pg_sleep(5), %s::text[], %s::text[]")
    with pytest.raises(StorageError, match="The record's database failed"):
        connect(RecordAddress.of(database), patience=patience)
    monkeypatch.undo()
    with closing(connect(RecordAddress.of(database), patience=patience)) as db:
        assert db.patience == patience


async def test_what_waits_for_the_server_is_bounded(postgres_server: PostgresServer, database: str) -> None:
    async with store_at(database, pending_bytes=64 * KIB) as store:
        chain = await begun(store)
        postgres_server.stop()
        try:
            with suppress(StorageFull):
                for _ in range(1000):
                    store.append(chain.next(size=4 * KIB), principal="ada")
            assert 8 < chain.seq < 32
            assert store.full_for("ada")
            assert store.pending_bytes < 128 * KIB
        finally:
            postgres_server.start()
        await eventually(lambda: store.writable)
        await store.room("ada")
        await store.commit()
        assert store.pending_bytes == 0
        assert len(await all_events(store, chain.session_id)) == chain.seq - 1


async def test_a_server_that_restarts_between_two_cells_is_not_noticed(
    postgres_server: PostgresServer, store: PostgresStore
) -> None:
    chain = await begun(store)
    postgres_server.stop()
    postgres_server.start()
    assert len(await store.reads.sessions()) == 1
    store.append(chain.next())
    await store.commit()
    assert await whole(store, chain)
    assert store.write_failures == 0
    postgres_server.stop()
    postgres_server.start()
    await begun(store, "new")


class LostAnswers:
    """Breaks the writer's connection after a statement has been done, before its answer arrives."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost: list[str] = []
        self._wanted: tuple[str, ...] = ()
        execute = psycopg.Connection.execute

        def losing(db: psycopg.Connection[Any], query: str, *asked: Any, **options: Any) -> Any:
            found = execute(db, query, *asked, **options)
            if query in self._wanted:
                self._wanted = ()
                self.lost.append(query)
                db.close()
                raise psycopg.OperationalError("the answer was lost")
            return found

        monkeypatch.setattr(psycopg.Connection, "execute", losing)

    def lose(self, *statements_: str) -> None:
        """Lose the next answer to one of these."""
        self._wanted = statements_


@pytest.fixture
def answers(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    return LostAnswers(store, monkeypatch)


async def test_a_commit_whose_answer_was_lost_is_made_once(
    store: PostgresStore, answers: LostAnswers
) -> None:
    """The session's head tells it; also of rows that came meanwhile, and of a session that is new."""
    chain = await begun(store)
    for statement in (statements.COMMIT, statements.COMMIT_BEGUN):
        answers.lose(statement)
        other = Chain(chain.session_id)
        if statement is statements.COMMIT_BEGUN:
            other = Chain(await store.begin_session("ada", "new"))
            store.save_session(session_row(other.session_id, "new"))
            store.append(other.next())
        store.append(chain.next())
        store.save_execution(execution_row(chain.session_id, 1, status="ok"))
        commit = asyncio.ensure_future(store.commit())
        await eventually(lambda of=statement: of in answers.lost)
        store.append(chain.next())
        await commit
        await store.commit()
        assert answers.lost[-1] == statement
        assert await whole(store, chain)
        assert len(await store.reads.executions(chain.session_id)) == 1
    assert await whole(store, other)
    assert [kind for kind, _ in await trail_of(store)] == [BEGUN, BEGUN]
    assert store.not_recorded == 0


async def test_an_entry_and_a_tombstone_whose_answers_were_lost_are_written_once(
    store: PostgresStore, answers: LostAnswers
) -> None:
    chain = await begun(store)
    answers.lose(statements.ADD_ENTRIES)
    await store.add_to_trail([NewEntry(ACT, {"number": 1}), NewEntry(ACT, {"number": 2})])
    store.save_session(session_row(chain.session_id, "s", state="ended"))
    answers.lose(statements.PURGE)
    purged = await store.purge(chain.session_id, by="ada", reason="requested")
    assert purged is not None
    await purged.erased
    assert answers.lost == [statements.ADD_ENTRIES, statements.PURGE]
    assert [kind for kind, _ in await trail_of(store)] == [BEGUN, ACT, ACT, PURGED]
    assert [number for number, _ in await store.reads.acts(None, 10)] == [3, 2]


async def test_an_answer_that_comes_while_it_is_asked_for_again_counts_once(
    database: str, store: PostgresStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server still does what the broken connection had sent when the same rows are sent again."""
    chain = await begun(store)
    rows = [chain.next(), chain.next()]
    late: list[Any] = []
    execute = psycopg.Connection.execute

    def racing(db: psycopg.Connection[Any], query: str, *asked: Any, **options: Any) -> Any:
        if query == statements.COMMIT and not late:
            late.append(asked)
            execute(other, query, *asked)
        return execute(db, query, *asked, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", racing)
    for row in rows:
        store.append(row)
    await store.commit(chain.session_id)
    assert late
    assert await whole(store, chain)


async def test_entries_that_are_written_late_are_written_once(
    store: PostgresStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first statement is done when the second one is already on its way."""
    sent: list[Any] = []
    execute = psycopg.Connection.execute

    def late(db: psycopg.Connection[Any], query: str, *asked: Any, **options: Any) -> Any:
        if query != statements.ADD_ENTRIES:
            return execute(db, query, *asked, **options)
        sent.append(asked)
        if len(sent) == 1:
            db.close()
            raise psycopg.OperationalError("the answer was lost")
        if len(sent) == 2:
            execute(other, query, *sent[0])
        return execute(db, query, *asked, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", late)
    await store.add_to_trail([NewEntry(ACT, {"number": 1}), NewEntry(ACT, {"number": 2})])
    assert len(sent) == 2
    assert [told["number"] for _, told in await trail_of(store)] == [1, 2]


async def test_whoever_asks_for_a_lost_answer_is_told_after_a_while(
    store: PostgresStore, answers: LostAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that ends while the server is away does not wait for it."""
    monkeypatch.setattr(store_module, "DECIDE_SECONDS", 0.0)
    answers.lose(statements.ADD_ENTRIES)
    with pytest.raises(StorageError, match="connection to PostgreSQL was lost"):
        await store.add_to_trail([NewEntry(ACT, {"number": 1})])
    assert answers.lost == [statements.ADD_ENTRIES]
    assert len(await trail_of(store)) == 1


# ---- purges and the audit trail ---------------------------------------------------------------------------


async def test_a_purge_leaves_a_tombstone_and_nothing_else(
    store: PostgresStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "PURGED_ROWS", 3)
    kept = await begun(store, "kept")
    chain = await begun(store)
    for number in range(1, 9):
        store.append(chain.next())
        store.save_execution(execution_row(chain.session_id, number))
    await store.commit()
    purged = await store.purge(chain.session_id, by="ada", reason="requested")
    assert purged is not None
    assert await store.reads.session("ada", "s") is None
    await purged.removed
    await purged.erased
    for table in ("events", "executions", "purges"):
        column = "session_id"
        count = other.execute(f"SELECT count(*) FROM {table} WHERE {column} = %s", (chain.session_id,))
        assert count.fetchone() == (0,), table
    kind, told = (await trail_of(store))[-1]
    assert kind == PURGED
    assert (told["session"], told["rows"], told["head"]) == ("s", chain.seq, chain.head.hex())
    assert (told["by"], told["reason"]) == ("ada", "requested")
    assert await store.purge(chain.session_id, by="ada", reason="again") is None
    with pytest.raises(RecordGone):
        await store.commit(chain.session_id)
    store.append(chain.next())
    await store.commit()
    assert await all_events(store, chain.session_id) == []
    assert await whole(store, kept)


async def test_the_next_gateway_goes_on_with_a_purge(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store_at(database) as store:
        chain = await begun(store)
        with monkeypatch.context() as patch:
            patch.setattr(writes, "remove_some", lambda *_: True)
            assert await store.purge(chain.session_id, by="ada", reason="requested")
    async with store_at(database) as store:
        with pytest.raises(RecordGone):
            store.check_writable(chain.session_id)
        with closing(psycopg.connect(database, autocommit=True)) as db:
            count = "SELECT count(*) FROM cellgate.events"
            await eventually(lambda: db.execute(count).fetchone() == (0,))


async def test_two_gateways_write_one_audit_trail(database: str) -> None:
    async with store_at(database, hold=Hold.SHARED) as one, store_at(database, hold=Hold.SHARED) as two:

        async def write(store: PostgresStore, name: str) -> None:
            for number in range(20):
                await begun(store, f"{name}{number}")
                await store.add_to_trail([NewEntry(ACT, {"number": number, "who": name})])

        await asyncio.gather(write(one, "one"), write(two, "two"))
        trail = await trail_of(one)
        assert trail == await trail_of(two)
        for name in ("one", "two"):
            assert [told["number"] for kind, told in trail if told.get("who") == name] == [*range(20)]
        assert sum(kind == BEGUN for kind, _ in trail) == 40


async def test_of_gateways_that_copy_the_same_act_one_adds_it(database: str) -> None:
    async with store_at(database, hold=Hold.SHARED) as one, store_at(database, hold=Hold.SHARED) as two:
        for number in range(20):
            newest = await one.reads.acts(None, 1)
            after = newest[0][0] if newest else 0
            both = (
                store.add_to_trail([NewEntry(ACT, {"number": number})], newest_act=after)
                for store in (one, two)
            )
            other = two.add_to_trail([NewEntry(ACCESS, {"count": number})])
            added = await asyncio.gather(*both, other)
            assert sorted(added) == [False, True, True]
        trail = await trail_of(one)
        assert [told["number"] for kind, told in trail if kind == ACT] == [*range(20)]


# ---- opening ----------------------------------------------------------------------------------------------


def test_gateways_that_start_at_once_make_the_tables_once(database: str) -> None:
    def open_record(_: int) -> None:
        with closing(connect(RecordAddress.of(database), Hold.SHARED)) as db:
            bring_up(db)

    with ThreadPool(8) as pool:
        pool.map(open_record, range(8))


def test_cells_that_wait_are_counted_without_a_look_at_those_that_have_ended(database: str) -> None:
    with closing(connect(RecordAddress.of(database))) as db:
        bring_up(db)
        db.execute(
            "INSERT INTO executions SELECT 1, 'e' || n, n, 'm', 1, 1, CASE WHEN n < 20000 THEN 'ok' END, ''"
            " FROM generate_series(1, 20000) AS s (n)"
        )
        db.execute(statements.ANALYZE)
        assert db.execute(statements.UNFINISHED_COUNTS, ([1],)).fetchall() == [(1, 1)]
        plan = db.execute(f"EXPLAIN {statements.UNFINISHED_COUNTS}", ([1],)).fetchall()
        assert "executions_unfinished" in str(plan)


def test_tables_of_an_earlier_version_get_the_index_that_they_lack(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Or go without it, where the gateway's user may not make it."""

    def has_index() -> bool:
        return bool(db.execute(statements.HAS_UNFINISHED_INDEX).fetchone() == (True,))

    with closing(connect(RecordAddress.of(database))) as db:
        bring_up(db)
        db.execute("DROP INDEX executions_unfinished")
        db.execute("CREATE ROLE writer")
        db.execute("GRANT USAGE ON SCHEMA cellgate TO writer")
        db.execute("GRANT ALL ON ALL TABLES IN SCHEMA cellgate TO writer")
        db.execute("SET ROLE writer")
        assert bring_up(db).purges == []
        assert "Let the table's owner run, in the schema cellgate: CREATE INDEX" in caplog.text
        db.execute("RESET ROLE")
        assert not has_index()
        bring_up(db)
        assert has_index()
        db.execute("DROP OWNED BY writer")
        db.execute("DROP ROLE writer")


async def test_tables_of_an_earlier_version_get_the_ends_of_cells_from_their_events(
    database: str, store: PostgresStore
) -> None:
    """A user who may not change them is told who can."""
    session_id = await store.begin_session("ada", "s")
    log = EventLog(store, session_id, "s")
    log.save_session(session_row(session_id, "s"))
    log.append("session", None, {})
    used = {"cpu_seconds": 1.5, "memory_peak": 7, "disk_written": None, "network_sent": 0}
    for number, told in enumerate(({"usage": used}, {}, {"error": None}), 1):
        ran_in = {"ran_in": "branch"} if number == 3 else {}
        begun = log.append("queued", f"e{number}", {"code": "\0'", "msg_id": "m", "position": 0, **ran_in})
        end = log.append("finished", f"e{number}", {"status": "ok", **told})
        row = execution_row(session_id, number, first_seq=begun["seq"], created_at=begun["at"])
        ended = structs.replace(row, status="ok", last_seq=end["seq"]) if ran_in else row.ended(end)
        store.save_execution(ended)
    await log.commit()
    rows = await store.reads.executions(session_id)
    question = SumQuestion(SumBy.DAY, "2000-01-01T00:00:00.000000Z", "3000-01-01T00:00:00.000000Z")
    known = await store.reads.sums(question)
    assert [(each.sum.cells, each.sum.unknown, each.sum.cpu_seconds) for each in known] == [(2, 1, 1.5)]
    with closing(connect(RecordAddress.of(database))) as db:
        for name in ("ended_at", *FIGURES):
            db.execute(f"ALTER TABLE executions DROP COLUMN {name}")
        db.execute("UPDATE about SET version = 1")
        db.execute("CREATE ROLE reader")
        db.execute("GRANT USAGE ON SCHEMA cellgate TO reader")
        db.execute("GRANT ALL ON ALL TABLES IN SCHEMA cellgate TO reader")
        db.execute("SET ROLE reader")
        with pytest.raises(StorageError, match="start a gateway once as their owner"):
            bring_up(db)
        db.execute("RESET ROLE")
        assert "the next start brings up to date" in describe_database(RecordAddress.of(database))
        with pytest.raises(StorageError, match="a gateway of this version brings an older one up to date"):
            list(check_database(RecordAddress.of(database)))
        bring_up(db)
        bring_up(db)
        db.execute("DROP OWNED BY reader")
        db.execute("DROP ROLE reader")
    assert await store.reads.executions(session_id) == rows
    assert await store.reads.sums(question) == known


async def test_a_sum_that_takes_long_is_refused(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cells_of_two(store)
    question = SumQuestion(SumBy.DAY, "2000-01-01T00:00:00.000000Z", "3000-01-01T00:00:00.000000Z")
    slow = "SELECT pg_sleep(60), %(begin)s, %(end)s"
    monkeypatch.setattr(statements, "sums", lambda *_, **__: slow)
    monkeypatch.setattr(sums, "SUM_SECONDS", 0.05)
    with pytest.raises(InvalidInput, match="ask for a shorter time"):
        await store.reads.sums(question)


async def test_a_database_that_can_not_keep_a_record_is_a_clear_error(
    postgres_server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def problem(url: str) -> str:
        with pytest.raises(StorageError) as found:
            await PostgresStore.open(RecordAddress.of(url))
        return found.value.message

    latin = postgres_server.database("--encoding=LATIN1", "--template=template0")
    assert "has the encoding LATIN1" in await problem(latin)
    assert "can't be reached" in await problem(postgres_server.url("missing"))
    unreachable = await problem("postgresql://ada:hunter2@127.0.0.1:1/record")
    assert "can't be reached (database record at 127.0.0.1:1)" in unreachable
    assert "hunter2" not in unreachable
    with pytest.raises(StorageError, match="none that PostgreSQL knows") as bad:
        RecordAddress.of("postgresql://ada:hunter2@[")
    assert "hunter2" not in f"{bad.value.message}{RecordAddress.of('postgresql://ada:hunter2@h/d')!r}"
    async with store_at(database):
        pass
    with closing(psycopg.connect(database, autocommit=True)) as db:
        db.execute("UPDATE cellgate.about SET version = 9")
    assert "has schema 9" in await problem(database)
    version = property(lambda _: 140011)
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", version)
    assert "PostgreSQL 14" in await problem(database)


@pytest.mark.parametrize(
    "place", ["ada:hunter2/9@h/d", "ada:9/hunter2@h/d", "ada:9@hunter2@h/d", "ada:hunter2/d", "h/hunter2@d"]
)
def test_a_password_with_characters_of_urls_is_shown_nowhere(place: str) -> None:
    with pytest.raises(StorageError, match="none that PostgreSQL knows") as bad:
        RecordAddress.of(f"postgresql://{place}")
    assert "hunter2" not in bad.value.message


def test_addresses_of_any_other_form_are_taken(tmp_path: Path) -> None:
    for url, told in (
        ("postgresql://ada:a%2Fb%40c@h:5433/d", "database d at h:5433"),
        (f"postgres:///d?host={tmp_path}&user=a@b", f"database d at {tmp_path}"),
        ("postgresql://[::1]:5432/d", "database d at ::1:5432"),
    ):
        assert str(RecordAddress.of(url)) == told
    assert RecordAddress.of("postgresql://a,b:5433/d").parameters["host"] == "a,b"


async def test_no_connection_can_hang_for_long(store: PostgresStore) -> None:
    names = [name for name, _ in statements.SETTINGS]

    def settings(db: Any) -> dict[str, str]:
        return {name: db.execute(f"SHOW {name}").fetchone()[0] for name in names}

    found = await store._reader.repeatable(settings)
    assert found["idle_in_transaction_session_timeout"] == "10s"
    assert found["statement_timeout"] == "1min"
    assert found["search_path"] == "cellgate, pg_catalog"


def test_a_damaged_row_says_what_mends_a_database() -> None:
    with pytest.raises(RecordDamaged, match="pg_restore puts a dump in its place") as damaged:
        tables.session_row((None,) * 3)
    assert "record restore" not in damaged.value.message
