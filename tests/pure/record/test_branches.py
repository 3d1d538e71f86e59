"""A branch's record continues another session's, by its hash; nothing of that can be changed unseen."""

from __future__ import annotations

import shutil
import sqlite3
import zipfile
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import nbformat
import pytest

from cellgate.errors import RecordGone
from cellgate.record.chain import GENESIS, link
from cellgate.record.export.session_export import Exports, Moment
from cellgate.record.rows import Ancestor, Lineage
from cellgate.record.spill import Spills
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.sqlite import schema
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.verify.notebooks import check_bundle, check_notebook
from cellgate_kernels.base.threads import Lane
from tests.pure.record.conftest import journal_at
from tests.pure.record.recorded import Recorded, text
from tests.pure.record.test_verify import OTHER_VALUE, changed, collected, columns, problems
from tests.support.examples import share


async def three_generations(journal: Journal) -> list[Recorded]:
    """A session, a branch of it and a branch of that; each has cells before and after."""
    parent = Recorded(journal, "parent")
    parent.cell("x = 1")
    child = Recorded(journal, "child", parent, seed=7)
    parent.cell("x = 2")
    child.cell("x", text("1"))
    grandchild = Recorded(journal, "grandchild", child)
    grandchild.cell("x + 1", text("2"))
    for session in (parent, child, grandchild):
        session.end()
    await journal.commit()
    return [parent, child, grandchild]


@pytest.fixture
async def family(path: Path) -> Path:
    async with journal_at(path) as journal:
        await three_generations(journal)
    return path


async def purged(path: Path, session_id: int) -> list[str]:
    """What is checked and found after this session's purge."""
    async with journal_at(path) as journal:
        purge = await journal.purge(session_id, by="ada", reason="requested")
        assert purge is not None
        await purge.erased
    return [f"{found.subject}: {found.problem or found.checked}" for found in check_record(path)]


async def test_a_branch_is_stored_with_its_origin(path: Path) -> None:
    async with journal_at(path) as journal:
        parent, child, _ = await three_generations(journal)
        row = await journal.reads.session("ada", "child")
        assert row is not None
        assert row.parent == parent.row.id
        assert row.branched_from == child.row.branched_from
        assert row.execution_count == 2, "it goes on counting"
    assert problems(path) == []


async def test_the_redo_log_keeps_the_origin_of_a_branch(path: Path) -> None:
    journal = await Journal.open(path)
    _, child, _ = await three_generations(journal)
    crashed = path.parent.with_name("crashed")
    shutil.copytree(path.parent, crashed)
    await journal.close()
    async with journal_at(crashed / path.name) as after:
        row = await after.reads.session("ada", "child")
    assert row is not None
    assert row.branched_from == child.row.branched_from
    assert problems(crashed / path.name) == []


def test_another_value_in_any_column_of_a_branch_is_found(family: Path) -> None:
    """The JSON columns are tried elsewhere; a state of them with a space more is the same."""
    checked = 0
    for table, column, where in columns(family):
        if table != "sessions" or column in {"limits", "metadata", "environment"}:
            continue
        assert changed(family, OTHER_VALUE.format(table=table, column=column, value="'x'", where=where))
        checked += 1
    assert checked == 3 * 17


Change = Callable[[dict[str, Any]], None]


def rewritten(path: Path, session_id: int, change: Change) -> list[str]:
    """What is found after somebody changed the first event of a session and made its chain anew."""
    copy = path.with_name("copy.sqlite")
    shutil.copyfile(path, copy)
    with closing(sqlite3.connect(copy)) as db, db:
        head = GENESIS
        for row in list(schema.stored_rows(db, session_id, 1, schema.LAST)):
            event = msgspec.json.decode(row.body)
            if row.seq == 1:
                change(event)
                origin = event.get("branched_from", {"session": "", "seq": 0, "head": ""})
                query = (
                    "UPDATE sessions SET branched_from = ?, branched_seq = ?, branched_head = ? WHERE id = ?"
                )
                db.execute(query, (*origin.values(), session_id))
            body = msgspec.json.encode(event)
            head = link(head, body)
            query = "UPDATE events SET body = ?, hash = ? WHERE session_id = ? AND seq = ?"
            db.execute(query, (body, head, session_id, row.seq))
        db.execute("UPDATE sessions SET head = ? WHERE id = ?", (head, session_id))
    return problems(copy)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda event: event["branched_from"].update(seq=3), "is another one: its hash is"),
        (lambda event: event["branched_from"].update(seq=300), "is not there"),
        (lambda event: event["branched_from"].update(head="00" * 32), "is another one: its hash is"),
        (
            lambda event: event["branched_from"].update(session="grandchild"),
            "is looked for in session parent",
        ),
        (lambda event: event.pop("branched_from"), "it has a parent"),
    ],
)
def test_an_origin_that_was_changed_with_the_whole_chain_is_found(
    family: Path, change: Change, problem: str
) -> None:
    found = rewritten(family, 2, change)
    # Its own branch continues a row that is another one now.
    assert len(found) == 2
    assert problem in found[0]
    assert "which row 1 says it continues, is another one" in found[1]


