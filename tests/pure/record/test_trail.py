"""What the audit trail is told while a gateway serves, and that telling it is bounded."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellgate.cli.record import copies
from cellgate.errors import StorageError
from cellgate.record.store.sqlite import upkeep
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.trail import ACCESS, BEGUN, LOST, REFUSED, NewEntry
from cellgate.record.trail_writer import MOST_KEPT, MOST_REFUSALS, WINDOW_SECONDS, Notes, TrailWriter
from tests.pure.record.recorded import Recorded, text


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def text(self) -> str:
        return f"at {self.now:g}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notes(clock: Clock) -> Notes:
    return Notes(clock, clock.text)


def counts(entries: list[NewEntry]) -> list[tuple[str, str, int]]:
    """Type, address or reason, and count of each."""
    return [
        (one.type, one.fields.get("address", one.fields.get("reason", "")), one.fields["count"])
        for one in entries
    ]


def test_the_first_is_told_at_once_and_repeats_at_the_end_of_the_minute(notes: Notes, clock: Clock) -> None:
    notes.add(REFUSED, {"address": "a", "token": ""}, {"route": "/x"})
    [first] = notes.take()
    assert first.fields == {
        "address": "a",
        "route": "/x",
        "count": 1,
        "first_at": "at 100",
        "last_at": "at 100",
    }
    clock.now = 110
    notes.add(REFUSED, {"address": "a"}, {"route": "/y"})
    clock.now = 120
    notes.add(REFUSED, {"address": "a"})
    assert notes.take() == []
    clock.now += WINDOW_SECONDS
    [again] = notes.take()
    assert again.fields == {"address": "a", "count": 2, "first_at": "at 110", "last_at": "at 120"}
    assert notes.take() == []
    notes.add(REFUSED, {"address": "a"})
    assert counts(notes.take()) == [(REFUSED, "a", 1)]


def test_a_flood_of_different_refusals_is_few_entries_that_count_all(notes: Notes, clock: Clock) -> None:
    flood = 10_000
    for number in range(flood):
        notes.add(REFUSED, {"address": str(number)})
    told = notes.take()
    assert len(told) == MOST_REFUSALS + 1
    assert counts(told)[-1] == (REFUSED, "others", 1)
    clock.now += WINDOW_SECONDS
    rest = notes.take()
    assert counts(rest) == [(REFUSED, "others", flood - MOST_REFUSALS - 1)]
    assert sum(count for _, _, count in counts(told + rest)) == flood


def test_no_access_shares_an_entry_with_another(notes: Notes, clock: Clock) -> None:
    """Nobody can hide one among many: what there is no room for is counted as lost."""
    more = MOST_KEPT + 100
    for number in range(more):
        notes.add(ACCESS, {"address": str(number)})
    told = notes.take()
    assert counts(told[:MOST_KEPT]) == [(ACCESS, str(number), 1) for number in range(MOST_KEPT)]
    assert told[MOST_KEPT:] == [NewEntry(LOST, {"count": 100})]
    clock.now += WINDOW_SECONDS
    assert notes.take() == []


def test_entries_that_were_not_written_come_first_again(notes: Notes) -> None:
    notes.add(ACCESS, {"address": "a"})
    failed = notes.take()
    notes.add(ACCESS, {"address": "b"})
    notes.put_back([*failed, NewEntry(LOST, {"count": 3})])
    assert counts(notes.take()) == [(ACCESS, "a", 1), (ACCESS, "b", 1), (LOST, "", 3)]


def test_long_texts_are_cut(notes: Notes) -> None:
    notes.add(ACCESS, {"session": "x" * 70_000})
    [entry] = notes.take()
    assert len(entry.fields["session"]) == 200


# ---- in the record -----------------------------------------------------------------------------------------


def bodies(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row.body) for row in upkeep.trail_of(path)]


@pytest.fixture
async def writer(journal: Journal) -> AsyncGenerator[TrailWriter, None]:
    made = TrailWriter(journal)
    yield made
    await made.close()


async def test_what_is_noted_is_in_the_chain_after_the_close(journal: Journal, path: Path) -> None:
    writer = TrailWriter(journal)
    writer.start()
    session = Recorded(journal, "s")
    session.cell("1", text("1"))
    await journal.commit()
    writer.refused({"address": "10.0.0.1", "reason": "forbidden"}, {"method": "GET"})
    writer.refused({"address": "10.0.0.1", "reason": "forbidden"}, {"method": "GET"})
    writer.accessed({"principal": "root", "owner": "ada"})
    await writer.close()
    await journal.applied()
    found = [entry for entry in bodies(path) if entry["type"] != BEGUN]
    assert [(entry["type"], entry["count"]) for entry in found] == [(REFUSED, 1), (ACCESS, 1), (REFUSED, 1)]
    assert all(finding.valid for finding in check_record(path))
    assert upkeep.statistics_of(path).trail_entries == 4
    rows, more = await journal.reads.trail(1, 2)
    assert ([row.seq for row in rows], more) == ([2, 3], True)
    rows, more = await journal.reads.trail(3, 2)
    assert ([row.seq for row in rows], more) == ([4], False)


async def test_a_full_disk_keeps_notes_and_fails_nobody(
    journal: Journal, path: Path, writer: TrailWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: object) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "add_to_trail", full)
        writer.accessed({"owner": "ada"})
        await writer._write()
        await writer._write()
    writer.accessed({"owner": "bob"})
    await writer._write()
    assert [entry["owner"] for entry in bodies(path)] == ["ada", "bob"]


async def test_entries_are_added_together_or_not_at_all(journal: Journal, path: Path) -> None:
    with pytest.raises(TypeError):
        await journal.add_to_trail([NewEntry(ACCESS, {"a": 1}), NewEntry(ACCESS, {"a": object()})])
    assert bodies(path) == []
    await journal.add_to_trail([NewEntry(ACCESS, {"a": 1})])
    assert [entry["a"] for entry in bodies(path)] == [1]


async def test_changed_entries_are_found(journal: Journal, path: Path, tmp_path: Path) -> None:
    for number in range(3):
        await journal.add_to_trail([NewEntry(REFUSED, {"number": number})])
    target = tmp_path / "copy.sqlite3"
    copies.back_up(path, target, replace=False, progress=lambda *_: None)
    assert [entry["number"] for entry in bodies(target)] == [0, 1, 2]
    with closing(sqlite3.connect(target)) as db:
        db.execute("UPDATE trail SET body = CAST(replace(body, ':1}', ':7}') AS BLOB) WHERE seq = 2")
        db.commit()
    assert "entry 2 was changed" in str([found.problem for found in check_record(target)])


async def test_a_type_of_a_later_version_is_not_taken_for_a_purge(journal: Journal, path: Path) -> None:
    await journal.add_to_trail([NewEntry("something_new")])
    problems = [found.problem for found in check_record(path) if not found.valid]
    assert problems == ["entry 1 is of a type that this version does not know"]
