"""Rows that the tables refuse cost nobody anything but their own session, and never in silence."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from cellgate.errors import LogClosed, NotRecorded, StorageError
from cellgate.record.chain import verify
from cellgate.record.events import EventLog
from cellgate.record.findings import Finding
from cellgate.record.store.backlog import Group
from cellgate.record.store.memory import MemoryStore
from cellgate.record.store.sqlite import schema
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import EventRow, Journal
from cellgate.record.store.sqlite.redo import encode_rows
from cellgate.testing.record_store import Chain, execution_row, session_row
from tests.pure.record.conftest import all_events, eventually, journal_at, to_tables
from tests.pure.record.recorded import Recorded, text

HUGE = 1 << 63


def problems(path: Path) -> list[Finding]:
    return [found for found in check_record(path) if not found.valid]


async def begun(journal: Journal) -> tuple[Recorded, Recorded]:
    """Two sessions with a cell each, in the tables."""
    good, bad = Recorded(journal, "good"), Recorded(journal, "bad")
    for session in (good, bad):
        session.cell("1", text("1"))
    await to_tables(journal)
    return good, bad


def forked(journal: Journal, bad: Recorded) -> None:
    """A row that follows on another head, as of a second writer."""
    other = Chain(bad.row.id)
    other.seq = bad.log.last_seq
    journal.append(other.next())


def gap(journal: Journal, bad: Recorded) -> None:
    chain = Chain(bad.row.id)
    chain.seq, chain.head = bad.log.last_seq + 1, bad.log.head
    journal.append(chain.next())


def twice(journal: Journal, bad: Recorded) -> None:
    chain = Chain(bad.row.id)
    chain.seq, chain.head = bad.log.last_seq, bad.log.head
    row = chain.next()
    journal.append(row)
    journal.append(row)


def same_execution_twice(journal: Journal, bad: Recorded) -> None:
    journal.save_execution(execution_row(bad.row.id, 1, id="another"))


def same_key_twice(journal: Journal, bad: Recorded) -> None:
    journal.save_session(structs.replace(bad.row, id=journal.new_session_id(), key="good"))
    forked(journal, bad)


WAYS = [forked, gap, twice, same_execution_twice, same_key_twice]


@pytest.mark.parametrize("way", WAYS)
async def test_a_session_whose_rows_are_refused_says_so_and_stops(
    journal: Journal, path: Path, way: Callable[[Journal, Recorded], None]
) -> None:
    """Whatever was wrong with them: the others of the same group go on, and all that is said holds."""
    good, bad = await begun(journal)
    shown = await journal.events(bad.row.id)
    way(journal, bad)
    good.cell("2", text("2"))
    # By the log, a commit is acknowledged before the tables have seen the rows.
    await journal.commit(good.row.id)
    await journal.applied()
    with pytest.raises(NotRecorded, match="refused its rows"):
        await journal.commit(bad.row.id)
    with pytest.raises(NotRecorded):
        journal.check_writable(bad.row.id)
    journal.check_writable(good.row.id)
    assert journal.writable
    # What the session goes on to say is not acknowledged, and makes no hole that is.
    bad.cell("3", text("3"))
    good.cell("3", text("3"))
    with pytest.raises(NotRecorded):
        await journal.commit(bad.row.id)
    await journal.commit(good.row.id)
    await journal.applied()
    assert await journal.events(bad.row.id) == shown
    rows = await all_events(journal, good.row.id)
    assert verify(((row.seq, row.body, row.hash) for row in rows), head=good.log.head).rows == 13
    assert journal.not_recorded >= 1
    await journal.close()
    subjects = {found.subject for found in problems(path)}
    assert not any("good" in subject for subject in subjects)


@pytest.mark.parametrize("way", WAYS)
async def test_rows_that_were_acknowledged_are_kept_and_told(
    path: Path, way: Callable[[Journal, Recorded], None]
) -> None:
    """What the redo log took, the tables may refuse a moment later."""
    journal = await Journal.open(path)
    _, bad = await begun(journal)
    way(journal, bad)
    expected = Group()
    expected.absorb(journal._backlog.enqueued)
    await journal.commit(bad.row.id)
    await journal.applied()
    assert journal.failure_of(bad.row.id) is not None
    (found,) = [found for found in problems(path) if found.subject == "session bad of ada"] or problems(path)
    assert "could not be stored and are kept apart" in str(found.problem)
    await journal.close()
    with closing(sqlite3.connect(path)) as db:
        kept = dict(db.execute("SELECT session_id, rows FROM refused").fetchall())
    for number, rows in kept.items():
        assert rows == encode_rows(expected.by_session()[number])
    assert bad.row.id in kept or way is same_key_twice
    # The next gateway knows it too.
    async with journal_at(path) as again:
        with pytest.raises(NotRecorded):
            again.check_writable(next(iter(kept)))


async def test_a_hole_is_not_filled_by_later_rows_of_the_same_writing(journal: Journal) -> None:
    """All rows of a session in one group are refused together."""
    _, bad = await begun(journal)
    before = len(await journal.events(bad.row.id))
    bad.cell("2", text("2"))
    gap(journal, bad)
    await to_tables(journal)
    with pytest.raises(NotRecorded):
        await journal.commit(bad.row.id)
    assert len(await journal.events(bad.row.id)) == before


async def test_the_head_in_the_tables_is_compared_before_it_is_set(path: Path, journal: Journal) -> None:
    """Somebody else has written rows of this session: nothing is overwritten."""
    good, bad = await begun(journal)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE sessions SET head = ? WHERE id = ?", (bytes(32), bad.row.id))
    good.cell("2", text("2"))
    bad.cell("2", text("2"))
    await to_tables(journal)
    with pytest.raises(NotRecorded, match="does not follow from row"):
        await journal.commit(bad.row.id)
    row = await journal.reads.session("ada", "bad")
    assert row is not None
    assert (row.head_seq, row.head) == (5, bytes(32))
    await journal.commit(good.row.id)


@pytest.mark.parametrize("count", [HUGE, -HUGE, 10**30, "1", 1.5])
async def test_a_count_that_no_column_holds_is_refused_when_the_event_is_made(
    journal: Journal, path: Path, count: object
) -> None:
    """Before anything of it is acknowledged: the session's record ends before it."""
    good, bad = await begun(journal)
    before = await journal.events(bad.row.id)
    log = bad.log
    log.append("started", "e9", {"execution_count": 1, "code": "1"})
    event = log.append("finished", "e9", {"status": "ok", "execution_count": count}, withhold=True)
    with pytest.raises(NotRecorded, match="can't be stored"):
        await log.release(event["seq"])
    with pytest.raises(NotRecorded):
        journal.check_writable(bad.row.id)
    good.cell("2", text("2"))
    await journal.commit(good.row.id)
    assert await journal.events(bad.row.id) == before
    await journal.close()
    assert problems(path) == []


