"""The record stays as small as it is told to, and stays valid."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from cellgate.errors import StorageError
from cellgate.record.store.sqlite import upkeep
from cellgate.record.store.sqlite.blobs import LEAST, long_runs
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from tests.pure.record.conftest import journal_at
from tests.pure.record.recorded import Recorded, image, text

SHORT_RUNS = 'a"' * LEAST
SHORTENED = "SELECT session_id, seq FROM events WHERE blobs NOT NULL"


def valid(path: Path) -> bool:
    return all(found.valid for found in check_record(path))


async def test_compact_stores_equal_values_of_old_rows_once(path: Path) -> None:
    async with journal_at(path) as journal:
        with pytest.raises(StorageError, match="in use"), upkeep.alone(path):
            pass
        for index in range(5):
            Recorded(journal, f"s{index}").cell("show()", image("x" * 100_000), text("y"))
        await journal.commit()
        bodies = [row.body for index in range(1, 6) for row in await journal.events(index)]
    with closing(sqlite3.connect(path)) as db, db:
        # As the first version wrote them: every row has all of its body.
        for session_id, seq in db.execute(SHORTENED).fetchall():
            whole = bodies[(session_id - 1) * 6 + seq - 1]
            where = (whole, session_id, seq)
            db.execute("UPDATE events SET body = ?, blobs = NULL WHERE session_id = ? AND seq = ?", where)
        db.execute("DELETE FROM blobs")
        db.execute("DELETE FROM blob_uses")
    assert valid(path)
    with upkeep.alone(path) as db:
        before = upkeep.statistics(db)
        assert upkeep.compact(db) == 5
        assert upkeep.compact(db) == 0
        after = upkeep.statistics(db)
    assert (before.blobs, after.blobs, after.blob_bytes) == (0, 1, 100_000)
    assert after.file_bytes < before.file_bytes - 300_000
    assert (after.sessions, after.open_sessions, after.executions, after.free_bytes) == (5, 5, 5, 0)
    assert valid(path)
    async with journal_at(path) as journal:
        again = [row.body for index in range(1, 6) for row in await journal.events(index)]
    assert again == bodies


async def test_compact_shortens_rows_of_which_only_long_runs_were_stored_apart(path: Path) -> None:
    async with journal_at(path) as journal:
        Recorded(journal, "s").cell("show()", text(SHORT_RUNS + "x" * 100_000 + SHORT_RUNS))
        await journal.commit()
        bodies = [row.body for row in await journal.events(1)]
    with closing(sqlite3.connect(path)) as db, db:
        ((seq, uses),) = db.execute("SELECT seq, blobs FROM events WHERE blobs NOT NULL").fetchall()
        body = bodies[seq - 1]
        ((start, end),) = long_runs(body)
        run = next(use for use in struct.iter_unpack(">QQ", uses) if use[0] == start)
        former = (body[:start] + body[end:], struct.pack(">QQ", *run), seq)
        db.execute("UPDATE events SET body = ?, blobs = ? WHERE seq = ?", former)
    assert valid(path)
    with upkeep.alone(path) as db:
        assert upkeep.compact(db) == 1
        assert upkeep.compact(db) == 0
        (kept,) = db.execute(
            "SELECT length(body) + length(blobs) FROM events WHERE blobs NOT NULL"
        ).fetchone()
    assert kept < LEAST
    assert valid(path)
    async with journal_at(path) as journal:
        assert [row.body for row in await journal.events(1)] == bodies


async def test_the_record_unused_for_longest_goes_first_and_open_ones_stay(
    journal: Journal, path: Path
) -> None:
    sessions = [Recorded(journal, f"s{index}") for index in range(3)]
    sessions[0].cell("1", text("x" * 200_000))
    sessions[1].cell("1", text("y" * 200_000))
    sessions[1].end()
    sessions[2].end()
    assert await journal.overdue(None, None) is None
    assert await journal.overdue("2000", 10_000_000) is None
    found = await journal.overdue("2100", None)
    assert found is not None
    assert (found[0].key, found[1]) == ("s1", "retention_age")
    found = await journal.overdue(None, 300_000)
    assert found is not None
    assert (found[0].key, found[1]) == ("s1", "retention_size")
    purged = await journal.purge(found[0].id, by="gateway", reason=found[1])
    assert purged is not None
    await purged.removed
    assert await journal.overdue(None, 300_000) is None
    assert valid(path)
