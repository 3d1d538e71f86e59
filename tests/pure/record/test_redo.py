"""The redo log: what it committed is in the tables after any end of the gateway, once, and in order."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from cellgate.errors import StorageError
from cellgate.record.chain import GENESIS, link, verify
from cellgate.record.rows import EventRow
from cellgate.record.store.sqlite import redo, upkeep
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.redo import beside
from cellgate.testing.record_store import Chain, execution_row, session_row
from cellgate_kernels.base.resources import KIB, MIB
from tests.pure.record.conftest import (
    all_events,
    another_connection,
    eventually,
    journal_at,
    limit_pages,
    to_tables,
)
from tests.pure.record.recorded import Recorded, text

BODY = b'{"seq":1}'


@pytest.fixture
async def normal(path: Path) -> AsyncGenerator[Journal, None]:
    """A journal that commits by the redo log where it can."""
    opened = await Journal.open(path)
    yield opened
    await opened.close()


@pytest.fixture
def other(path: Path, normal: Journal) -> Iterator[sqlite3.Connection]:
    """Another connection to the same tables, to hold their lock."""
    yield from another_connection(path)


def crashed(path: Path, folder: Path) -> Path:
    """What the files would be if the gateway were killed now: copies in a folder of their own."""
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("*.lock", "*-shm"))
    return folder / path.name


def crashed_in_one_moment(journal: Journal, path: Path, folder: Path) -> Path:
    """The same while a journal writes: neither its writer nor the loop does anything between two files.

    The eraser's connection may still move pages from the database's log to the tables. A reader keeps them in
    the log, so that a copy of the tables from before still has them.
    """
    stopped = threading.Event()
    copied = threading.Event()

    def stand_still(_: sqlite3.Connection) -> None:
        stopped.set()
        copied.wait()

    standing = journal._files.writer._submit(stand_still)
    stopped.wait()
    try:
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return crashed(path, folder)
    finally:
        copied.set()
        standing.result()


def in_tables(path: Path) -> int:
    """How many events are in the tables themselves."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        count: int = db.execute("SELECT count(*) FROM events").fetchone()[0]
        return count


async def events(path: Path, session_id: int) -> list[EventRow]:
    """All events of a session, once a gateway has started with these files."""
    async with journal_at(path) as journal:
        return await all_events(journal, session_id)


def whole(rows: list[EventRow], chain: Chain) -> bool:
    """Whether the rows are all of the chain."""
    return verify(((row.seq, row.body, row.hash) for row in rows), head=chain.head).valid


async def synced(journal: Journal) -> None:
    """Return when the disk has what is in the tables, and the log is overwritten where it may be."""
    assert journal._groups.syncer is not None
    await journal._groups.syncer.done()


async def cells(journal: Journal, chain: Chain, count: int, *, size: int = 200) -> None:
    """Commit so many small groups."""
    for _ in range(count):
        journal.append(chain.next(size=size))
        journal.save_session(session_row(chain.session_id))
        await journal.commit()


async def held(journal: Journal, other: sqlite3.Connection) -> Chain:
    """A session that is in the tables, whose lock `other` has from now on."""
    chain = Chain(journal.new_session_id())
    await cells(journal, chain, 1)
    await journal.applied()
    other.execute("BEGIN IMMEDIATE")
    return chain


# ---- where rows are ---------------------------------------------------------------------------------------


async def test_a_commit_is_in_the_log_first_and_a_read_brings_it_into_the_tables(
    path: Path, normal: Journal
) -> None:
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 3)
    assert in_tables(path) == 0
    assert normal.pending_bytes > 0
    assert [row.seq for row in await normal.events(chain.session_id)] == [1, 2, 3]
    assert in_tables(path) == 3
    assert normal.pending_bytes == 0
    await synced(normal)
    assert set(beside(path).read_bytes()) == {0}


