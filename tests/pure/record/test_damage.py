"""Damage of the redo log is found, counted and told, and what is left of the log is kept and used."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import struct
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cellgate.errors import RecordDamaged, StorageError, StorageFull
from cellgate.record.chain import GENESIS, link
from cellgate.record.findings import Finding
from cellgate.record.rows import EventRow
from cellgate.record.store.sqlite import redo, salvage, schema
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.redo import LOG_BYTES, beside, find_frames, last_beside
from cellgate.testing.record_store import Chain, session_row
from cellgate_kernels.base.errors import InvalidInput
from tests.pure.record.conftest import all_events, journal_at
from tests.pure.record.recorded import Recorded, text
from tests.pure.record.test_redo import crashed, synced
from tests.support.examples import share

CELLS = 8


@pytest.fixture
async def killed(path: Path, tmp_path: Path) -> AsyncGenerator[Path, None]:
    """What a gateway that was killed has left: sessions in the tables, and eight commits in the log alone."""
    journal = await Journal.open(path)
    sessions = [Recorded(journal, key) for key in ("one", "two")]
    for session in sessions:
        session.cell("0", text("0"))
    await journal.commit()
    await journal.applied()
    await synced(journal)
    for number in range(CELLS):
        sessions[number % 2].cell(f"{number}", text(f"{number}"))
        await journal.commit()
    yield crashed(path, tmp_path / "killed")
    await journal.close()


def problems(path: Path) -> list[Finding]:
    return [found for found in check_record(path) if not found.valid]


def missing(path: Path) -> str:
    """What is told of the log; other problems are those of rows that are kept apart since."""
    (found,) = [found for found in problems(path) if found.subject == "redo log"]
    others = [other.problem for other in problems(path) if other != found]
    assert all("are kept apart" in str(other) for other in others)
    assert found.problem is not None
    return found.problem


async def opened(path: Path) -> list[int]:
    """Start with these files; how many rows the two sessions have then."""
    async with journal_at(path) as journal:
        return [len(await all_events(journal, session_id)) for session_id in (1, 2)]


def used(log: bytes) -> range:
    """Where the log has frames."""
    return range(log.index(b"CGR2"), len(log.rstrip(b"\0")))


def kept(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.damaged-*"))


async def test_an_undamaged_log_is_taken_in_whole(killed: Path) -> None:
    assert problems(killed) == []
    assert await opened(killed) == [21, 21]
    assert problems(killed) == []
    assert kept(killed) == []
    assert not beside(killed).exists()
    assert not last_beside(killed).exists()


async def test_one_flipped_bit_anywhere_costs_one_commit_and_is_told(killed: Path, tmp_path: Path) -> None:
    """In the head, the check or the rows of any frame; later commits of other sessions are all there."""
    log = beside(killed).read_bytes()
    starts = [place for place in used(log) if log[place : place + 4] == b"CGR2"]
    choice = random.Random(7)
    for number, position in enumerate(share(sorted(choice.sample(used(log), 24)))):
        copy = tmp_path / f"copy-{number}" / killed.name
        shutil.copytree(killed.parent, copy.parent)
        changed = bytearray(log)
        changed[position] ^= 1 << choice.randrange(8)
        beside(copy).write_bytes(changed)
        told = missing(copy)
        assert told.startswith("1 of the record's commits is missing"), (position, told)
        assert told.endswith("the redo log is damaged")
        before, after = await opened(copy), await opened(copy)
        assert before == after
        # The session that lost a commit ends before it; the other one has all.
        assert max(before) == 21
        # The two of them write in turns, four rows a cell.
        assert min(before) == 5 + 4 * ((bisect_right(starts, position) - 1) // 2)
        (name,) = kept(copy)
        assert name.read_bytes() == changed
        assert missing(copy).startswith(told)
        shutil.rmtree(copy.parent)


async def test_a_log_that_is_cut_anywhere_is_told(killed: Path, tmp_path: Path) -> None:
    """Shorter, or with zeros from there on; also between two frames, where nothing looks damaged."""
    log = beside(killed).read_bytes()
    places = used(log)
    ends = [places.start]
    with closing(schema.open_reader(killed)) as db:
        seed = schema.expected_log(db)
    assert seed is not None
    ends += [end for end in places if log[end : end + 4] == b"CGR2"][1:]
    assert len(ends) == CELLS
    choice = random.Random(8)
    for end in share([*ends, places.stop, *choice.sample(places, 8)]):
        for name, content in (("cut", log[:end]), ("zeros", log[:end].ljust(len(log), b"\0"))):
            copy = tmp_path / f"{name}-{end}" / killed.name
            shutil.copytree(killed.parent, copy.parent)
            beside(copy).write_bytes(content)
            whole = len(find_frames(content, [seed]).groups)
            # The last byte of a frame may be a zero.
            assert whole == sum(place <= end for place in ends[1:]) or log[end] == 0
            if whole == CELLS:
                assert problems(copy) == []
            else:
                assert missing(copy).startswith(f"{CELLS - whole} of the record's commits ")
            rows = await opened(copy)
            assert sum(rows) == 10 + 4 * whole
            shutil.rmtree(copy.parent)


async def test_an_emptied_record_is_damaged_and_one_that_was_never_there_is_none(killed: Path) -> None:
    await asyncio.to_thread(killed.write_bytes, b"")
    with pytest.raises(RecordDamaged, match="no table is left of it"):
        problems(killed)
    beside(killed).unlink()
    with pytest.raises(RecordDamaged, match="no table is left of it"):
        problems(killed)
    last_beside(killed).unlink()
    with pytest.raises(InvalidInput, match="no record"):
        problems(killed)


async def test_a_removed_log_is_told_with_the_number_of_commits(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside(killed).unlink()
    told = "8 of the record's commits are missing, of the numbers 2 to 9: the redo log is gone"
    assert missing(killed) == told
    assert await opened(killed) == [5, 5]
    assert told in caplog.text
    assert missing(killed).startswith(told)
    assert kept(killed) == []
    # The gateway has gone on: what it records now is there, and the loss is still told.
    journal = await Journal.open(killed)
    Recorded(journal, "three").cell("1", text("1"))
    await journal.close()
    assert missing(killed).startswith(told)


async def test_an_old_copy_of_the_log_is_told(path: Path, tmp_path: Path) -> None:
    journal = await Journal.open(path)
    session = Recorded(journal, "one")
    session.cell("1", text("1"))
    await journal.commit()
    await journal.applied()
    await synced(journal)
    session.cell("2", text("2"))
    await journal.commit()
    old = beside(path).read_bytes()
    for number in range(3):
        session.cell(f"{number}", text("1"))
        await journal.commit()
    copy = crashed(path, tmp_path / "killed")
    await journal.close()
    beside(copy).write_bytes(old)
    assert missing(copy).startswith("3 of the record's commits are missing, of the numbers 2 to 5")
    assert (await opened(copy))[0] == 9


async def test_a_log_of_an_earlier_run_is_not_taken_for_this_ones(path: Path, killed: Path) -> None:
    """Its numbers are those of commits that are in the tables."""
    other = await Journal.open(path.with_name("other.sqlite").parent / "elsewhere" / "record.sqlite")
    chain = Chain(other.new_session_id())
    for _ in range(12):
        other.append(chain.next())
        other.save_session(session_row(chain.session_id))
        await other.commit()
    foreign = beside(other._files.path).read_bytes()
    await other.close()
    beside(killed).write_bytes(foreign)
    assert missing(killed).startswith("8 of the record's commits are missing")
    assert await opened(killed) == [5, 5]


@pytest.mark.parametrize("way", ["removed", "emptied", "flipped"])
async def test_without_the_last_number_nothing_is_said_to_be_whole(killed: Path, way: str) -> None:
    """All that is in the log is used, and that more may be missing is told."""
    file = last_beside(killed)
    if way == "removed":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[-6] ^= 4
        file.write_bytes(content if way == "flipped" else b"")
    told = "commits after number 1 may be missing: the file with the last commit's number is gone or damaged"
    assert missing(killed) == told
    assert await opened(killed) == [21, 21]
    assert missing(killed).startswith(told)
    assert len(kept(killed)) == 1


async def test_without_log_and_number_that_is_told_too(killed: Path) -> None:
    beside(killed).unlink()
    last_beside(killed).unlink()
    assert missing(killed) == "commits after number 1 may be missing: the redo log is gone"
    assert await opened(killed) == [5, 5]


async def test_an_older_state_of_the_tables_is_told(path: Path, tmp_path: Path) -> None:
    """As when the database's own log is removed, or somebody puts a backup beside a newer redo log."""
    journal = await Journal.open(path)
    session = Recorded(journal, "one")
    session.cell("1", text("1"))
    await journal.commit()
    await journal.applied()
    old = crashed(path, tmp_path / "old")
    for number in range(4):
        session.cell(f"{number}", text("1"))
        await journal.commit()
    await journal.applied()
    await synced(journal)
    session.cell("9", text("1"))
    await journal.commit()
    copy = crashed(path, tmp_path / "killed")
    await journal.close()
    for suffix in ("", "-wal"):
        shutil.copy(old.with_name(old.name + suffix), copy.with_name(copy.name + suffix))
    assert missing(copy).startswith("4 of the record's commits are missing, of the numbers 2 to 6")
    # The last cell's rows don't follow on what is there: they are kept apart, and told.
    journal = await Journal.open(copy)
    assert len(await all_events(journal, 1)) == 5
    assert journal.failure_of(1) is not None
    await journal.close()
    assert [found.subject for found in problems(copy)] == ["session one of ada", "redo log"]


