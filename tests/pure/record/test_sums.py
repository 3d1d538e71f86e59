"""Sums of usage in SQLite: records of an older version, and a question that takes long."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from msgspec import structs

from cellgate.errors import StorageError
from cellgate.record.rows import FIGURES
from cellgate.record.store.interface import GivenUp
from cellgate.record.store.sqlite import sums as sums_module
from cellgate.record.store.sqlite.backup import backing_up
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.migrations import OLDEST
from cellgate.record.store.sqlite.sums import sums
from cellgate.record.store.summing import SumBy, SumQuestion
from cellgate.testing.record_store import cells_of_two
from cellgate_kernels.base.errors import InvalidInput
from tests.pure.record.conftest import journal_at
from tests.pure.record.recorded import Recorded, image, text

ALWAYS = SumQuestion(SumBy.SESSION, "2000-01-01T00:00:00.000000Z", "3000-01-01T00:00:00.000000Z")
USED = {"cpu_seconds": 1.5, "memory_peak": 7, "disk_written": None, "network_sent": 0, "network_received": 3}


def made_older(path: Path) -> None:
    """Take from the tables what those of the older version did not have."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP INDEX executions_ended")
        for name in ("ended_at", *FIGURES):
            db.execute(f"ALTER TABLE executions DROP COLUMN {name}")
        db.execute(f"PRAGMA user_version = {OLDEST}")
        db.commit()


async def recorded(journal: Journal) -> None:
    session = Recorded(journal, "s")
    session.cell("1", text("eins"), usage=USED)
    session.cell("x" * 9000, image(), error={"ename": "E", "evalue": "y" * 9000, "traceback": []})
    session.cell("2", usage={**USED, "cpu_seconds": 0.25})
    session.end()
    copied = Recorded(journal, "copied")
    copied.cell("1", ran_in="s")
    copied.end()
    await journal.commit()


def is_valid(path: Path) -> bool:
    return all(found.valid for found in check_record(path))


async def test_an_older_record_is_brought_up_to_date_from_its_events(path: Path) -> None:
    async with journal_at(path) as journal:
        await recorded(journal)
        known = await journal.reads.sums(ALWAYS)
    assert [(each.sum.session, each.sum.cells, each.sum.unknown) for each in known] == [("s", 3, 1)]
    assert (known[0].sum.cpu_seconds, known[0].sum.network_received) == (1.75, 6)
    made_older(path)
    with pytest.raises(StorageError, match="a gateway of this version brings it up to date"):
        list(check_record(path))
    async with journal_at(path) as journal:
        assert await journal.reads.sums(ALWAYS) == known
    assert is_valid(path)


async def test_rows_in_an_older_redo_log_are_filled_as_well(path: Path, tmp_path: Path) -> None:
    """As of a gateway that was killed before the upgrade."""
    killed = tmp_path / "killed" / path.name
    async with journal_at(path) as journal:
        await recorded(journal)
        known = await journal.reads.sums(ALWAYS)
        session = await journal.reads.session("ada", "s")
        assert session is not None
        first = await journal.reads.execution(session.id, "s-1")
        assert first is not None
        older = dict.fromkeys(("ended_at", *FIGURES))
        # Left in the log by a copy before it is in the tables.
        journal.save_execution(structs.replace(first, **older))
        await journal.commit()
        shutil.copytree(path.parent, killed.parent)
    made_older(killed)
    async with journal_at(killed) as journal:
        assert await journal.reads.sums(ALWAYS) == known
    assert is_valid(killed)


async def test_a_backup_of_an_older_record_is_up_to_date(path: Path, tmp_path: Path) -> None:
    async with journal_at(path) as journal:
        await recorded(journal)
    made_older(path)
    with backing_up(path, tmp_path / "copy.sqlite3", replace=False, progress=lambda *_: None) as copy:
        copy.publish(replace=False, aside=False)
    assert is_valid(tmp_path / "copy.sqlite3")


async def test_cells_whose_events_can_not_be_read_do_not_stop_an_upgrade(path: Path) -> None:
    async with journal_at(path) as journal:
        await recorded(journal)
    made_older(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE events SET body = x'ff' WHERE type = 'finished' AND execution = 's-1'")
        db.execute("UPDATE events SET blobs = x'00' WHERE type = 'queued' AND execution = 's-2'")
        db.execute("DELETE FROM events WHERE type = 'queued' AND execution = 's-3'")
        db.commit()
    async with journal_at(path) as journal:
        assert await journal.reads.sums(ALWAYS) == []
    assert not is_valid(path)


async def test_a_question_that_takes_long_is_refused_and_others_go_on(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cells_of_two(journal)
    monkeypatch.setattr(sums_module, "SUM_SECONDS", -1.0)
    monkeypatch.setattr(sums_module, "_STEPS", 1)
    with pytest.raises(InvalidInput, match="ask for a shorter time"):
        await journal.reads.sums(ALWAYS)
    assert len(await journal.reads.sessions()) == 3


async def test_a_question_ends_when_nobody_waits_for_it(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cells_of_two(journal)
    await journal.applied()
    monkeypatch.setattr(sums_module, "_STEPS", 1)
    left = Event()
    left.set()
    with closing(sqlite3.connect(path)) as db:
        with pytest.raises(GivenUp):
            sums(db, ALWAYS, left)
        assert len(sums(db, ALWAYS)) == 3


async def test_a_range_is_found_by_its_index(path: Path) -> None:
    """Not by a look at all cells that there ever were."""
    async with journal_at(path):
        pass
    query, asked = sums_module._statement(ALWAYS)
    with closing(sqlite3.connect(path)) as db:
        plan = str(db.execute(f"EXPLAIN QUERY PLAN {query}", asked).fetchall())
    assert "executions_ended" in plan