async def test_an_idempotency_key_is_found_wherever_its_execution_is(path: Path, normal: Journal) -> None:
    """Nothing is brought into the tables for it: clients ask before each cell."""
    session_id = normal.new_session_id()
    chain = Chain(session_id)
    await cells(normal, chain, 1)
    newest = None
    for number in range(1, 4):
        newest = execution_row(session_id, number, idempotency_key="k")
        normal.save_execution(execution_row(session_id + 1, number + 5, idempotency_key="k"))
        normal.save_execution(newest)
        assert await normal.execution_by_key(session_id, "k") == newest
        normal.save_execution(execution_row(session_id, number + 5, idempotency_key="other"))
        normal.save_session(session_row(session_id + 1))
        await normal.commit()
        assert await normal.execution_by_key(session_id, "k") == newest
    assert await normal.execution_by_key(session_id, "unknown") is None
    assert in_tables(path) == 0
    await normal.applied()
    assert await normal.execution_by_key(session_id, "k") == newest


async def test_rows_go_from_the_log_into_the_tables_by_themselves(path: Path, normal: Journal) -> None:
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 3)
    await eventually(lambda: in_tables(path) == 3)


async def test_a_log_that_gets_full_costs_nothing_but_a_transaction(path: Path, normal: Journal) -> None:
    """Far more than its size is committed without a pause between."""
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 1000, size=4000)
    assert whole(await all_events(normal, chain.session_id), chain)
    assert beside(path).stat().st_size == 2 * redo.HALF_BYTES


async def test_commits_wait_for_the_tables_when_the_log_is_full(
    normal: Journal, other: sqlite3.Connection
) -> None:
    """Somebody holds the database: as much as the log takes is committed, and the rest when it is free."""
    chain = await held(normal, other)
    work = asyncio.create_task(cells(normal, chain, 1000, size=4000))
    await eventually(lambda: bool(normal._backlog.held.waiters) or work.done())
    assert not work.done()
    assert normal.pending_bytes > redo.HALF_BYTES // 2
    other.execute("ROLLBACK")
    await work
    assert whole(await all_events(normal, chain.session_id), chain)


async def test_what_is_too_large_for_the_log_keeps_its_place(
    path: Path, normal: Journal, tmp_path: Path
) -> None:
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 2)
    await cells(normal, chain, 1, size=200 * KIB)
    assert in_tables(path) == 3
    await cells(normal, chain, 2)
    assert in_tables(path) == 3
    copy = crashed(path, tmp_path / "crashed")
    assert whole(await events(copy, chain.session_id), chain)


async def commit(journal: Journal, chain: Chain, *, size: int = 200) -> None:
    """One commit of this session's alone."""
    journal.append(chain.next(size=size))
    journal.save_session(session_row(chain.session_id))
    await journal.commit(chain.session_id)


async def test_what_others_commit_does_not_wait_for_rows_that_are_too_large_for_the_log(
    path: Path, normal: Journal, other: sqlite3.Connection, tmp_path: Path
) -> None:
    """However long the disk takes for these, and whoever has rows enqueued at the same moment."""
    chain, before, between, after = (
        await held(normal, other),
        *(Chain(normal.new_session_id()) for _ in "123"),
    )
    normal.append(before.next(size=300))
    normal.save_session(session_row(before.session_id))
    large = asyncio.create_task(commit(normal, chain, size=200 * KIB))
    async with asyncio.timeout(60):
        await normal.commit(before.session_id)
        await commit(normal, between)
        await eventually(lambda: not normal._backlog.writing.empty)
        await commit(normal, after)
        await commit(normal, before)
    assert not large.done()
    copy = crashed(path, tmp_path / "crashed")
    for kept in (before, between, after):
        assert whole(await events(copy, kept.session_id), kept)
    assert [row.seq for row in await events(copy, chain.session_id)] == [1]
    other.execute("ROLLBACK")
    await large
    for kept in (chain, before, between, after):
        assert whole(await all_events(normal, kept.session_id), kept)


async def test_a_session_of_large_rows_and_others_take_turns(normal: Journal) -> None:
    """Neither keeps the other from the tables, and the rows of each stay in their order."""
    large, small = Chain(normal.new_session_id()), Chain(normal.new_session_id())

    async def commits(chain: Chain, count: int, sizes: tuple[int, ...]) -> None:
        for number in range(count):
            await commit(normal, chain, size=sizes[number % len(sizes)])

    async with asyncio.timeout(60):
        await asyncio.gather(commits(large, 40, (100 * KIB, 200, 300 * KIB)), commits(small, 400, (3000,)))
    for chain in (large, small):
        assert whole(await all_events(normal, chain.session_id), chain)