async def test_rows_after_a_gap_that_tell_no_event_are_not_taken_blindly(path: Path, tmp_path: Path) -> None:
    """A session's own row may speak of events that are lost."""
    journal = await Journal.open(path)
    one, two = Recorded(journal, "one"), Recorded(journal, "two")
    await journal.commit()
    await journal.applied()
    await synced(journal)
    one.cell("1", text("1"))
    await journal.commit()
    for session in (one, two):
        session._save(head_seq=session.log.last_seq, head=session.log.head)
    await journal.commit()
    copy = crashed(path, tmp_path / "killed")
    await journal.close()
    log = bytearray(beside(copy).read_bytes())
    log[used(log).start + 40] ^= 1
    beside(copy).write_bytes(log)
    journal = await Journal.open(copy)
    assert journal.failure_of(1) is not None
    assert journal.failure_of(2) is None
    await journal.close()
    assert [found.subject for found in problems(copy)] == ["session one of ada", "redo log"]


async def test_a_frame_that_was_not_acknowledged_is_no_loss(killed: Path) -> None:
    """The gateway was killed in the middle of an append, or between it and its answer."""
    log = bytearray(beside(killed).read_bytes())
    end = used(log).stop + 1
    log[end : end + 30] = b"CGR2" + bytes(7) + b"\x0a" + bytes(2) + b"\x01\x00" + b"half of it..!"[:14]
    beside(killed).write_bytes(log)
    assert problems(killed) == []
    assert await opened(killed) == [21, 21]
    assert problems(killed) == []