def test_a_parent_that_was_changed_with_its_whole_chain_is_found(family: Path) -> None:
    (found,) = rewritten(family, 1, lambda event: event.update(gateway_version="9"))
    assert found.startswith("row 5 of session parent, which row 1 says it continues, is another one")


def test_an_event_that_tells_of_another_branch_is_no_origin(family: Path) -> None:
    statement = "UPDATE sessions SET key = 'other' WHERE id = 2"
    assert any("moved there" in each for each in changed(family, statement))


async def test_a_purged_parent_is_covered_by_its_tombstone(family: Path) -> None:
    assert await purged(family, 1) == [
        "session child of ada: 7 rows, a branch of session parent, which was purged",
        "session grandchild of ada: 6 rows",
        "audit trail: 4 entries",
    ]
    with closing(sqlite3.connect(family)) as db:
        assert db.execute("SELECT count(*) FROM events WHERE session_id = 1").fetchone() == (0,)


async def test_a_tombstone_covers_no_more_than_the_purged_record_had(family: Path) -> None:
    await purged(family, 1)
    for column, value in (("branched_seq", "99"), ("branched_from", "'other'"), ("parent", "7")):
        (found,) = changed(family, f"UPDATE sessions SET {column} = {value} WHERE id = 2")
        assert "branched_from is" in found or "no tombstone covers it" in found


async def test_a_key_that_is_used_again_does_not_stand_for_the_purged_parent(family: Path) -> None:
    async with journal_at(family) as journal:
        purge = await journal.purge(1, by="ada", reason="requested")
        assert purge is not None
        await purge.erased
        Recorded(journal, "parent").end()
        await journal.commit()
    assert problems(family) == []


async def test_a_branch_that_was_announced_and_never_recorded_is_no_fault(path: Path) -> None:
    async with journal_at(path) as journal:
        Recorded(journal, "parent").branched("never")
        await journal.commit()
    assert problems(path) == []


async def test_retention_spares_what_a_live_branch_continues(path: Path) -> None:
    async with journal_at(path) as journal:
        parent = Recorded(journal, "parent")
        child = Recorded(journal, "child", parent)
        grandchild = Recorded(journal, "grandchild", child)
        other = Recorded(journal, "other")
        for session in (parent, child, other):
            session.end()
        found = await journal.overdue("2100", None)
        assert found is not None
        assert found[0].key == "other"
        purge = await journal.purge(other.row.id, by="gateway", reason="retention_age")
        assert purge is not None
        assert await journal.overdue("2100", None) is None
        grandchild.end()
        found = await journal.overdue("2100", None)
        assert found is not None
        assert found[0].key == "parent"
        await purge.erased


# ---- exports ----------------------------------------------------------------------------------------------


@dataclass
class Exporter:
    """Exports sessions of a record that is open."""

    journal: Journal
    exports: Exports
    folder: Path

    async def moment(self, key: str, covers: Callable[[str], bool] | None = None) -> Moment:
        row = await self.journal.reads.session("ada", key)
        assert row is not None
        return await self.exports.moment(row, covers)

    async def notebook(self, key: str, **options: Any) -> dict[str, Any]:
        """The notebook, which nbformat accepts and whose seal holds."""
        covers = options.pop("covers", None)
        whole = await collected(self.exports.notebook(await self.moment(key, covers), **options))
        assert check_notebook(whole, key).valid
        notebook: dict[str, Any] = msgspec.json.decode(whole)
        nbformat.validate(nbformat.from_dict(notebook))
        return notebook

    async def bundle(self, key: str, covers: Callable[[str], bool] | None = None) -> Path:
        path = self.folder / f"{key}.zip"
        path.write_bytes(await collected(self.exports.bundle(await self.moment(key, covers), None)))
        return path


@pytest.fixture
async def exporter(path: Path, lane: Lane) -> AsyncGenerator[Exporter, None]:
    async with journal_at(path) as journal:
        await three_generations(journal)
        spills = Spills(path.parent, SpillLedger(path.parent, 0), lane)
        yield Exporter(journal, Exports(journal, "0.1.0", None, spills), path.parent)
        await spills.ends.finished()
        assert spills._ledger.used == 0


def shown(notebook: dict[str, Any]) -> list[tuple[str, str | None, int]]:
    """Of each cell: its source, the session it is inherited from, and its count."""
    return [
        (
            "".join(cell["source"]),
            cell["metadata"]["cellgate"].get("inherited", {}).get("session"),
            cell["execution_count"],
        )
        for cell in notebook["cells"]
    ]


async def test_the_notebook_of_a_branch_begins_with_what_it_inherited(exporter: Exporter) -> None:
    notebook = await exporter.notebook("grandchild")
    assert shown(notebook) == [("x = 1", "parent", 1), ("x", "child", 2), ("x + 1", None, 3)]
    first = notebook["cells"][0]["metadata"]["cellgate"]
    assert first["inherited"] == {"session": "parent", "execution": "parent-1"}
    known = notebook["metadata"]["cellgate"]
    assert [each["session"] for each in known["ancestors"]] == ["parent", "child"]
    assert [each.get("seed") for each in known["ancestors"]] == [7, None]
    assert known["ancestors"][-1] == known["branched_from"]
    assert known["inherited"] is True
    assert "ancestor_left_out" not in known