async def test_logged_rows_reach_the_tables_although_a_transaction_took_their_turn(
    path: Path, normal: Journal
) -> None:
    first, second, large = (Chain(normal.new_session_id()) for _ in "123")
    await commit(normal, first)
    await normal.applied()
    await commit(normal, second)
    normal.append(large.next(size=200 * KIB))
    normal.save_session(session_row(large.session_id))
    await eventually(lambda: in_tables(path) == 3)


async def test_rows_that_nobody_waits_for_are_logged_while_a_large_transaction_is_stuck(
    normal: Journal, other: sqlite3.Connection
) -> None:
    chain = await held(normal, other)
    tasks = [asyncio.create_task(commit(normal, chain, size=MIB)) for _ in "12"]
    await asyncio.sleep(0.1)
    follower = Chain(normal.new_session_id())
    normal.append(follower.next(size=200))
    normal.save_session(session_row(follower.session_id))
    await eventually(lambda: normal._backlog.enqueued.empty)
    assert not any(task.done() for task in tasks)
    other.execute("ROLLBACK")
    await asyncio.gather(*tasks)


async def test_a_frame_whose_number_could_not_be_noted_is_not_there_after_a_crash(
    path: Path, normal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were committed by a transaction instead, and can't be there twice."""
    chain = Chain(normal.new_session_id())
    await commit(normal, chain)
    await normal.applied()
    assert normal._files.redo._descriptors is not None
    broken = normal._files.redo._descriptors[1]
    pwrite = os.pwrite

    def fail(descriptor: int, data: bytes, position: int) -> int:
        if descriptor == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pwrite(descriptor, data, position)

    with monkeypatch.context() as patched:
        patched.setattr(redo.os, "pwrite", fail)
        await commit(normal, chain)
    again = await Journal.open(crashed(path, tmp_path / "crashed"))
    assert whole(await all_events(again, chain.session_id), chain)
    assert again.not_recorded == 0
    await again.close()


async def test_rows_held_for_a_transaction_wait_for_the_logged_ones_of_their_session(
    normal: Journal, other: sqlite3.Connection
) -> None:
    """Written first, they would not follow on what is in the tables."""
    chain = await held(normal, other)
    reading = asyncio.create_task(normal.applied())
    await commit(normal, chain)
    other_chain = Chain(normal.new_session_id())
    await commit(normal, other_chain)
    normal._groups._write()
    await commit(normal, other_chain)
    await commit(normal, chain)
    large = asyncio.create_task(commit(normal, chain, size=200 * KIB))
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    await asyncio.gather(large, reading)
    assert normal.not_recorded == 0
    for kept in (chain, other_chain):
        assert whole(await all_events(normal, kept.session_id), kept)


async def test_a_small_commit_after_one_of_its_session_that_is_being_written_waits_for_it(
    path: Path, normal: Journal, other: sqlite3.Connection, tmp_path: Path
) -> None:
    """It must not be there without what was enqueued before it."""
    chain = await held(normal, other)
    large = asyncio.create_task(cells(normal, chain, 1, size=200 * KIB))
    await eventually(lambda: not normal._backlog.writing.empty)
    small = asyncio.create_task(commit(normal, chain))
    await asyncio.sleep(0.05)
    assert not large.done()
    assert not small.done()
    copy = crashed(path, tmp_path / "crashed")
    again = await Journal.open(copy)
    assert [row.seq for row in await again.events(chain.session_id)] == [1]
    assert again.not_recorded == 0
    await again.close()
    other.execute("ROLLBACK")
    await asyncio.gather(large, small)


async def test_numbers_of_any_size_in_metadata_are_kept(path: Path, normal: Journal) -> None:
    """JSON has them; what the log can't hold goes into the tables at once."""
    rows = [
        session_row(normal.new_session_id(), metadata={"n": number}) for number in (2**63, -(10**30), 1e300)
    ]
    for row in rows:
        normal.save_session(row)
        await normal.commit()
    assert await normal.reads.sessions() == rows
    chain = Chain(rows[1].id)
    normal.append(chain.next())
    normal.save_session(rows[1])
    await normal.commit()
    assert in_tables(path) == 1


# ---- crashes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_what_is_in_the_log_only_outlives_a_crash(
    path: Path, normal: Journal, tmp_path: Path, sync: str
) -> None:
    """All kinds of rows, with all that they hold; also when the next gateway keeps no such log."""
    session = session_row(
        normal.new_session_id(), metadata={"a": [1, {"b": None}], "ü": "😀"}, cause="x", folder="c0ffee"
    )
    execution = execution_row(session.id, 1, idempotency_key="k", request_hash="h")
    event = EventRow(session.id, 1, "session", None, BODY, link(GENESIS, BODY))
    normal.save_session(session)
    normal.save_execution(execution)
    normal.append(event)
    await normal.commit()
    assert in_tables(path) == 0
    copy = crashed(path, tmp_path / "crashed")
    journal = await Journal.open(copy, sync="full" if sync == "full" else "normal")
    found = await journal.reads.session("ada", session.key)
    assert found == structs.replace(session, head_seq=1, head=event.hash)
    assert await journal.reads.execution(session.id, "e1") == execution
    assert await journal.events(session.id) == [event]
    assert journal.new_session_id() > session.id
    assert beside(copy).exists() == (sync == "normal")
    await journal.close()
    assert not beside(copy).exists()


