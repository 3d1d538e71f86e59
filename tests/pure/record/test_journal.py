"""The journal over real SQLite files: nothing committed is lost, nothing waits that should not."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from cellgate.errors import StorageError, StorageFull
from cellgate.record.chain import verify
from cellgate.record.store.backlog import cost
from cellgate.record.store.sqlite import journal as journal_module
from cellgate.record.store.sqlite import schema
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import EventRow, Journal
from cellgate.record.store.sqlite.migrations import OLDEST, VERSION
from cellgate.testing.record_store import Chain, execution_row, session_row
from cellgate_kernels.base.resources import KIB, MIB
from cellgate_kernels.base.threads import work_for
from tests.pure.record.conftest import all_events, another_connection, eventually, limit_pages, to_tables
from tests.support.requirements import require
from tests.support.server import IN_TIME

BODY = b'{"seq":1}'


@pytest.fixture
async def small(path: Path) -> AsyncGenerator[Journal, None]:
    """A journal with room for 64 KiB of waiting rows, whose commits all need the database."""
    opened = await Journal.open(path, sync="full", pending_bytes=64 * KIB)
    yield opened
    await opened.close()


@pytest.fixture
def other(path: Path, small: Journal) -> Iterator[sqlite3.Connection]:
    """Another connection to the file of `small`, to hold its lock."""
    yield from another_connection(path)


# ---- when rows are written ---------------------------------------------------------------------------


async def test_a_sessions_folder_never_changes(journal: Journal) -> None:
    """It names where its files are; a session that has one may not come to another's files."""
    row = session_row(journal.new_session_id(), folder="c0ffee")
    for folder in ("c0ffee", "f00d"):
        journal.save_session(structs.replace(row, folder=folder))
        await to_tables(journal)
    assert await journal.reads.sessions() == [row]


async def test_rows_that_nobody_commits_are_written_soon(path: Path, journal: Journal) -> None:
    session_id = journal.new_session_id()
    journal.save_session(session_row(session_id))

    async def written() -> bool:
        return len(await journal.reads.sessions()) == 1

    await eventually(written)
    assert journal.pending_bytes == 0


async def test_sessions_that_write_at_once_keep_their_order(journal: Journal) -> None:
    """Many sessions, each committing cell by cell: every commit shows its own rows, every chain holds."""

    async def run(session_id: int) -> None:
        chain = Chain(session_id)
        for number in range(1, 11):
            execution = f"e{number}"
            first = chain.seq + 1
            # In the order in which a session does it: events before the rows that they belong to.
            journal.append(chain.next(execution))
            journal.save_session(session_row(session_id, execution_count=number))
            journal.save_execution(execution_row(session_id, number, first_seq=first))
            for _ in range(5):
                journal.append(chain.next(execution))
                await asyncio.sleep(0)
            journal.save_execution(execution_row(session_id, number, last_seq=chain.seq, status="ok"))
            await journal.commit()
            assert await journal.reads.last_event(session_id) == (chain.seq, chain.head)
        found = await all_events(journal, session_id)
        assert verify(((row.seq, row.body, row.hash) for row in found), head=chain.head).rows == 60
        assert len(await journal.reads.executions(session_id)) == 10

    await asyncio.gather(*(run(journal.new_session_id()) for _ in range(20)))
    assert journal.pending_bytes == 0


async def test_a_cancelled_commit_disturbs_no_other(journal: Journal) -> None:
    session_id = journal.new_session_id()
    # Too much for the redo log, which makes nobody wait.
    journal.save_session(session_row(session_id, metadata={"long": "x" * 100_000}))
    abandoned, kept = asyncio.ensure_future(journal.commit()), asyncio.ensure_future(journal.commit())
    await asyncio.sleep(0)
    abandoned.cancel()
    await kept
    assert await journal.reads.session("ada", "s1") is not None
    assert abandoned.cancelled()


# ---- the file ---------------------------------------------------------------------------------------------


async def test_a_reopened_record_has_all_and_gives_new_ids(path: Path) -> None:
    first = await Journal.open(path)
    ids = [first.new_session_id() for _ in range(3)]
    first.save_session(session_row(ids[1]))
    await first.close()
    await first.close()
    second = await Journal.open(path)
    assert await second.reads.sessions() == [session_row(ids[1])]
    assert second.new_session_id() > ids[1]
    await second.close()


async def test_only_the_owner_can_read_the_files(path: Path, journal: Journal) -> None:
    journal.save_session(session_row(journal.new_session_id()))
    await journal.commit()
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert set(modes) >= {"record.sqlite", "record.sqlite-wal", "record.sqlite.lock"}
    assert set(modes) >= {"record.sqlite.redo", "record.sqlite.last"} or not journal._files.redo.usable
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_names_that_mean_something_in_a_uri_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "a ?mode=rw#%20é" / "record.sqlite"
    journal = await Journal.open(path)
    assert await journal.reads.sessions() == []
    await journal.close()
    assert path.is_file()


