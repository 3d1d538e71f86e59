"""One gateway for a record, whichever of its files somebody removes; and who loses a file learns of it."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cellgate.errors import StorageError
from cellgate.record.store.sqlite import file_watch, schema, syncing
from cellgate.record.store.sqlite import lock as lock_module
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.store.sqlite.redo import beside, last_beside
from cellgate.testing.record_store import Chain, session_row
from tests.pure.record.conftest import all_events, eventually
from tests.pure.record.test_redo import cells, crashed, in_tables, synced


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "WATCH_SECONDS", 0.02)


async def closed_once_it_knows(journal: Journal) -> None:
    await eventually(lambda: not journal.writable)
    await journal.close()


async def test_a_file_that_is_removed_between_opening_and_locking_is_not_taken_for_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    removed = []

    def opening(name: str | Path, flags: int, *mode: int) -> int:
        descriptor = real(name, flags, *mode)
        if str(name).endswith(".lock") and len(removed) < 3:
            removed.append(name)
            Path(name).unlink()
        return descriptor

    monkeypatch.setattr(os, "open", opening)
    lock = RecordLock(path)
    assert len(removed) == 3
    assert lock.is_ours
    lock.release()


async def test_a_removed_lock_file_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = await Journal.open(path)
    path.with_name("record.sqlite.lock").unlink()
    await eventually(lambda: "The lock file of the record" in caplog.text)
    await cells(journal, Chain(journal.new_session_id()), 1)
    await asyncio.sleep(0.1)
    assert caplog.text.count("The lock file of the record") == 1
    await journal.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
async def test_files_that_can_t_be_looked_at_are_looked_at_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """It is told once, costs nothing, and what is seen afterwards is told too."""
    looks = 0

    def fail(*_: object, **__: object) -> None:
        nonlocal looks
        looks += 1
        raise OSError(number, os.strerror(number))

    journal = await Journal.open(path)
    with monkeypatch.context() as patch:
        patch.setattr(lock_module, "_identity", fail)
        await eventually(lambda: looks > 5)
        await cells(journal, Chain(journal.new_session_id()), 1)
    assert caplog.text.count("can't be looked at") == 1
    assert "Traceback" not in caplog.text
    path.with_name("record.sqlite.lock").unlink()
    await eventually(lambda: "The lock file of the record" in caplog.text)
    await journal.close()


async def test_a_mistake_in_a_look_does_not_end_the_looks(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("nobody expects it")

    async def told(what: str) -> None:
        await eventually(lambda: what in caplog.text)

    journal = await Journal.open(path)
    with monkeypatch.context() as patch:
        patch.setattr(lock_module, "_identity", fail)
        await told("nobody expects it")
    path.with_name("record.sqlite.lock").unlink()
    await told("The lock file of the record")
    await journal.close()


async def test_a_folder_that_became_a_file_is_a_record_that_was_removed(path: Path) -> None:
    journal = await Journal.open(path)
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.write_text("in the way")
    with pytest.raises(StorageError, match="removed or replaced"):
        await closed_once_it_knows(journal)


def take_away(path: Path, *, replaced: bool) -> None:
    path.rename(path.with_name("elsewhere"))
    if replaced:
        path.touch()


@pytest.mark.parametrize("replaced", [False, True])
async def test_without_its_file_a_record_takes_nothing(path: Path, replaced: bool) -> None:
    """Rows would go where nobody ever finds them."""
    journal = await Journal.open(path)
    chain = Chain(journal.new_session_id())
    await cells(journal, chain, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(journal.applied())
        await eventually(lambda: not journal._backlog.writing.empty)
        take_away(path, replaced=replaced)
        await eventually(lambda: not journal.writable)
    with pytest.raises(StorageError, match="removed or replaced"):
        await writing
    # What was on its way is written, and changes nothing.
    await journal._groups._landed.wait()
    with pytest.raises(StorageError, match="removed or replaced"):
        await cells(journal, chain, 1)
    with pytest.raises(StorageError, match="removed or replaced"):
        journal.check_writable()
    with pytest.raises(StorageError, match="removed or replaced"):
        await journal.close()
    await asyncio.to_thread(RecordLock, path)


@pytest.mark.parametrize("name", [beside, last_beside])
async def test_without_its_log_each_commit_is_a_transaction(
    path: Path, name: object, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    journal = await Journal.open(path)
    chain = Chain(journal.new_session_id())
    await cells(journal, chain, 1)
    assert callable(name)
    name(path).unlink()
    await eventually(lambda: "each commit is a transaction now" in caplog.text)
    await journal.applied()
    await cells(journal, chain, 3)
    assert in_tables(path) == 4

    async def forgotten() -> bool:
        with closing(schema.open_reader(path)) as db:
            return schema.expected_log(db) is None

    # A kill from here on costs nothing, and nothing is said to be missing.
    await eventually(forgotten)
    await cells(journal, chain, 1)
    copy = crashed(path, tmp_path / "killed")
    await journal.close()
    again = await Journal.open(copy)
    assert len(await all_events(again, chain.session_id)) == 5
    await again.close()
    assert "redo log" not in [found.subject for found in check_record(copy)]


# ---- power ------------------------------------------------------------------------------------------------


async def test_what_is_committed_is_synced_soon_after_and_off_the_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tables have, which logged rows may follow on; the redo log; and what went from it into the
    tables. Nothing when there is nothing new.
    """
    synced_files: list[str] = []
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        synced_files.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(syncing, "SYNC_SECONDS", 0.01)
    journal = await Journal.open(path)
    await cells(journal, Chain(journal.new_session_id()), 1)
    await eventually(lambda: len(synced_files) >= 3)
    assert synced_files[:3] == ["record.sqlite-wal", "record.sqlite.redo", "record.sqlite-wal"]
    await journal.applied()
    await synced(journal)
    before = -1
    async with asyncio.timeout(60):
        while len(synced_files) > before:
            before = len(synced_files)
            await asyncio.sleep(0.1)
    await journal.close()


async def test_the_log_keeps_rows_until_the_tables_have_them_for_good(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not take them: what a loss of power would cost is in the log, and commits go on."""
    failing = True
    really = syncing.sync_files

    def sync_files(descriptor: int | None, record: Path) -> None:
        if failing:
            raise OSError(5, "Input/output error")
        really(descriptor, record)

    monkeypatch.setattr(syncing, "sync_files", sync_files)
    monkeypatch.setattr(syncing, "SYNC_SECONDS", 0.01)
    journal = await Journal.open(path)
    chain = Chain(journal.new_session_id())
    await cells(journal, chain, 2)
    await journal.applied()
    with pytest.raises(StorageError, match="does not keep the record"):
        await synced(journal)
    assert any(beside(path).read_bytes())
    # More than both halves take: then commits go into the tables, as they do where there is no log.
    for _ in range(400):
        journal.append(chain.next(size=4000))
        journal.save_session(session_row(chain.session_id))
        await journal.commit()
    failing = False
    await journal.applied()
    await synced(journal)
    assert not any(beside(path).read_bytes())
    await cells(journal, chain, 2)
    await journal.close()