async def test_a_crash_while_it_is_recovered_doubles_nothing(
    path: Path, normal: Journal, tmp_path: Path
) -> None:
    """The rows are in the tables and the log is still there."""
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 5)
    log = beside(path).read_bytes()
    await normal.applied()
    copy = crashed(path, tmp_path / "crashed")
    beside(copy).write_bytes(log)
    assert whole(await events(copy, chain.session_id), chain)


async def test_crashes_at_any_point_of_any_mixture_lose_nothing_committed(path: Path, tmp_path: Path) -> None:
    """Small and large commits of several sessions, reads and purges; the files are copied again and again."""
    seed = random.randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    journal = await Journal.open(path)
    chains = [Chain(journal.new_session_id()) for _ in range(4)]
    purged: set[int] = set()
    try:
        for number in range(150):
            chain = choice.choice(chains)
            step = choice.random()
            if step < 0.6:
                await cells(journal, chain, choice.randrange(1, 4), size=choice.choice((10, 300, 9000)))
            elif step < 0.7:
                await cells(journal, chain, 1, size=100 * KIB)
            elif step < 0.8:
                await journal.reads.last_event(chain.session_id)
            elif step < 0.85:
                purged.add(chain.session_id)
                await journal.purge(chain.session_id, by="ada", reason="test")
                chains.remove(chain)
                chains.append(Chain(journal.new_session_id()))
            else:
                await asyncio.sleep(choice.random() / 50)
            if step > 0.9:
                copy = crashed_in_one_moment(journal, path, tmp_path / f"crashed-{number}")
                for one in chains:
                    assert whole(await events(copy, one.session_id), one), (number, one.session_id)
                for session_id in purged:
                    assert await events(copy, session_id) == []
                shutil.rmtree(copy.parent)
    finally:
        await journal.close()


# ---- what else meets it -----------------------------------------------------------------------------------


async def test_what_is_purged_is_not_in_the_log_any_more(path: Path, normal: Journal) -> None:
    """Whatever other sessions commit meanwhile."""
    gone, stays = Chain(normal.new_session_id()), Chain(normal.new_session_id())
    await cells(normal, gone, 20, size=3000)
    over = asyncio.Event()

    async def go_on() -> None:
        while not over.is_set():
            await cells(normal, stays, 1)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(go_on())
        purged = await normal.purge(gone.session_id, by="ada", reason="test")
        assert purged is not None
        await purged.erased
        over.set()
    assert b"x" * 3000 not in beside(path).read_bytes()
    assert whole(await all_events(normal, stays.session_id), stays)