async def test_a_session_that_is_no_branch_says_nothing_of_branches(exporter: Exporter) -> None:
    notebook = await exporter.notebook("parent")
    assert shown(notebook) == [("x = 1", None, 1), ("x = 2", None, 2)]
    assert {"branched_from", "ancestors", "inherited"}.isdisjoint(notebook["metadata"]["cellgate"])


async def test_without_what_it_inherited_a_notebook_has_the_same_cells_of_its_own(exporter: Exporter) -> None:
    whole = await exporter.notebook("grandchild")
    own = await exporter.notebook("grandchild", inherited=False)
    assert own["cells"] == whole["cells"][2:]
    assert own["metadata"]["cellgate"]["inherited"] is False
    named = [each["session"] for each in own["metadata"]["cellgate"]["ancestors"]]
    assert named == ["parent", "child"]


async def test_what_is_out_of_reach_is_left_out_and_the_notebook_says_so(exporter: Exporter) -> None:
    notebook = await exporter.notebook("grandchild", covers=lambda key: key != "parent")
    assert shown(notebook) == [("x", "child", 2), ("x + 1", None, 3)]
    assert notebook["metadata"]["cellgate"]["ancestor_left_out"] == "out_of_reach"
    assert check_bundle(await exporter.bundle("grandchild", lambda key: key != "parent")).valid


async def test_what_a_purged_parent_had_is_gone_from_its_branches_notebook(exporter: Exporter) -> None:
    before = await exporter.moment("child")
    purge = await exporter.journal.purge(1, by="ada", reason="requested")
    assert purge is not None
    await purge.erased
    notebook = await exporter.notebook("grandchild")
    assert shown(notebook) == [("x", "child", 2), ("x + 1", None, 3)]
    assert notebook["metadata"]["cellgate"]["ancestor_left_out"] == "purged"
    assert check_bundle(await exporter.bundle("grandchild")).valid
    assert (await exporter.moment("child")).tag != before.tag
    with pytest.raises(RecordGone):
        await collected(exporter.exports.notebook(before))


async def test_a_clients_cell_id_is_the_branchs_own_cells(path: Path, lane: Lane) -> None:
    """JupyterLab sends the same ids when one notebook is used with both kernels."""
    async with journal_at(path) as journal:
        parent = Recorded(journal, "parent")
        parent.cell("1", cell_id="same")
        child = Recorded(journal, "child", parent)
        child.cell("2", cell_id="same")
        exporter = Exporter(
            journal,
            Exports(journal, "0.1.0", None, Spills(path.parent, SpillLedger(path.parent, 0), lane)),
            path,
        )
        await journal.commit()
        ids = [cell["id"] for cell in (await exporter.notebook("child"))["cells"]]
    assert ids == ["parent-1", "same"]


async def test_a_bundle_has_the_rows_of_all_ancestors_up_to_the_branch(exporter: Exporter) -> None:
    bundle = await exporter.bundle("grandchild")
    found = check_bundle(bundle)
    assert (found.problem, found.checked) == (None, "bundle, 6 files, 17 rows")
    with zipfile.ZipFile(bundle) as archive:
        assert archive.read("ancestors/1.ndjson").count(b"\n") == 5
        assert b"x = 2" not in archive.read("ancestors/1.ndjson"), "that was after the branch"
        assert "a branch, up to there: parent, child" in archive.read("README.md").decode()


async def test_every_changed_byte_of_a_branchs_bundle_is_found(exporter: Exporter) -> None:
    path = await exporter.bundle("child")
    whole = path.read_bytes()
    for position in share(range(len(whole))):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        assert not check_bundle(path).valid, position


async def test_rows_of_another_ancestor_in_a_bundle_are_found(exporter: Exporter) -> None:
    """Everything is made anew, as somebody without a key can, but the branch's own rows name their origin."""
    child = await exporter.moment("child")
    other = Recorded(exporter.journal, "other")
    other.cell("forged")
    origin = other.branched("child")
    await exporter.journal.commit()
    forged = replace(child, lineage=Lineage((Ancestor(other.row, origin),)))
    path = exporter.folder / "forged.zip"
    path.write_bytes(await collected(exporter.exports.bundle(forged, None)))
    assert "row 1 says that it continues row 5 of parent" in str(check_bundle(path).problem)
    path.write_bytes(await collected(exporter.exports.bundle(replace(child, lineage=Lineage()), None)))
    assert "row 1 says that it continues row 5 of parent" in str(check_bundle(path).problem)


async def test_the_check_of_one_session_looks_at_its_origin_too(exporter: Exporter, path: Path) -> None:
    assert (await exporter.exports.verify(await exporter.moment("child"))).valid
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE events SET hash = x'00' WHERE session_id = 1 AND seq = 5")
    found = await exporter.exports.verify(await exporter.moment("child"))
    assert (found.valid, found.first_bad) == (False, 1)