class Held:
    """The thread that reads does nothing else until it `goes_on`."""

    def __init__(self, journal: Journal) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.reading = asyncio.create_task(journal.reads.read(self._hold))

    def _hold(self, _: sqlite3.Connection) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)


async def test_whoever_reads_waits_for_one_of_each_other_s_reads(journal: Journal) -> None:
    """However many somebody has begun before: there is one thread for all."""
    held, done = Held(journal), list[str]()
    await asyncio.to_thread(held.begun.wait, 60)

    async def read(name: str) -> None:
        work_for(name)
        await journal.reads.read(lambda _: done.append(name))

    reads = [asyncio.create_task(read(name)) for name in (*["ada"] * 20, "bea")]
    await asyncio.sleep(0)
    held.goes_on.set()
    await asyncio.gather(held.reading, *reads)
    assert done == ["ada", "bea", *["ada"] * 19]


async def test_reads_that_wait_when_the_record_is_closed_are_told(path: Path) -> None:
    journal = await Journal.open(path)
    held = Held(journal)
    await asyncio.to_thread(held.begun.wait, 60)
    reads = [asyncio.create_task(journal.reads.session("ada", "s")) for _ in range(3)]
    await asyncio.sleep(0)
    closing_it = asyncio.create_task(journal._files.reader.close())
    await asyncio.sleep(0)
    held.goes_on.set()
    await closing_it
    for read in reads:
        with pytest.raises(StorageError, match="closed"):
            await read
    await journal.close()


@pytest.mark.parametrize(("sync", "level"), [("normal", 1), ("full", 2)])
async def test_the_database_is_set_up_as_promised(path: Path, sync: schema.Sync, level: int) -> None:
    journal = await Journal.open(path, sync=sync)
    expected = {"journal_mode": "wal", "synchronous": level, "foreign_keys": 1}
    for pragma, value in expected.items():
        found = await journal._files.writer.run(lambda db, of=pragma: db.execute(f"PRAGMA {of}").fetchone())
        assert found == (value,)
    with pytest.raises(StorageError, match="readonly"):
        await journal._files.reader.run(lambda db: db.execute("DELETE FROM events"))
    await journal.close()


@pytest.mark.parametrize(
    ("version", "why"),
    [(VERSION + 1, "written by a newer Cellgate"), (OLDEST - 1, "from before the first release")],
)
async def test_another_schema_is_refused_and_left_alone(path: Path, version: int, why: str) -> None:
    await (await Journal.open(path)).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StorageError, match=f"schema {version}, {why}"):
        await Journal.open(path)
    with pytest.raises(StorageError, match=f"schema {version}, {why}"):
        list(check_record(path))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)


@pytest.mark.parametrize("content", ["table", "noise"])
def test_a_file_of_something_else_is_refused(path: Path, content: str) -> None:
    path.parent.mkdir()
    if content == "table":
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE photos (id)")
    else:
        path.write_bytes(b"no database" * 100)
    before = path.read_bytes()
    with pytest.raises(StorageError, match="database"):
        asyncio.run(Journal.open(path))
    assert path.read_bytes() == before


async def test_a_folder_that_can_not_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"record\.sqlite can't be opened"):
        await Journal.open(tmp_path / "file" / "record.sqlite")


async def test_a_closed_journal_takes_and_gives_nothing(path: Path) -> None:
    journal = await Journal.open(path)
    await journal.close()
    for use in (lambda: journal.append(Chain(1).next()), lambda: journal.save_session(session_row(1))):
        with pytest.raises(StorageError, match="closed"):
            use()
    with pytest.raises(StorageError, match="closed"):
        await journal.reads.sessions()
    await journal.commit()
    await journal.room()


# ---- failing storage --------------------------------------------------------------------------------------


async def test_a_full_disk_is_told_and_loses_nothing(journal: Journal) -> None:
    """Commits fail while there is no space; with space again all is there, in order, in one chain."""
    session_id = journal.new_session_id()
    journal.save_session(session_row(session_id))
    await to_tables(journal)
    chain = Chain(session_id)
    await limit_pages(journal, await limit_pages(journal, 100_000))
    for _ in range(3):
        for _ in range(50):
            journal.append(chain.next(size=2000))
        with pytest.raises(StorageFull):
            await journal.commit()
        assert not journal.writable
    assert await journal.events(session_id) == []
    await limit_pages(journal, 100_000)
    await journal.commit()
    assert journal.writable
    rows = await all_events(journal, session_id)
    assert verify(((row.seq, row.body, row.hash) for row in rows), head=chain.head).rows == 150