@pytest.mark.parametrize("value", [{"a": object()}, {"a": "\ud800"}, {1.5: {}}])
async def test_what_can_t_be_written_down_is_refused_when_the_event_is_made(
    journal: Journal, value: dict[object, object]
) -> None:
    _, bad = await begun(journal)
    bad.log.append("stream", "e9", {"name": "stdout", "text": value})
    if value != {1.5: {}}:
        with pytest.raises(NotRecorded, match="a stream event can't be written down"):
            await bad.log.commit()
    for store in (MemoryStore(),):
        log = EventLog(store, 1, "one")
        log.append("stream", "e9", {"name": "stdout", "text": {"a": object()}})
        with pytest.raises(NotRecorded):
            await log.commit()
        with pytest.raises(NotRecorded):
            store.check_writable(1)


@pytest.mark.parametrize("field", ["number", "first_seq", "last_seq"])
async def test_numbers_of_an_execution_that_no_column_holds_are_refused(journal: Journal, field: str) -> None:
    good, bad = await begun(journal)
    journal.save_execution(replace_row(execution_row(bad.row.id, 9), field))
    with pytest.raises(NotRecorded, match="numbers of execution"):
        await journal.commit(bad.row.id)
    await journal.commit(good.row.id)


def replace_row(row: msgspec.Struct, field: str) -> object:
    return msgspec.structs.replace(row, **{field: HUGE})


