"""Backups are of one moment, whole and checked; what is restored is what was backed up."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cellgate.cli.main import main
from cellgate.errors import StorageError
from cellgate.record import backup, migrations
from cellgate.record.backup import Copied
from cellgate.record.journal import Journal
from cellgate.record.location import RECORD
from cellgate.record.redo import beside
from cellgate.record.verify_store import check_record
from tests.pure.record.conftest import all_events
from tests.pure.record.recorded import Recorded, image, text
from tests.pure.record.test_redo import crashed


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def back_up(record: Path, target: Path, *, replace: bool = False) -> Copied:
    return backup.back_up(record, target, replace=replace, progress=quiet)


def restore(source: Path, record: Path, *, replace: bool = False, anyway: bool = False) -> Copied:
    return backup.restore(source, record, replace=replace, anyway=anyway, progress=quiet)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def in_it(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        count: int = db.execute("SELECT count(*) FROM events").fetchone()[0]
        return count


async def test_a_backup_of_a_record_in_use_has_all_that_was_committed(
    journal: Journal, path: Path, tmp_path: Path
) -> None:
    """Also what is in the redo log alone; and the record goes on."""
    session = Recorded(journal, "one")
    for number in range(5):
        session.cell("1", text(f"{number}"), image())
        await journal.commit()
        target = tmp_path / f"backup-{number}"
        copied = await asyncio.to_thread(back_up, path, target)
        assert copied.problems == []
        assert in_it(target) == session.log.last_seq
        assert target.stat().st_mode & 0o777 == 0o600
        assert copied.bytes == target.stat().st_size
    assert names(tmp_path) == {*(f"backup-{number}" for number in range(5)), "data"}
    session.cell("1", text("after"))
    await journal.commit()
    assert all(found.valid for found in check_record(path))


async def test_backups_while_others_write_miss_nothing(path: Path, tmp_path: Path) -> None:
    """Of each the rows are a whole record that has at least what was committed when it was begun."""
    journal = await Journal.open(path)
    session = Recorded(journal, "one")
    over = asyncio.Event()
    committed = 0

    async def go_on() -> None:
        nonlocal committed
        while not over.is_set():
            session.cell("1", text("x" * 500))
            last = session.log.last_seq
            await journal.commit()
            committed = last
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(go_on())
        for number in range(12):
            await asyncio.sleep(0.05)
            before = committed
            copied = await asyncio.to_thread(back_up, path, tmp_path / f"{number}")
            assert copied.problems == []
            assert in_it(tmp_path / f"{number}") >= before
        over.set()
    await journal.close()


async def test_a_backup_after_a_crash_has_the_redo_log_and_leaves_it(path: Path, tmp_path: Path) -> None:
    journal = await Journal.open(path)
    session = Recorded(journal, "one")
    session.cell("1", text("1"))
    await journal.commit()
    copy = crashed(path, tmp_path / "killed")
    await journal.close()
    log = beside(copy).read_bytes()
    assert back_up(copy, tmp_path / "backup").problems == []
    assert in_it(tmp_path / "backup") == 5
    assert beside(copy).read_bytes() == log
    beside(copy).unlink()
    (problem,) = back_up(copy, tmp_path / "other").problems
    assert "the redo log is gone" in str(problem.problem)


async def test_a_backup_replaces_nothing_unless_told(journal: Journal, path: Path, tmp_path: Path) -> None:
    Recorded(journal, "one").cell("1", text("1"))
    await journal.commit()
    target = tmp_path / "backup"
    target.write_text("mine")
    with pytest.raises(StorageError, match="--force"):
        back_up(path, target)
    assert target.read_text() == "mine"
    assert back_up(path, target, replace=True).problems == []
    assert in_it(target) == 5
    with pytest.raises(StorageError, match="There is no folder"):
        back_up(path, path / "below" / "a-file")
    with pytest.raises(StorageError, match="no record"):
        back_up(tmp_path / "nothing", tmp_path / "third")
    (tmp_path / "photos").write_bytes(b"no database" * 100)
    with pytest.raises(StorageError, match="database"):
        back_up(tmp_path / "photos", tmp_path / "third")
    assert names(tmp_path) == {"backup", "data", "photos"}


async def test_what_is_restored_is_what_was_backed_up(path: Path, tmp_path: Path) -> None:
    journal = await Journal.open(path)
    session = Recorded(journal, "one")
    session.cell("1", text("1"))
    await journal.commit()
    back_up(path, tmp_path / "backup")
    before = await all_events(journal, session.row.id)
    session.cell("2", text("later"))
    await journal.commit()
    with pytest.raises(StorageError, match="in use"):
        restore(tmp_path / "backup", path, replace=True)
    await journal.close()
    with pytest.raises(StorageError, match="--force"):
        restore(tmp_path / "backup", path)
    assert restore(tmp_path / "backup", path, replace=True).problems == []
    (kept,) = path.parent.glob("*.replaced-*")
    assert in_it(kept) == 9
    journal = await Journal.open(path)
    assert await all_events(journal, session.row.id) == before
    assert journal.new_session_id() == 2
    await journal.close()
    # Into a folder that is not there yet.
    fresh = tmp_path / "fresh" / "data" / path.name
    restore(tmp_path / "backup", fresh)
    assert in_it(fresh) == 5
    assert fresh.stat().st_mode & 0o777 == 0o600
    assert {file.name for file in fresh.parent.iterdir()} == {path.name, f"{path.name}.lock"}


async def test_a_restored_record_does_not_meet_the_redo_log_of_the_former(path: Path, tmp_path: Path) -> None:
    """A gateway was killed, and somebody restores an older copy: its log goes where its record goes."""
    journal = await Journal.open(path)
    session = Recorded(journal, "one")
    session.cell("1", text("1"))
    await journal.commit()
    back_up(path, tmp_path / "backup")
    session.cell("2", text("2"))
    await journal.commit()
    copy = crashed(path, tmp_path / "killed")
    await journal.close()
    restore(tmp_path / "backup", copy, replace=True)
    assert all(found.valid for found in check_record(copy))
    (kept,) = copy.parent.glob("*.redo")
    assert kept.name.startswith("record.sqlite.replaced-")
    again = await Journal.open(kept.with_name(kept.name.removesuffix(".redo")))
    assert len(await all_events(again, session.row.id)) == 9
    await again.close()


async def test_a_damaged_copy_is_not_restored_unless_told(path: Path, tmp_path: Path) -> None:
    journal = await Journal.open(path)
    Recorded(journal, "one").cell("1", text("1"))
    await journal.commit()
    back_up(path, tmp_path / "backup")
    await journal.close()
    with closing(sqlite3.connect(tmp_path / "backup")) as db, db:
        db.execute("UPDATE events SET body = x'7b7d' WHERE seq = 2")
    before = in_it(path)
    with pytest.raises(StorageError, match="row 2 was changed"):
        restore(tmp_path / "backup", path, replace=True)
    assert in_it(path) == before
    assert len(restore(tmp_path / "backup", path, replace=True, anyway=True).problems) == 1
    noise = tmp_path / "noise"
    noise.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 20)
    with pytest.raises(StorageError):
        restore(noise, path, replace=True, anyway=True)
    noise.write_text("a notebook, perhaps\n" * 100)
    with pytest.raises(StorageError, match="noise is not a backup of a record"):
        restore(noise, path, replace=True, anyway=True)
    assert not [file for file in path.parent.iterdir() if file.name.startswith(".")]


async def test_a_copy_of_an_earlier_version_is_brought_up_to_date(tmp_path: Path) -> None:
    old = tmp_path / "old"
    with closing(sqlite3.connect(old)) as db, db:
        for script in migrations._SCRIPTS[:3]:
            for statement in script.split(";"):
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
        db.execute("PRAGMA user_version = 3")
    shutil.copy(old, tmp_path / "kept")
    path = tmp_path / "data" / "record.sqlite"
    assert restore(old, path).problems == []
    assert old.read_bytes() == (tmp_path / "kept").read_bytes()
    journal = await Journal.open(path)
    Recorded(journal, "one").cell("1", text("1"))
    await journal.close()
    assert all(found.valid for found in check_record(path))


async def test_a_damaged_record_does_not_replace_the_last_good_copy(path: Path, tmp_path: Path) -> None:
    journal = await Journal.open(path)
    Recorded(journal, "one").cell("1", text("1"))
    await journal.commit()
    await journal.close()
    target = tmp_path / "backups" / "backup"
    target.parent.mkdir()
    back_up(path, target)
    good = target.read_bytes()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE events SET body = x'7b7d' WHERE seq = 2")
    assert len(back_up(path, target, replace=True).problems) == 1
    (kept,) = names(target.parent) - {"backup"}
    assert (target.parent / kept).read_bytes() == good


async def test_the_oldest_of_the_copies_named_by_time_are_removed(
    journal: Journal, path: Path, tmp_path: Path
) -> None:
    Recorded(journal, "one").cell("1", text("1"))
    await journal.commit()
    folder = tmp_path / "backups"
    folder.mkdir()
    others = {"record-monday.sqlite3", "record-20250101T000000Z.sqlite3.replaced-20250102T000000Z"}
    older = {f"record-2025010{day}T000000Z.sqlite3" for day in range(1, 4)}
    for name in others | older:
        (folder / name).touch()
    target = backup.named_by_time(folder)
    back_up(path, target)
    assert [file.name for file in backup.remove_old(folder, 2)] == [
        "record-20250101T000000Z.sqlite3",
        "record-20250102T000000Z.sqlite3",
    ]
    assert names(folder) == others | {"record-20250103T000000Z.sqlite3", target.name}
    assert backup.remove_old(folder, 2) == []


def test_the_command_keeps_as_many_as_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_one_cell(tmp_path / "data"))
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "record-20250101T000000Z.sqlite3").touch()
    words = ["record", "backup", str(folder), "--keep", "1", "--data-dir", str(tmp_path / "data")]
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    (made,) = names(folder)
    said = capsys.readouterr().out
    assert said.startswith(f"{folder / made}: ")
    assert said.endswith(f"removed {folder / 'record-20250101T000000Z.sqlite3'}\n")


def test_keep_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", "backup", str(tmp_path / "file"), "--keep", "1", "--data-dir", str(tmp_path)]
    assert main(words) == 2
    assert "--keep is for backups in a folder" in capsys.readouterr().err


async def _one_cell(data: Path) -> None:
    journal = await Journal.open(data / RECORD)
    Recorded(journal, "one").cell("1", text("1"))
    await journal.commit()
    await journal.close()