async def test_the_check_of_a_data_folder_tells_of_rows_in_the_log(
    path: Path, normal: Journal, tmp_path: Path
) -> None:
    session = Recorded(normal, "one")
    session.cell("1", text("1"))
    await normal.commit()
    await normal.applied()
    session.cell("2", text("2"))
    await normal.commit()
    copy = crashed(path, tmp_path / "crashed")
    *tables, log = check_record(copy)
    assert [found.valid for found in tables] == [True, True]
    assert tables[1].checked == "1 entry"
    assert (log.subject, log.valid) == ("redo log", True)
    assert log.checked.startswith("4 rows")
    with upkeep.alone(copy):
        pass
    assert not beside(copy).exists()
    assert [found.subject for found in check_record(copy)] == ["session one of ada", "audit trail"]
    assert all(found.valid for found in check_record(copy))


def failing(call: Callable[..., int], fault: int) -> Callable[..., int]:
    """As `call`, but by writing only half, or by the error with this number."""

    def write(descriptor: int, data: bytes, position: int) -> int:
        if fault:
            raise OSError(fault, os.strerror(fault))
        return call(descriptor, data[: len(data) // 2], position)

    return write


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, 0])
async def test_a_log_that_can_t_be_written_is_done_without(
    path: Path, normal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: int
) -> None:
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 2)
    monkeypatch.setattr(os, "pwrite", failing(os.pwrite, fault))
    await cells(normal, chain, 2)
    assert in_tables(path) == 4
    monkeypatch.undo()
    monkeypatch.setattr(redo, "PAUSE_SECONDS", 0)
    await cells(normal, chain, 1)
    assert in_tables(path) == 5
    assert whole(await events(crashed(path, tmp_path / "one"), chain.session_id), chain)
    normal._files.redo._usable_from = 0
    await cells(normal, chain, 2)
    assert in_tables(path) == 5
    assert whole(await events(crashed(path, tmp_path / "two"), chain.session_id), chain)


async def test_a_disk_that_makes_the_gateway_wait_is_left_alone(
    path: Path, normal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redo, "SLOW_SECONDS", -1)
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 1)
    assert "made a write of" in caplog.text
    await cells(normal, chain, 1)
    assert in_tables(path) == 2


@pytest.mark.parametrize("fault", [errno.ENOSPC, 0])
async def test_without_room_for_a_log_commits_are_transactions(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing(os.pwrite, fault))
        journal = await Journal.open(path)
    try:
        assert "There is no redo log (No space left on device)" in caplog.text
        assert not beside(path).exists()
        await cells(journal, Chain(journal.new_session_id()), 2)
        assert in_tables(path) == 2
    finally:
        await journal.close()


async def test_on_a_full_disk_what_the_log_committed_is_kept(path: Path) -> None:
    """The tables take nothing, and the gateway ends: the next one has it."""
    journal = await Journal.open(path)
    chain = Chain(journal.new_session_id())
    await limit_pages(journal, 1)
    await cells(journal, chain, 200, size=1000)
    with pytest.raises(StorageError, match="no space left"):
        await journal.events(chain.session_id)
    assert not journal.writable
    with pytest.raises(StorageError, match="no space left"):
        await cells(journal, chain, 1)
    with pytest.raises(StorageError, match="no space left"):
        await journal.close()
    assert beside(path).exists()
    rows = await events(path, chain.session_id)
    assert len(rows) == 200
    assert verify((row.seq, row.body, row.hash) for row in rows).valid


async def test_numbers_go_on_after_the_tables_took_nothing_for_a_while(
    path: Path, normal: Journal, tmp_path: Path
) -> None:
    """A group that failed is written later, and what the log commits then outlives a crash."""
    chain = Chain(normal.new_session_id())
    await cells(normal, chain, 1)
    await normal.applied()

    async def fill(size: int) -> None:
        await cells(normal, chain, 100, size=size)
        await to_tables(normal)

    for size in (1000, 100 * KIB):
        await limit_pages(normal, 1)
        with pytest.raises(StorageError, match="no space left"):
            await fill(size)
        await limit_pages(normal, 1_000_000)
        await to_tables(normal)
        await cells(normal, chain, 2)
        copy = crashed(path, tmp_path / f"crashed-{size}")
        assert in_tables(copy) == chain.seq - 2
        assert whole(await events(copy, chain.session_id), chain)