async def test_bytes_of_a_client_are_never_taken_for_a_frame(path: Path, tmp_path: Path) -> None:
    """Who writes what looks like a frame into metadata forges nothing, even where the log is damaged."""
    body = msgspec.json.encode({"seq": 1, "session": "s1", "execution": None, "type": "session"})
    event = EventRow(1, 1, "session", None, body, link(GENESIS, body))
    rows = msgspec.msgpack.encode(([session_row(1, key="forged")], [], [event]))
    head = struct.pack(">4sQI", b"CGR2", 1, len(rows))
    forged = head + struct.pack(">I", zlib.crc32(rows, zlib.crc32(head))) + rows
    former = b"CGR1" + head[4:]
    forged += former + struct.pack(">I", zlib.crc32(rows, zlib.crc32(former))) + rows
    journal = await Journal.open(path)
    text_of_it = forged.decode("latin-1")
    journal.save_session(session_row(journal.new_session_id(), metadata={"a": text_of_it}))
    await journal.commit()
    copy = crashed(path, tmp_path / "killed")
    await journal.close()
    log = bytearray(beside(copy).read_bytes())
    # In place of the client's text as UTF-8, the very bytes of the frames; and the frame around is damaged.
    start = log.index(b"CGR2", 1)
    log[start : start + len(forged)] = forged
    log[30] ^= 1
    beside(copy).write_bytes(log)
    journal = await Journal.open(copy)
    assert await journal.reads.sessions() == []
    await journal.close()
    assert missing(copy).startswith("1 of the record's commits is missing")


