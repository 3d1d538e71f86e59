"""A record behind a link is one record, whoever opens it; and one that can't be read says what to do."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgate.cli.main import main
from cellgate.errors import StorageError
from cellgate.record.store.sqlite import backup, file_watch, upkeep
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.location import RECORD, resolved
from tests.pure.record.conftest import all_events
from tests.pure.record.recorded import Recorded, text
from tests.pure.record.test_backup import back_up, in_it, names, restore
from tests.pure.record.test_redo import crashed


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (folder := tmp_path / "data").mkdir()
    return folder


@pytest.fixture
def link(data: Path, tmp_path: Path) -> Path:
    """A record on another disk, to which two links in a row lead."""
    (disk := tmp_path / "disk").mkdir()
    (disk / "store").touch()
    (disk / "first").symlink_to("store")
    (data / RECORD).symlink_to(disk / "first")
    return data / RECORD


async def record(path: Path, cells: int = 3) -> Journal:
    """A journal with some cells of session 1, of which all are committed."""
    journal = await Journal.open(path)
    session = Recorded(journal, "one")
    for number in range(cells):
        session.cell("1", text(f"{number}"))
        await journal.commit()
    return journal


def subjects(path: Path) -> list[str]:
    return [found.subject for found in check_record(path) if found.valid]


async def test_all_files_of_a_record_lie_beside_the_record(link: Path, tmp_path: Path) -> None:
    journal = await record(link)
    assert names(link.parent) == {RECORD}
    assert names(tmp_path / "disk") == {
        "store", "first", "store-wal", "store-shm", "store.redo", "store.last", "store.lock",
    }  # fmt: skip
    await journal.close()
    assert names(tmp_path / "disk") == {"store", "first", "store.lock"}
    assert subjects(link) == subjects(tmp_path / "disk" / "store")


@pytest.mark.parametrize("by", ["start", "compact"])
async def test_what_only_the_redo_log_has_is_found_behind_a_link(link: Path, tmp_path: Path, by: str) -> None:
    """By a check, a backup and the next start, through the link and without it."""
    journal = await record(link)
    other = tmp_path / "other" / RECORD
    crashed(tmp_path / "disk" / "store", tmp_path / "killed")
    await journal.close()
    killed = tmp_path / "killed" / "store"
    other.parent.mkdir()
    other.symlink_to(killed)
    for path in (other, killed):
        assert "redo log" in subjects(path)
        assert back_up(path, tmp_path / f"backup-{path.name}").problems == []
        assert in_it(tmp_path / f"backup-{path.name}") == 13
    if by == "compact":
        with upkeep.alone(other):
            assert not killed.with_name("store.redo").exists()
    journal = await Journal.open(other)
    assert len(await all_events(journal, 1)) == 13
    await journal.close()
    assert names(other.parent) == {RECORD}


@pytest.mark.parametrize("through", [True, False])
async def test_a_record_in_use_is_in_use_by_each_of_its_names(
    link: Path, tmp_path: Path, *, through: bool
) -> None:
    target = tmp_path / "disk" / "store"
    second = tmp_path / "second"
    second.mkdir()
    (second / RECORD).symlink_to(target)
    journal = await record(link if through else target)
    for path in (link, target, second / RECORD):
        with pytest.raises(StorageError, match="in use by another gateway"):
            await Journal.open(path)
        with pytest.raises(StorageError, match="in use by another gateway"), upkeep.alone(path):
            pass
        with pytest.raises(StorageError, match="in use by another gateway"):
            restore(target, path, replace=True)
    await journal.close()


def lead_to(link: Path, target: Path) -> None:
    target.touch()
    link.unlink()
    link.symlink_to(target)


async def test_a_data_folder_has_one_gateway_wherever_its_link_leads(
    link: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "WATCH_SECONDS", 600.0)
    journal = await record(link)
    await journal.applied()
    lead_to(link, tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="in use by another gateway"):
        await Journal.open(link)
    await journal.close()


async def test_two_records_may_lie_in_one_folder(link: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "other").touch()
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / RECORD).symlink_to(tmp_path / "disk" / "other")
    journals = [await record(link), await record(tmp_path / "second" / RECORD, 5)]
    for journal in journals:
        await journal.close()
    assert [in_it(tmp_path / "disk" / name) for name in ("store", "other")] == [13, 21]


@pytest.mark.parametrize("what", ["link", "target"])
async def test_a_link_or_its_target_that_is_taken_away_is_noticed(
    link: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(file_watch, "WATCH_SECONDS", 0.02)
    journal = await record(link)
    if what == "link":
        lead_to(link, tmp_path / "another")
    else:
        (tmp_path / "disk" / "store").rename(tmp_path / "disk" / "gone")
    while journal.writable:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    with pytest.raises(StorageError, match="removed or replaced"):
        await journal.close()


async def test_a_restore_replaces_the_file_and_keeps_the_link(link: Path, tmp_path: Path) -> None:
    await (await record(link)).close()
    assert back_up(link, tmp_path / "backup").problems == []
    await (await record(link)).close()
    restore(tmp_path / "backup", link, replace=True)
    assert os.readlink(link) == str(tmp_path / "disk" / "first")  # noqa: PTH115 - a Path's would block
    assert in_it(tmp_path / "disk" / "store") == 13
    assert len([name for name in names(tmp_path / "disk") if "replaced" in name]) == 1
    assert names(link.parent) == {RECORD}
    with upkeep.alone(link) as db:
        upkeep.compact(db)
    assert upkeep.statistics_of(link).events == 13


def each_way(path: Path, tmp_path: Path) -> list[Callable[[], object]]:
    """All that opens a record."""

    def compact() -> None:
        with upkeep.alone(path) as db:
            upkeep.compact(db)

    return [
        lambda: asyncio.run(Journal.open(path)),
        lambda: list(check_record(path)),
        lambda: back_up(path, tmp_path / "backup"),
        lambda: upkeep.statistics_of(path),
        compact,
    ]


def test_a_link_to_nothing_begins_no_new_record(link: Path, tmp_path: Path) -> None:
    """Its disk may be missing."""
    (tmp_path / "disk" / "store").unlink()
    for work in each_way(link, tmp_path):
        with pytest.raises(StorageError, match="which is not there; mount its disk"):
            work()
    assert not (tmp_path / "disk" / "store").exists()
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(StorageError, match="which is not there"):
        resolved(link)


@pytest.mark.parametrize("suffix", ["-wal", ".redo", ".last"])
async def test_what_was_left_behind_when_a_record_was_moved_is_not_passed_over(
    data: Path, tmp_path: Path, suffix: str
) -> None:
    journal = await record(tmp_path / "before" / RECORD)
    path = crashed(tmp_path / "before" / RECORD, tmp_path / "killed")
    await journal.close()
    left = path.with_name(RECORD + suffix)
    target = tmp_path / "moved"
    for each in path.parent.iterdir():
        if each != left:
            each.rename(target.with_name(each.name.replace(RECORD, target.name)))
    path.symlink_to(target)
    for work in each_way(path, tmp_path):
        with pytest.raises(StorageError, match="lies beside the link"):
            await asyncio.to_thread(work)
    left.rename(target.with_name(target.name + suffix))
    journal = await Journal.open(path)
    assert len(await all_events(journal, 1)) == 13
    await journal.close()


# ---- records that can't be read


def junk(path: Path) -> None:
    path.write_bytes(b"this was never a record " * 1000)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:40960] = b"\xa5" * 36864
    path.write_bytes(content)


SPOILED = pytest.mark.parametrize("spoil", [junk, cut, overwritten])


@pytest.fixture
async def spoiled(data: Path, spoil: Callable[[Path], None]) -> Path:
    journal = await record(data / RECORD, 100)
    await journal.close()
    spoil(data / RECORD)
    return data / RECORD


@SPOILED
def test_each_way_to_a_spoiled_record_says_what_to_do(spoiled: Path, tmp_path: Path) -> None:
    before = spoiled.read_bytes()
    for number, work in enumerate(each_way(spoiled, tmp_path)):
        with pytest.raises(StorageError) as raised:
            work()
        said = raised.value.message
        assert said.startswith(f"The record {spoiled} is damaged ("), said
        assert "`cellgate record restore` puts a backup in its place" in said
        assert ("`cellgate verify --data-dir` tells" in said) == (number != 1), "who checks is not told to"
    assert spoiled.read_bytes() == before
    assert names(tmp_path) == {"data"}


@SPOILED
@pytest.mark.parametrize(
    "words", [["verify"], ["record", "stats"], ["record", "compact"], ["record", "backup", "FILE"]]
)
def test_each_command_on_a_spoiled_record_says_what_to_do_in_one_line(
    spoiled: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / word) if word == "FILE" else word for word in words]
    assert main([*arguments, "--data-dir", str(spoiled.parent)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"cellgate: The record {spoiled} is damaged (" in said
    assert "cellgate record restore" in said


@SPOILED
def test_a_spoiled_backup_is_not_restored(spoiled: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"is not a backup of a record, or is damaged .*; restore another"):
        restore(spoiled, tmp_path / "new" / RECORD)
    assert not (tmp_path / "new" / RECORD).exists()


def test_a_backup_makes_no_folders(data: Path, tmp_path: Path) -> None:
    asyncio.run(_recorded(data / RECORD))
    with pytest.raises(StorageError, match=f"There is no folder {tmp_path}/missing/deep; make it first"):
        back_up(data / RECORD, tmp_path / "missing" / "deep" / "file")
    assert names(tmp_path) == {"data"}
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="There is no folder"):
        back_up(data / RECORD, tmp_path / "file" / "file")


async def _recorded(path: Path) -> None:
    await (await record(path)).close()


def test_a_backup_that_is_cut_while_it_is_read_leaves_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the check of the copy finds unreadable is told of the record, and not of the draft."""
    asyncio.run(_recorded(data / RECORD))
    finish = backup._finish

    def spoil(draft: Path) -> object:
        junk(draft)
        return finish(draft)

    monkeypatch.setattr(backup, "_finish", spoil)
    with pytest.raises(StorageError, match=f"The record {data / RECORD} is damaged"):
        back_up(data / RECORD, tmp_path / "backup")
    assert names(tmp_path) == {"data"}
    shutil.rmtree(data)