async def test_a_row_that_nothing_can_encode_costs_its_session_alone(journal: Journal) -> None:
    """Neither the log nor the tables take it; the commits of others must not fail for it."""
    good, bad = await begun(journal)
    for fields in ({"cause": "\ud800"}, {"metadata": {"a": object()}}):
        journal.save_session(structs.replace(bad.row, **fields))
        good.cell("2", text("2"))
        await journal.commit(good.row.id)
        with pytest.raises(NotRecorded):
            await journal.commit(bad.row.id)
        assert journal.writable
    assert len(await journal.reads.sessions()) == 2


async def test_who_follows_gets_what_is_durable_and_then_the_reason(journal: Journal) -> None:
    """Also who comes later."""
    _, bad = await begun(journal)
    log = bad.log
    seen: list[int] = []
    again: list[int] = []

    async def follow(after: int, seqs: list[int]) -> None:
        async for rows in log.follow(after):
            seqs.extend(row.seq for row in rows)

    follower = asyncio.create_task(follow(0, seen))
    await eventually(lambda: len(seen) == 5)
    log.append("finished", "e9", {"status": "ok", "execution_count": HUGE})
    with pytest.raises(NotRecorded):
        await log.commit()
    with pytest.raises(NotRecorded):
        await follower
    with pytest.raises(NotRecorded):
        await follow(2, again)
    assert seen == [1, 2, 3, 4, 5]
    assert again == [3, 4, 5]


async def test_one_sessions_faulty_rows_cost_no_other_session_anything(journal: Journal) -> None:
    """Also those of a session that there is not, in the same group."""
    good, bad = journal.new_session_id(), journal.new_session_id()
    good_chain, bad_chain = Chain(good), Chain(bad)
    journal.save_session(session_row(good))
    journal.save_session(session_row(bad))
    journal.append(good_chain.next())
    journal.append(bad_chain.next())
    journal.append(EventRow(bad, 1, "stream", None, b"twice", bytes(32)))
    journal.append(good_chain.next())
    journal.append(Chain(999).next())
    await to_tables(journal)
    for session_id, why in ((bad, "can't follow on row 1"), (999, "no such session")):
        with pytest.raises(NotRecorded, match=why):
            await journal.commit(session_id)
    assert len(await journal.events(good)) == 2
    assert await journal.events(bad) == []
    journal.save_session(session_row(good, state="ended"))
    await journal.commit(good)


async def test_a_damaged_count_of_commits_is_told_at_the_start(path: Path) -> None:
    """Else rows in the log would be taken for rows in the tables."""
    await (await Journal.open(path)).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE applied SET number = number + 4")
    with pytest.raises(StorageError, match="number of its last commit"):
        await Journal.open(path)
    with closing(schema.open_reader(path)) as db, pytest.raises(StorageError, match="record restore"):
        schema.applied(db)


async def test_what_was_acknowledged_and_then_refused_ends_a_stream_with_the_reason(path: Path) -> None:
    """The redo log had taken it: a follower gets what the tables have, and does not wait for the rest."""
    journal = await Journal.open(path)
    _, bad = await begun(journal)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE sessions SET head = ? WHERE id = ?", (bytes(32), bad.row.id))
    bad.cell("2", text("2"))
    await bad.log.commit()
    await journal.applied()
    seen: list[int] = []

    async def follow() -> None:
        async for rows in bad.log.follow(0):
            seen.extend(row.seq for row in rows)

    with pytest.raises(NotRecorded):
        await follow()
    assert seen == [1, 2, 3, 4, 5]
    assert await bad.log.read(5) == []
    await journal.close()


async def test_a_log_that_was_closed_takes_nothing_more(journal: Journal) -> None:
    """Another one goes on with the record then, and rows of both would not follow on each other."""
    session = Recorded(journal, "one")
    session.log.close()
    with pytest.raises(LogClosed):
        session.cell("1", text("1"))
    rest = EventLog(journal, session.row.id, "one", last_seq=session.log.last_seq, head=session.log.head)
    rest.append("session", None, {"state": "idle"})
    await rest.commit()
    await journal.applied()
    assert journal.failure_of(session.row.id) is None
