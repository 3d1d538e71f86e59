"""Exports that meet a purge at any step of theirs: whole, or broken off, and never blank but valid."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cellgate.errors import RecordGone, StorageError, status_of
from cellgate.record.events import EventLog
from cellgate.record.export import steps as export
from cellgate.record.export.bundle import Contents, bundle_parts
from cellgate.record.export.notebook import Export
from cellgate.record.export.session_export import Exports
from cellgate.record.export.steps import Reading, audit_parts, notebook_parts, read_notebook
from cellgate.record.export.survey import ListedRows, Survey
from cellgate.record.rows import SessionRow
from cellgate.record.spill import Spills
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.sqlite import purge, reads, schema
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.reads import ConnectionSteps
from cellgate.testing.record_store import MOMENT
from cellgate_kernels.base.threads import Lane
from tests.pure.record.conftest import journal_at
from tests.pure.record.recorded import IMAGE, Recorded, image, text
from tests.support.examples import share

CELLS = 4
SAID = Export(gateway_version="0.1.0", exported_at=MOMENT, cap=None)
WIDGET = (
    "comm_open",
    {
        "comm_id": "w",
        "target_name": "jupyter.widget",
        "data": {"state": {"_model_name": "IntSliderModel", "value": 1}},
        "buffers": [],
    },
)

Make = Callable[[Reading], Iterator[bytes]]


@pytest.fixture
async def stored(path: Path) -> AsyncGenerator[tuple[SessionRow, int, bytes]]:
    """A session with cells, a display that another cell changes, a widget; and how far its rows go."""
    async with journal_at(path) as journal:
        session = Recorded(journal, "first")
        shown = {"data": {"text/plain": "0"}, "metadata": {}, "display_id": "d"}
        session.cell("show()", ("display_data", shown), WIDGET)
        for number in range(1, CELLS - 1):
            session.cell(f"{number}", text(f"line {number}\n"), image(IMAGE + str(number)))
        session.cell("update()", ("update_display_data", {**shown, "data": {"text/plain": "1"}}))
        session.end()
        await journal.commit()
        found = await journal.reads.last_event(session.row.id)
        assert found is not None
        yield session.row, *found


def notebook(reading: Reading) -> Iterator[bytes]:
    return notebook_parts(reading, SAID, None)


def bundle(reading: Reading) -> Iterator[bytes]:
    contents = Contents(
        session="first",
        exported_at=MOMENT,
        environment={},
        notebook=notebook(reading),
        rows=audit_parts(reading),
        workspace=None,
        most_bytes=0,
        check_there=reading.check_there,
    )
    return bundle_parts(contents, None)


def verified(reading: Reading) -> Iterator[bytes]:
    yield repr(export.check(reading)).encode()


class Purger:
    """Begins to purge the session before step `at`, as the record's writer would in the middle of a reading.

    It goes on by one step of its own before each further one, or does all `at_once`.
    """

    def __init__(self, path: Path, session_id: int, at: int, *, at_once: bool = True) -> None:
        self.steps = 0
        self._path = path
        self._session_id = session_id
        self._at = at
        self._at_once = at_once

    def __call__(self) -> None:
        self.steps += 1
        if not 0 < self._at <= self.steps:
            return
        with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            if self.steps == self._at:
                assert purge.begin(db, self._session_id, by="ada", reason="requested")
            if self._at_once:
                purge.finish_all(db)
            else:
                purge.remove_some(db, self._session_id)
            # Nothing holds the log back: no step is open now.
            assert purge.empty_log(db)


class PurgedSteps(ConnectionSteps):
    """Steps before each of which a purger has its turn."""

    def __init__(self, db: sqlite3.Connection, purge: Callable[[], None]) -> None:
        super().__init__(db, Event())
        self.go_on = purge  # type: ignore[method-assign]


def made(path: Path, make: Make, moment: tuple[SessionRow, int, bytes], purge: Purger) -> bytes:
    with closing(schema.open_reader(path)) as db:
        return b"".join(make(Reading(PurgedSteps(db, purge), *moment)))


@pytest.mark.parametrize("make", [notebook, audit_parts, bundle, verified])
async def test_a_purge_at_any_step_breaks_the_export_off(
    stored: tuple[SessionRow, int, bytes], path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "STEP_ROWS", 4)
    counter, last_look = Purger(path, 0, 0), 0

    def noted(look: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal last_look
            last_look = counter.steps
            return look(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("events", "is_there"):
            patch.setattr(schema, name, noted(getattr(schema, name)))
        whole = made(path, make, stored, counter)
    assert whole
    assert last_look > stored[1] // 4
    kept = path.with_name("kept.sqlite")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(kept)) as target:
        source.backup(target)
    steps = sorted({1, *share(range(1, counter.steps + 1))})
    for step in steps:
        copy = copied(kept, f"at-once-{step}")
        purger = Purger(copy, stored[0].id, step)
        if step > last_look:  # too late: all of it was read
            assert made(copy, make, stored, purger) == whole
        else:
            with pytest.raises(RecordGone):
                made(copy, make, stored, purger)
    monkeypatch.setattr(purge, "STEP_ROWS", 3)
    broken = 0
    for step in steps:
        copy = copied(kept, f"bit-by-bit-{step}")
        try:
            assert made(copy, make, stored, Purger(copy, stored[0].id, step, at_once=False)) == whole
        except RecordGone:
            broken += 1
    assert 0 < broken <= last_look


def copied(path: Path, name: str) -> Path:
    copy = path.with_name(f"{name}.sqlite")
    copy.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(copy)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    return copy


async def test_a_row_that_is_missing_is_named_and_no_purge(
    stored: tuple[SessionRow, int, bytes], path: Path
) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM events WHERE seq = 5")
    with pytest.raises(StorageError, match=r"Row 5 .* is missing") as raised:
        made(path, notebook, stored, Purger(path, 0, 0))
    assert not isinstance(raised.value, RecordGone)
    assert b"first_bad=5" in made(path, verified, stored, Purger(path, 0, 0))


async def test_cells_are_held_against_what_was_surveyed(
    stored: tuple[SessionRow, int, bytes], path: Path
) -> None:
    with closing(schema.open_reader(path)) as db:
        reading = Reading(ConnectionSteps(db, Event()), *stored)
        rows = list(reading.all())
        made_before = list(read_notebook(reading, SAID).cells())
    survey = Survey()
    for row in rows:
        survey.add(row)
    for place in survey.places.values():
        assert list(place.rows(ListedRows(rows)))
        for others in (rows[: place.first_seq], [rows[0]] * len(rows)):
            with pytest.raises(StorageError, match="changed while it was read"):
                list(place.rows(ListedRows(others)))
    assert len(made_before) == CELLS


async def test_what_was_purged_before_is_told_as_gone_and_its_successor_is_another(
    journal: Journal, path: Path, tmp_path: Path, lane: Lane
) -> None:
    spills = Spills(tmp_path, SpillLedger(tmp_path, 0), lane)
    exports = Exports(journal, "0.1.0", None, spills)
    former = Recorded(journal, "first")
    former.cell("former")
    moment = await exports.moment(former.row)
    await journal.purge(former.row.id, by="ada", reason="requested")
    successor = Recorded(journal, "first")
    successor.cell("successor")
    with pytest.raises(RecordGone) as raised:
        await exports.moment(former.row)
    assert status_of(raised.value) == 410
    for parts in (exports.notebook(moment), exports.bundle(moment, None), exports.audit(moment)):
        with pytest.raises(RecordGone):
            async with aclosing(parts):
                _ = [part async for part in parts]
    with pytest.raises(RecordGone):
        await exports.verify(moment)
    async with aclosing(exports.notebook(await exports.moment(successor.row))) as parts:
        whole = json.loads(b"".join([part async for part in parts]))
    assert [cell["source"] for cell in whole["cells"]] == [["successor"]]
    await exports.close()


async def test_followers_and_pages_of_a_purged_session_do_not_end_in_order(journal: Journal) -> None:
    session = Recorded(journal, "first")
    for number in range(300):
        session.cell(str(number))
    session.end()
    await journal.commit()
    log = EventLog(journal, session.row.id, "first", last_seq=session.log.last_seq, head=session.log.head)
    log.close()
    async with aclosing(log.follow(0)) as batches:
        seen = (await anext(batches))[-1].seq
        assert seen < log.last_seq
        await journal.purge(session.row.id, by="ada", reason="requested")
        with pytest.raises(RecordGone):
            await anext(batches)
    with pytest.raises(RecordGone):
        await log.read(seen)
    with pytest.raises(RecordGone):
        _ = [batch async for batch in journal.reads.event_batches(session.row.id, until=log.last_seq)]


async def test_a_reading_that_is_cancelled_ends_in_its_thread(
    journal: Journal, tmp_path: Path, lane: Lane
) -> None:
    """Nobody waits for what nobody wants: the next step gives up, and connection and file are gone."""
    spills = Spills(tmp_path, SpillLedger(tmp_path, 0), lane)
    exports = Exports(journal, "0.1.0", None, spills)
    session = Recorded(journal, "first")
    for number in range(40):
        session.cell(str(number), text(f"{number}" * 100_000))
    parts = exports.notebook(await exports.moment(session.row))
    assert await anext(parts)
    assert spills._ledger.used
    await parts.aclose()
    await exports.close()
    assert spills._ledger.used == 0
