"""Purges keep nobody waiting, and are over only when the bytes are nowhere in the data folder."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellgate.errors import NotRecorded, RecordGone, StorageError
from cellgate.record.store.interface import FENCED, FIRST_EPOCH
from cellgate.record.store.sqlite import purge, schema
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.testing.record_store import Chain, session_row
from cellgate_kernels.base.resources import KIB
from tests.pure.record.conftest import all_events, eventually, to_tables
from tests.pure.record.recorded import Recorded, image, text
from tests.support.open_files import no_open_files

MARKER = "purged-marker-"


def found(path: Path) -> list[str]:
    """The files of the folder that hold the marker."""
    marker = MARKER.encode()
    return [file.name for file in path.parent.iterdir() if marker in file.read_bytes()]


async def secret(journal: Journal, key: str, *, rows: int = 20) -> Recorded:
    """An ended session with the marker in rows of all sizes, in values that are stored apart, and a key."""
    session = Recorded(journal, key)
    for number in range(rows):
        session.cell(f"'{MARKER}code'", text(f"{MARKER}{number}" * (number + 1)))
    session.cell("big", text(MARKER * 20_000), image(MARKER * 1000))
    session.end()
    await journal.commit()
    return session


async def cells(journal: Journal, session: Recorded, count: int) -> None:
    for _ in range(count):
        session.cell("1", text("x" * 500))
        await journal.commit(session.row.id)


def problems(path: Path) -> list[str]:
    return [found.problem for found in check_record(path) if found.problem is not None]


async def test_a_purge_by_a_former_claim_removes_nothing(journal: Journal) -> None:
    session = await secret(journal, "kept")
    with pytest.raises(NotRecorded, match=FENCED):
        await journal.purge(session.row.id, by="ada", reason="test", epoch=FIRST_EPOCH - 1)
    assert await journal.reads.session("ada", "kept") is not None
    journal.check_writable(session.row.id)


async def test_a_purge_with_a_slow_reader_keeps_nobody_waiting(journal: Journal, path: Path) -> None:
    """As an export that is read slowly: others commit, and when it ends the bytes are gone."""
    gone, stays = await secret(journal, "gone"), Recorded(journal, "stays")
    await cells(journal, stays, 1)
    await to_tables(journal)
    with closing(schema.open_reader(path)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").fetchone()[0] > 20
        purged = await journal.purge(gone.row.id, by="ada", reason="test")
        assert purged is not None
        await purged.removed
        assert await journal.reads.session("ada", "gone") is None
        async with asyncio.timeout(60):
            # Into the tables each time, where a checkpoint that waits for readers would hold them up: the
            # database gives up after five seconds, so one that did so would fail here or need minutes.
            for _ in range(100):
                await cells(journal, stays, 1)
                await journal.applied()
        assert not purged.erased.done()
        assert found(path)
        assert problems(path) == []
        reader.execute("ROLLBACK")
    await purged.erased
    assert found(path) == []
    assert problems(path) == []
    assert len(await all_events(journal, stays.row.id)) == 1 + 4 * 101


@pytest.fixture
def held_begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Purges stop after the tombstone was written: one event tells that it is, the other lets them go on."""
    begin = purge.begin
    written, go_on = threading.Event(), threading.Event()

    def held(db: sqlite3.Connection, session_id: int, *, by: str, reason: str) -> bool:
        begun = begin(db, session_id, by=by, reason=reason)
        written.set()
        assert go_on.wait(60)
        return begun

    monkeypatch.setattr(purge, "begin", held)
    yield written, go_on
    go_on.set()