async def test_a_record_that_could_not_be_written_is_tried_again_by_itself(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RETRY_SECONDS", 0.05)
    await limit_pages(journal, 1)
    session_id = journal.new_session_id()
    journal.save_session(session_row(session_id, metadata={"long": "x" * 100_000}))
    with pytest.raises(StorageFull):
        await journal.commit()
    await limit_pages(journal, 100_000)
    await eventually(lambda: journal.writable)
    assert len(await journal.reads.sessions()) == 1


async def test_memory_is_bounded_while_the_disk_is_full(small: Journal) -> None:
    """Beyond the limit and the reserve a row is refused before it is kept; those kept are written later."""
    await limit_pages(small, 1)
    session_id = small.new_session_id()
    small.save_session(session_row(session_id))
    chain = Chain(session_id)
    kept: list[EventRow] = []

    def append_forever() -> None:
        while True:
            kept.append(chain.next(size=500))
            small.append(kept[-1])

    with pytest.raises(StorageFull):
        append_forever()
    row = kept.pop()
    assert 79 * KIB < small.pending_bytes < 82 * KIB
    with pytest.raises(StorageFull):
        await small.commit()
    with pytest.raises(StorageFull):
        small.append(row)
    await limit_pages(small, 100_000)
    await small.commit()
    small.append(row)
    await small.commit()
    assert await all_events(small, session_id) == [*kept, row]


async def test_large_rows_leave_a_reserve_to_small_ones(small: Journal) -> None:
    """One session's two large outputs do not keep another session's small ones from the record."""
    await limit_pages(small, 1)
    loud, quiet = small.new_session_id(), small.new_session_id()
    for session_id in (loud, quiet):
        small.save_session(session_row(session_id))
    large, little = Chain(loud), Chain(quiet)
    small.append(large.next(size=40 * KIB))
    small.append(large.next(size=40 * KIB))
    refused = large.next(size=40 * KIB)
    with pytest.raises(StorageFull):
        small.append(refused)
    rows = [little.next(size=500) for _ in range(100)]
    most = 16 * KIB // cost(rows[0])
    for row in rows[:most]:
        small.append(row)
    with pytest.raises(StorageFull):
        small.append(rows[most])
    await limit_pages(small, 100_000)
    await small.commit()
    small.append(refused)
    small.append(large.next(size=40 * KIB))
    for row in rows[most : 2 * most]:
        small.append(row)
    await small.commit()
    assert len(await all_events(small, loud)) == 4
    assert await all_events(small, quiet) == rows[: 2 * most]


async def test_one_principals_rows_leave_a_part_to_all_others(small: Journal) -> None:
    """Ada's outputs fill the limit and the reserve, and bea's are taken as if there were none."""
    await limit_pages(small, 1)
    first, second, third = (small.new_session_id() for _ in range(3))
    for session_id in (first, second, third):
        small.save_session(session_row(session_id))
    ada, bea, carl = Chain(first), Chain(second), Chain(third)
    small.append(ada.next(size=40 * KIB), principal="ada")
    assert small.full_for("ada")
    assert not small.full_for("bea")
    await asyncio.wait_for(small.room("bea"), IN_TIME)
    small.append(ada.next(size=30 * KIB), principal="ada")
    with pytest.raises(StorageFull):
        small.append(Chain(first).next(size=30 * KIB), principal="ada")
    kept = [bea.next(size=7 * KIB)]
    small.append(kept[0], principal="bea")
    assert not small.full_for("bea")
    small.reserve("stream", 2 * KIB, principal="bea")
    assert small.full_for("bea"), "half of the others' part is used"
    other = carl.next(size=5 * KIB)
    small.append(other, principal="carl")
    assert small.full_for("carl")
    with pytest.raises(StorageFull):
        small.append(Chain(third).next(size=20 * KIB), principal="carl")
    small.unreserve(2 * KIB, principal="bea")
    assert small._backlog.sizes.keys() == {"ada", "bea", "carl"}
    await limit_pages(small, 100_000)
    await small.commit()
    await small.applied()
    assert (small.pending_bytes, small._backlog.sizes) == (0, {})
    assert await all_events(small, second) == kept
    assert await all_events(small, third) == [other]


async def test_sessions_that_are_refused_hold_no_room(small: Journal) -> None:
    await limit_pages(small, 1)
    session_id = small.new_session_id()
    small.save_session(session_row(session_id))
    small.append(Chain(session_id).next(size=40 * KIB), principal="ada")
    waiting = asyncio.create_task(small.room("ada"))
    await asyncio.sleep(0)
    small.refuse(session_id, "for a test")
    await asyncio.wait_for(waiting, IN_TIME)
    assert (small.pending_bytes, small._backlog.sizes) == (0, {})
    await limit_pages(small, 100_000)


async def test_closing_on_a_full_disk_says_that_rows_are_lost(path: Path) -> None:
    """And gives the folder free all the same."""
    journal = await Journal.open(path)
    await limit_pages(journal, 1)
    journal.save_session(session_row(journal.new_session_id(), metadata={"long": "x" * 100_000}))
    with pytest.raises(StorageFull):
        await journal.close()
    reopened = await Journal.open(path)
    assert await reopened.reads.sessions() == []
    await reopened.close()


async def test_room_waits_while_much_waits_to_be_written(small: Journal, other: sqlite3.Connection) -> None:
    """Somebody holds the database: appends and reads go on, `room` and `commit` wait until it is free."""
    await small.room()
    session_id = small.new_session_id()
    small.save_session(session_row(session_id))
    await small.commit()
    other.execute("BEGIN IMMEDIATE")
    chain = Chain(session_id)
    while not small.full_for():
        small.append(chain.next(size=500))
    room, commit = asyncio.ensure_future(small.room()), asyncio.ensure_future(small.commit())
    assert await small.events(session_id) == []
    assert not room.done()
    assert not commit.done()
    other.execute("ROLLBACK")
    await asyncio.gather(room, commit)
    assert not small.full_for()
    assert len(await all_events(small, session_id)) == chain.seq


async def test_a_commit_waits_for_rows_that_are_being_written(
    small: Journal, other: sqlite3.Connection
) -> None:
    """Also when nothing was enqueued since, and whoever enqueued them."""
    session_id = small.new_session_id()
    other.execute("BEGIN IMMEDIATE")
    small.save_session(session_row(session_id))
    first = asyncio.ensure_future(small.commit())
    await small.reads.sessions()
    second = asyncio.ensure_future(small.commit())
    await small.reads.sessions()
    assert not first.done()
    assert not second.done()
    other.execute("ROLLBACK")
    await second
    assert await small.reads.sessions() == [session_row(session_id)]
    await first


async def test_a_failed_group_and_what_came_meanwhile_become_one(
    small: Journal, other: sqlite3.Connection
) -> None:
    """Of a session's or an execution's rows in both, the later one is kept; who waits for either is told."""
    one, two = small.new_session_id(), small.new_session_id()
    await small._files.writer.run(lambda db: db.execute("PRAGMA busy_timeout = 300").fetchone())
    other.execute("BEGIN IMMEDIATE")
    chain = Chain(one)
    small.save_session(session_row(one))
    small.save_execution(execution_row(one, 1))
    small.append(chain.next())
    first = asyncio.ensure_future(small.commit())
    await small.reads.sessions()
    small.save_session(session_row(one, state="busy"))
    small.save_session(session_row(two))
    small.save_execution(execution_row(one, 1, status="ok"))
    small.save_execution(execution_row(two, 1))
    small.append(chain.next())
    second = asyncio.ensure_future(small.commit())
    with pytest.raises(StorageError, match="locked"):
        await first
    with pytest.raises(StorageError, match="locked"):
        await second
    other.execute("ROLLBACK")
    await small.commit()
    begun = session_row(one, state="busy", head_seq=chain.seq, head=chain.head)
    assert await small.reads.sessions() == [begun, session_row(two)]
    assert await small.reads.executions(one) == [execution_row(one, 1, status="ok")]
    assert await small.reads.executions(two) == [execution_row(two, 1)]
    assert [row.seq for row in await small.events(one)] == [1, 2]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        require("root", "mounting a small file system takes root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        require("mount", "this machine mounts no tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_disk_that_really_is_full(tiny_disk: Path) -> None:
    """Filled by a foreign file; when that goes, the record goes on where it was."""
    path, filler = tiny_disk / "record.sqlite", tiny_disk / "filler"
    journal = await Journal.open(path)
    session_id = journal.new_session_id()
    journal.save_session(session_row(session_id))
    await journal.commit()
    with pytest.raises(OSError, match="No space"):
        await asyncio.to_thread(filler.write_bytes, bytes(2 * MIB))
    chain = Chain(session_id)
    for _ in range(100):
        journal.append(chain.next(size=1000))
    with pytest.raises(StorageFull):
        await journal.commit()
    await asyncio.to_thread(filler.unlink)
    await journal.commit()
    assert verify((row.seq, row.body, row.hash) for row in await all_events(journal, session_id)).rows == 100
    await journal.close()