def test_a_log_full_of_beginnings_is_read_in_time() -> None:
    """Each of them may be a frame of any length; only the length of a real one is looked at."""
    content = (b"CGR2" + bytes(7) + b"A" + struct.pack(">I", 500_000)) * (LOG_BYTES // 32)
    found = find_frames(content * 2, [b"seed"])
    assert (found.groups, found.damaged) == ({}, True)
    content = (b"CGR2" + bytes(7) + b"A" + struct.pack(">I", 60_000)) * 4000
    assert find_frames(content * 2, [b"seed"]).damaged


async def test_a_start_on_a_full_disk_does_without_a_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await (await Journal.open(path)).close()

    def expect_log(db: sqlite3.Connection, seed: bytes | None) -> None:
        if seed is not None:
            raise StorageFull("There is no space left for the record")

    monkeypatch.setattr(schema, "expect_log", expect_log)
    journal = await Journal.open(path)
    assert "There is no redo log" in caplog.text
    assert not beside(path).exists()
    Recorded(journal, "one").cell("1", text("1"))
    await journal.commit()
    assert journal.pending_bytes == 0
    await journal.close()


def test_rows_of_another_version_stop_the_start_before_anything_is_changed(killed: Path) -> None:
    """So the version that wrote them can still be started."""
    with closing(sqlite3.connect(killed)) as db:
        seed = schema.expected_log(db)
        before = list(db.iterdump())
    assert seed is not None
    rows = msgspec.msgpack.encode(([1], [], []))
    head = struct.pack(">4sQI", b"CGR2", 1, len(rows))
    frame = head + struct.pack(">I", zlib.crc32(rows, zlib.crc32(head, zlib.crc32(seed)))) + rows
    beside(killed).write_bytes(frame)
    with pytest.raises(StorageError, match="rows of another version"):
        asyncio.run(Journal.open(killed))
    with closing(sqlite3.connect(killed)) as db:
        assert list(db.iterdump()) == before
    assert beside(killed).read_bytes() == frame


async def test_a_crash_between_the_steps_of_a_salvage_loses_no_word_of_it(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are still there although the tables have it all: the next start tells the same."""
    log = bytearray(beside(killed).read_bytes())
    log[used(log).start + 30] ^= 1
    beside(killed).write_bytes(log)
    with monkeypatch.context() as patch:
        patch.setattr(salvage, "put_away", lambda record: None)
        patch.setattr(redo.RedoLog, "create", redo.RedoLog.without)
        first = await opened(killed)
    assert beside(killed).exists()
    assert await opened(killed) == first
    assert not beside(killed).exists()
    assert missing(killed).startswith("1 of the record's commits is missing")
    assert len(kept(killed)) == 1


async def test_a_session_whose_row_is_no_json_any_more_is_told_as_damage(path: Path) -> None:
    """A start reads it, and says what to do; it is not an internal error."""
    journal = await Journal.open(path)
    journal.save_session(session_row(journal.new_session_id()))
    await journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE sessions SET metadata = '{\"a\": x'")
        db.commit()
    async with journal_at(path) as journal:
        with pytest.raises(RecordDamaged, match="cellgate verify"):
            await journal.reads.unfinished_sessions()


async def test_a_page_that_only_writing_uses_is_checked_too(path: Path) -> None:
    """A start would fail because of it, so the check must not call the record whole."""
    journal = await Journal.open(path)
    recorded = Recorded(journal, "s")
    recorded.cell("1", text("1"))
    await journal.commit()
    await journal.close()
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT max(rootpage) FROM sqlite_master WHERE type = 'index'"
        (page,) = db.execute(query).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    with pytest.raises(RecordDamaged):
        list(check_record(path))