async def test_a_purge_whose_caller_leaves_is_carried_through(
    journal: Journal, path: Path, held_begin: tuple[threading.Event, threading.Event]
) -> None:
    """Not only after the next start: the tombstone stands, and nobody else would purge it again."""
    written, go_on = held_begin
    gone = await secret(journal, "gone")
    await to_tables(journal)
    purging = asyncio.ensure_future(journal.purge(gone.row.id, by="ada", reason="test"))
    assert await asyncio.to_thread(written.wait, 30)
    purging.cancel()
    await asyncio.sleep(0.05)
    assert await journal.purge(gone.row.id, by="ada", reason="again") is None
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await purging
    await eventually(lambda: found(path) == [])
    with pytest.raises(RecordGone):
        await journal.commit(gone.row.id)


async def test_bytes_are_erased_once_files_can_be_opened_again(path: Path) -> None:
    journal = await Journal.open(path, sync="full")
    gone = await secret(journal, "gone")
    with no_open_files():
        purged = await journal.purge(gone.row.id, by="ada", reason="test")
        assert purged is not None
        await purged.removed
        await asyncio.sleep(0.2)
        assert not purged.erased.done()
    async with asyncio.timeout(60):
        await purged.erased
    assert found(path) == []
    await journal.close()


async def test_a_mistake_in_a_purge_costs_no_later_one(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that met it is carried through by the next start."""

    def fail(*_: object) -> bool:
        raise LookupError("nobody expects it")

    one, other = await secret(journal, "one"), await secret(journal, "other")
    with monkeypatch.context() as patch:
        patch.setattr(purge, "remove_some", fail)
        failed = await journal.purge(one.row.id, by="ada", reason="test")
        assert failed is not None
        with pytest.raises(StorageError, match="nobody expects it"):
            await failed.removed
    purged = await journal.purge(other.row.id, by="ada", reason="test")
    assert purged is not None
    async with asyncio.timeout(60):
        await purged.erased
    await journal.close()
    journal = await Journal.open(path)
    await eventually(lambda: found(path) == [])
    await journal.close()


async def test_a_journal_that_is_closed_while_a_purge_begins_ends(
    path: Path, held_begin: tuple[threading.Event, threading.Event]
) -> None:
    """The next start carries it through."""
    written, go_on = held_begin
    journal = await Journal.open(path)
    gone = await secret(journal, "gone")
    before = asyncio.all_tasks()
    purging = asyncio.ensure_future(journal.purge(gone.row.id, by="ada", reason="test"))
    assert await asyncio.to_thread(written.wait, 30)
    closing = asyncio.ensure_future(journal.close())
    await asyncio.sleep(0.05)
    go_on.set()
    await closing
    await asyncio.gather(purging, return_exceptions=True)
    assert asyncio.all_tasks() <= before
    journal = await Journal.open(path)
    await eventually(lambda: found(path) == [])
    await journal.close()
    assert problems(path) == []


async def test_many_purges_in_a_row_share_their_end(journal: Journal, path: Path) -> None:
    """While others commit: each is removed at once, and all bytes are gone in the end."""
    sessions = [await secret(journal, f"gone-{number}", rows=2) for number in range(30)]
    stays = Recorded(journal, "stays")
    over = asyncio.Event()

    async def go_on() -> None:
        while not over.is_set():
            await cells(journal, stays, 1)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(go_on())
        purges = [await journal.purge(session.row.id, by="gateway", reason="test") for session in sessions]
        for purged in purges:
            assert purged is not None
            await purged.erased
        over.set()
    assert found(path) == []
    assert problems(path) == []
    assert len(await all_events(journal, stays.row.id)) == stays.log.last_seq


async def test_a_key_is_free_as_soon_as_its_purge_has_begun(journal: Journal, path: Path) -> None:
    gone = await secret(journal, "again")
    with closing(schema.open_reader(path)) as reader:
        reader.execute("BEGIN")
        await journal.applied()
        reader.execute("SELECT count(*) FROM events").fetchone()
        purged = await journal.purge(gone.row.id, by="ada", reason="test")
        assert purged is not None
        assert await journal.purge(gone.row.id, by="ada", reason="test") is None
        again = Recorded(journal, "again")
        again.cell("1", text("1"))
        await to_tables(journal)
        with pytest.raises(RecordGone, match="purged"):
            await journal.commit(gone.row.id)
        assert problems(path) == []
        reader.execute("ROLLBACK")
    await purged.erased
    assert len(await all_events(journal, again.row.id)) == 5
    assert problems(path) == []


async def test_rows_of_a_session_that_is_purged_are_not_taken(journal: Journal, path: Path) -> None:
    """As of an upload that comes at the same moment."""
    gone = await secret(journal, "gone")
    purged = await journal.purge(gone.row.id, by="ada", reason="test")
    assert purged is not None
    gone.log.append("file", None, {"path": MARKER, "action": "created"})
    with pytest.raises(RecordGone):
        await gone.log.commit()
    await purged.erased
    gone.log.append("file", None, {"path": MARKER, "action": "created"})
    with pytest.raises(RecordGone):
        await gone.log.commit()
    await to_tables(journal)
    assert found(path) == []
    assert problems(path) == []


async def test_a_purge_that_a_crash_interrupts_is_carried_on_with(path: Path, tmp_path: Path) -> None:
    """After each of its steps: the record is valid in between, and in the end the bytes are gone."""
    journal = await Journal.open(path, sync="full")
    stays = Recorded(journal, "stays")
    stays.cell("1", text("1"), image("common" * 1000))
    gone = await secret(journal, "gone", rows=3)
    gone.log.append("stream", None, image("common" * 1000)[1])
    await journal.commit()
    await journal.close()
    steps = 0
    done = False
    while not done:
        copy = tmp_path / f"step-{steps}" / path.name
        shutil.copytree(path.parent, copy.parent)
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA secure_delete = ON")
            assert purge.begin(db, gone.row.id, by="ada", reason="test")
            for _ in range(steps):
                done = not purge.remove_some(db, gone.row.id)
            assert purge.begun(db) == [gone.row.id]
        assert problems(copy) == []
        assert "purges" in [one.subject for one in check_record(copy)]
        again = await Journal.open(copy)
        await eventually(lambda opened=again: bool(opened._failures._purged))
        assert found(copy) == []
        assert problems(copy) == []
        assert "purges" not in [one.subject for one in check_record(copy)]
        kept = await again.events(stays.row.id)
        assert b"common" in kept[3].body + kept[4].body
        await again.close()
        steps += 1
    assert steps > 2


async def test_closing_does_not_wait_for_what_readers_hold(path: Path) -> None:
    journal = await Journal.open(path)
    gone = await secret(journal, "gone")
    await journal.applied()
    with closing(schema.open_reader(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        purged = await journal.purge(gone.row.id, by="ada", reason="test")
        assert purged is not None
        await purged.removed
        async with asyncio.timeout(60):
            await journal.close()
        assert isinstance(purged.erased.exception(), StorageError)
    again = await Journal.open(path)
    await eventually(lambda: bool(again._failures._purged))
    assert found(path) == []
    await again.close()


async def test_a_large_record_is_removed_in_short_steps(journal: Journal, path: Path) -> None:
    """No step takes more than a bounded part, whatever there is."""
    gone = Chain(journal.new_session_id())
    journal.save_session(session_row(gone.session_id))
    for _ in range(50):
        for _ in range(20):
            journal.append(gone.next(size=10 * KIB))
        await journal.commit()
    await journal.applied()
    count = 0

    def step() -> int:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            before = db.execute("SELECT count(*) FROM events").fetchone()[0]
            assert purge.remove_some(db, gone.session_id)
            after: int = db.execute("SELECT count(*) FROM events").fetchone()[0]
        assert 0 < before - after <= purge.STEP_ROWS
        assert (before - after) * 10 * KIB <= 2 * purge.STEP_BYTES
        return after

    while await asyncio.to_thread(step):
        count += 1
    assert count >= 4
