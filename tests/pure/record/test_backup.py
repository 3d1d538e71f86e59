"""Backups are of one moment, whole and checked; what is restored is what was backed up."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cellgate.cli.main import main
from cellgate.cli.record import copies
from cellgate.cli.record.copies import Copied
from cellgate.errors import StorageError
from cellgate.record.store.sqlite import backup, drafts
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.location import RECORD
from cellgate.record.store.sqlite.redo import beside
from tests.pure.record.conftest import all_events
from tests.pure.record.recorded import Recorded, image, text
from tests.pure.record.test_redo import crashed


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def back_up(record: Path, target: Path, *, replace: bool = False) -> Copied:
    return copies.back_up(record, target, replace=replace, progress=quiet)


def restore(source: Path, record: Path, *, replace: bool = False, anyway: bool = False) -> Copied:
    return copies.restore(source, record, replace=replace, anyway=anyway, progress=quiet)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def in_it(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        count: int = db.execute("SELECT count(*) FROM events").fetchone()[0]
        return count


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


async def _recorded(path: Path) -> None:
    journal = await Journal.open(path)
    Recorded(journal, "one").cell("1", text("1"))
    await journal.close()


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


def test_what_is_not_a_copy_is_not_removed_and_does_not_count(tmp_path: Path) -> None:
    names_of = [f"record-2026110{day}T000000Z.sqlite3" for day in (1, 2, 3)]
    for name in names_of[:2]:
        (tmp_path / name).touch()
    (tmp_path / names_of[2]).mkdir()
    assert backup.remove_old(tmp_path, 1) == [tmp_path / names_of[0]]
    assert names(tmp_path) == {*names_of[1:]}


def test_old_copies_that_can_t_be_removed_are_told_and_the_new_one_stays(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / "record-20261101T000000Z.sqlite3").touch()
    asyncio.run(_recorded(data / RECORD))

    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path.parent == folder and not path.name.startswith("."):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert main(["record", "backup", str(folder), "--keep", "1", "--data-dir", str(data)]) == 1
    said = capsys.readouterr()
    assert "checks" in said.out
    assert said.err == (
        "cellgate: The copy is made, but old ones can't be removed:"
        f" Operation not permitted ({folder}/record-20261101T000000Z.sqlite3)\n"
    )
    assert len(names(folder)) == 2


@pytest.mark.parametrize("name", ["record.sqlite3", "record.sqlite3-wal", "record.sqlite3.redo"])
@pytest.mark.parametrize("through_link", [False, True])
def test_no_copy_takes_the_place_of_the_record_or_its_files(
    data: Path, tmp_path: Path, name: str, through_link: bool
) -> None:
    """Not even if it is told to replace what is there: a gateway may be using them."""
    asyncio.run(_recorded(data / RECORD))
    before = {path: path.read_bytes() for path in data.iterdir()}
    (tmp_path / "link").symlink_to(data)
    target = (tmp_path / "link" if through_link else data) / name
    with pytest.raises(StorageError, match="is the record, or a file of it; choose another name"):
        back_up(data / RECORD, target, replace=True)
    assert {path: path.read_bytes() for path in data.iterdir()} == before


def test_a_disk_that_is_too_small_for_the_copy_is_named(data: Path, tmp_path: Path) -> None:
    """And not the record's, which has nothing to do with it. The limit is of files that a process writes."""
    asyncio.run(_recorded(data / RECORD))
    program = (
        "import resource, signal, sys; from cellgate.cli.main import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192));"
        "sys.exit(main())"
    )
    for words, target in (
        (["backup", f"{tmp_path}/copy"], f"{tmp_path}/copy"),
        (["restore", f"{data}/{RECORD}"], f"{tmp_path}/new/{RECORD}"),
    ):
        folder = data if words[0] == "backup" else tmp_path / "new"
        command = [sys.executable, "-c", program, "record", *words, "--data-dir", str(folder)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ended.stderr == f"cellgate: There is no space left for {target}; free some on its disk\n"
        assert ended.returncode == 1
    assert names(tmp_path) == {"data", "new"}
    assert names(tmp_path / "new") == {f"{RECORD}.lock"}


@pytest.mark.parametrize("words", [["backup", "copy"], ["restore", f"data/{RECORD}", "--data-dir", "new"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_copy_that_is_stopped_midway_leaves_nothing(
    data: Path, tmp_path: Path, words: list[str], number: signal.Signals
) -> None:
    asyncio.run(_recorded(data / RECORD))
    (tmp_path / "new").mkdir()
    program = (
        "import os, sys; from cellgate.cli.main import main\n"
        "from cellgate.record.store.sqlite import backup\n"
        f"backup._finish = lambda draft: (os.kill(os.getpid(), {number:d}), draft.unlink())\n"
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "record", *words]
    variables = {**os.environ, "CELLGATE_DATA_DIR": str(data)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (128 + number, "")
    assert names(tmp_path) == {"data", "new"}
    assert names(tmp_path / "new") <= {f"{RECORD}.lock"}


@pytest.mark.parametrize("words", [["backup", "copy"], ["restore", f"data/{RECORD}", "--data-dir", "new"]])
def test_what_a_killed_copy_left_is_removed_by_the_next_one(
    data: Path, tmp_path: Path, words: list[str]
) -> None:
    """But no draft of a copy that is still made, whatever else has such a name."""
    asyncio.run(_recorded(data / RECORD))
    program = (
        "import os, signal, sys; from cellgate.cli.main import main\n"
        "from cellgate.record.store.sqlite import backup\n"
        "backup._finish = lambda draft: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.exit(main())"
    )
    target = tmp_path / "new" / RECORD if words[0] == "restore" else tmp_path / "copy"
    target.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-c", program, "record", *words]
    variables = {**os.environ, "CELLGATE_DATA_DIR": str(data)}
    ended = subprocess.run(command, cwd=tmp_path, env=variables, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (left,) = target.parent.glob(".cellgate-copy-*")
    assert (left / RECORD).stat().st_size > 0
    (target.parent / ".cellgate-copy-of-mine").mkdir()
    with drafts.draft_folder(target.parent) as living:
        assert not left.exists()
        back_up(data / RECORD, target.parent / "another")
        assert living.is_dir()
    assert names(target.parent) - {"data", f"{RECORD}.lock"} == {".cellgate-copy-of-mine", "another"}


async def test_two_copies_at_once_do_not_take_each_others_drafts(data: Path, tmp_path: Path) -> None:
    await _recorded(data / RECORD)
    targets = [tmp_path / f"copy-{number}" for number in range(8)]
    copied = await asyncio.gather(*(asyncio.to_thread(back_up, data / RECORD, target) for target in targets))
    assert not any(copy.problems for copy in copied)
    assert names(tmp_path) == {"data", *(target.name for target in targets)}


def test_a_copy_replaces_files_alone(data: Path, tmp_path: Path) -> None:
    asyncio.run(_recorded(data / RECORD))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("pipe", "folder"):
        with pytest.raises(StorageError, match="is not a file that a copy could replace"):
            back_up(data / RECORD, tmp_path / name, replace=True)
    with pytest.raises(StorageError, match="exists; choose another name, or replace it with --force"):
        back_up(data / RECORD, tmp_path / "link")
    assert names(tmp_path) == {"data", "pipe", "folder", "link"}


@pytest.mark.parametrize("words", [["backup", "LONG"], ["restore", "LONG"], ["backup", "LONG/file"]])
def test_a_path_that_can_t_be_looked_at_is_told_in_one_line(
    data: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_recorded(data / RECORD))
    told = [word.replace("LONG", f"{tmp_path}/{'x' * 300}") for word in words]
    assert main(["record", *told, "--data-dir", str(data)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"cellgate: {tmp_path}/xxx")
    assert said.endswith(": File name too long\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["verify"], ["record", "stats"], ["record", "trail"], ["record", "compact"]]
)
def test_a_data_folder_that_can_t_be_looked_at_is_told_in_one_line(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / ("x" * 300)
    assert main([*words, "--data-dir", str(data)]) == 1
    assert capsys.readouterr().err == f"cellgate: {data}/record.sqlite3 can't be read: File name too long\n"


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_a_restore_that_ends_before_its_end_leaves_the_record_as_it_was(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    asyncio.run(_recorded(data / RECORD))
    copy = tmp_path / "copy"
    back_up(data / RECORD, copy)
    beside(data / RECORD).write_bytes(b"what was committed last")
    # SQLite makes its index of the log (-shm) again.
    before = {path.name: path.read_bytes() for path in data.iterdir() if path.suffix != ".sqlite3-shm"}

    def fail(draft: Path, target: Path, *, replace: bool) -> None:
        assert not target.exists()
        raise kind(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(backup, "_publish", fail)
    with pytest.raises(kind if kind is KeyboardInterrupt else StorageError):
        restore(copy, data / RECORD, replace=True)
    after = {path.name: path.read_bytes() for path in data.iterdir()}
    assert after.keys() - before.keys() <= {f"{RECORD}.lock"}
    assert {name: after[name] for name in before} == before


def test_records_that_are_set_aside_in_one_second_are_all_kept(data: Path, tmp_path: Path) -> None:
    asyncio.run(_recorded(data / RECORD))
    copy = tmp_path / "copy"
    back_up(data / RECORD, copy)
    for _ in range(5):
        restore(copy, data / RECORD, replace=True)
    kept = [name for name in names(data) if re.fullmatch(rf"{RECORD}\.replaced-\d+T\d+Z(-\d)?", name)]
    assert len(kept) == 5


def test_keep_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", "backup", str(tmp_path / "file"), "--keep", "1", "--data-dir", str(tmp_path)]
    assert main(words) == 2
    assert "--keep is for backups in a folder" in capsys.readouterr().err


async def _one_cell(data: Path) -> None:
    journal = await Journal.open(data / RECORD)
    Recorded(journal, "one").cell("1", text("1"))
    await journal.commit()
    await journal.close()
