"""Cells that a rollback undid stay in the record: marked in notebooks, or left out, and never run again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import nbformat
import pytest

from cellgate.cli.run.notebook_files import CellKind, read_cells
from cellgate.record.export.notebook import Export
from cellgate.record.export.session_export import Exports, Moment
from cellgate.record.spill import Spills
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.verify.notebooks import check_bundle, check_notebook
from cellgate.replay.cells import recorded_cells
from cellgate_kernels.base.threads import Lane
from tests.pure.record.conftest import journal_at
from tests.pure.record.recorded import Recorded, text
from tests.pure.record.test_verify import OTHER_VALUE, changed, collected, problems


class Made:
    """A journal and what is exported of it."""

    def __init__(self, journal: Journal, exports: Exports) -> None:
        self.journal = journal
        self.exports = exports

    async def notebook(self, session: Recorded, **options: Any) -> dict[str, Any]:
        await self.journal.commit()
        data = await collected(
            self.exports.notebook(await self.exports.moment(await self.row(session)), **options)
        )
        assert check_notebook(data, "made.ipynb").problem is None
        made: dict[str, Any] = msgspec.json.decode(data)
        return made

    async def row(self, session: Recorded) -> Any:
        await self.journal.commit()
        row = await self.journal.reads.session(session.row.principal, session.row.key)
        assert row is not None
        return row

    async def bundle(self, session: Recorded) -> bytes:
        return await collected(self.exports.bundle(await self.exports.moment(await self.row(session)), None))


@pytest.fixture
async def made(path: Path, lane: Lane) -> AsyncGenerator[Made, None]:
    async with journal_at(path) as journal:
        yield Made(
            journal, Exports(journal, "0.1.0", None, Spills(path.parent, SpillLedger(path.parent, 0), lane))
        )


def told(notebook: dict[str, Any]) -> list[tuple[str, dict[str, Any] | None]]:
    return [
        ("".join(each["source"]), each["metadata"]["cellgate"].get("undone")) for each in notebook["cells"]
    ]


async def test_undone_cells_are_marked_or_left_out(made: Made, path: Path) -> None:
    session = Recorded(made.journal, "s")
    session.cell("x = 1")
    at = session.log.last_seq
    session.cell("x = 2")
    session.cell("x = 3")
    seq = session.rolled_back("good", at, 2)
    session.cell("x", text("1"))
    mark = {"checkpoint": "good", "seq": seq}
    whole = await made.notebook(session)
    assert told(whole) == [("x = 1", None), ("x = 2", mark), ("x = 3", mark), ("x", None)]
    assert [each["cell_type"] for each in whole["cells"]] == ["code", "raw", "raw", "code"]
    assert whole["metadata"]["cellgate"]["undone"] == "raw"
    nbformat.validate(nbformat.from_dict(whole))
    kept = await made.notebook(session, undone=False)
    assert told(kept) == [("x = 1", None), ("x", None)]
    assert kept["metadata"]["cellgate"]["undone"] is False
    assert [each.skip for each in recorded_cells(whole)] == [None, *["A rollback undid it."] * 2, None]
    session.end()
    await made.journal.commit()
    await made.journal.applied()
    assert problems(path) == []


class Older(Exports):
    """Exports as those of versions were that had undone cells as code cells, and did not name repeats."""

    def _told(self, moment: Moment, *, outputs: bool, cap: int | None, inherited: bool = True) -> Export:
        told = super()._told(moment, outputs=outputs, cap=cap, inherited=inherited)
        return replace(told, undone_as_code=True, repeats=False)


async def test_exports_that_have_undone_cells_as_code_are_still_read(
    made: Made, path: Path, lane: Lane, tmp_path: Path
) -> None:
    session = Recorded(made.journal, "s")
    session.cell("x = 1", cell_id="again")
    at = session.log.last_seq
    session.cell("x = 2", text("2"), cell_id="again")
    session.rolled_back("good", at)
    older = Made(
        made.journal,
        Older(made.journal, "0.1.0", None, Spills(path.parent, SpillLedger(path.parent, 0), lane)),
    )
    for each in (older, made):
        bundle = tmp_path / "made.zip"
        bundle.write_bytes(await each.bundle(session))
        assert check_bundle(bundle).problem is None
    notebook = await older.notebook(session)
    assert [each["cell_type"] for each in notebook["cells"]] == ["code", "code"]
    assert notebook["metadata"]["cellgate"]["undone"] is True
    assert [each.skip for each in recorded_cells(notebook)] == [None, "A rollback undid it."]
    file = tmp_path / "older.ipynb"
    file.write_text(json.dumps(notebook))
    assert [each.kind for each in read_cells(file).cells] == [CellKind.CODE, CellKind.RAW]


async def test_a_rollback_undoes_only_what_no_other_had_undone(made: Made) -> None:
    session = Recorded(made.journal, "s")
    beginning = session.log.last_seq
    session.cell("a")
    after_a = session.log.last_seq
    session.cell("b")
    first = session.rolled_back("after a", after_a)
    session.cell("c")
    second = session.rolled_back("beginning", beginning, 2)
    session.cell("d")
    undone = [mark and mark["seq"] for _, mark in told(await made.notebook(session))]
    assert undone == [second, first, second, None]


async def test_a_record_without_rollbacks_does_not_speak_of_them(made: Made) -> None:
    session = Recorded(made.journal, "s")
    session.cell("a")
    notebook = await made.notebook(session, undone=False)
    assert "undone" not in notebook["metadata"]["cellgate"]
    assert told(notebook) == [("a", None)]


async def test_files_go_back_with_the_session(made: Made) -> None:
    """A replay is given the files that the session had; what was put after the checkpoint is not there."""
    session = Recorded(made.journal, "s")
    for path in ("kept", "changed", "deleted"):
        session.log.append("file", None, {"path": path, "action": "written", "sha256": "aa", "size": 1})
    at = session.log.last_seq
    session.log.append("file", None, {"path": "changed", "action": "written", "sha256": "bb", "size": 2})
    session.log.append("file", None, {"path": "new", "action": "written", "sha256": "cc", "size": 3})
    session.log.append("file", None, {"path": "deleted", "action": "deleted"})
    session.rolled_back("good", at, 0)
    session.log.append("file", None, {"path": "later", "action": "written", "sha256": "dd", "size": 4})
    files = (await made.notebook(session))["metadata"]["cellgate"]["input_files"]
    assert [(each["path"], each["sha256"]) for each in files] == [
        ("changed", "aa"),
        ("deleted", "aa"),
        ("kept", "aa"),
        ("later", "dd"),
    ]


async def test_a_branch_inherits_what_was_undone_before_it_only(made: Made) -> None:
    parent = Recorded(made.journal, "parent")
    beginning = parent.log.last_seq
    parent.cell("a")
    first = parent.rolled_back("beginning", beginning)
    parent.cell("b")
    child = Recorded(made.journal, "child", parent)
    parent.rolled_back("beginning", beginning)
    child.cell("c")
    undone = [(source, mark and mark["seq"]) for source, mark in told(await made.notebook(child))]
    assert undone == [("a", first), ("b", None), ("c", None)]


async def test_the_bundle_shows_them_and_is_valid(made: Made, tmp_path: Path) -> None:
    session = Recorded(made.journal, "s")
    at = session.log.last_seq
    session.cell("a")
    session.rolled_back("good", at)
    bundle = tmp_path / "s.zip"
    bundle.write_bytes(await made.bundle(session))
    assert check_bundle(bundle).problem is None


async def test_a_changed_rollback_is_found(path: Path) -> None:
    async with journal_at(path) as journal:
        session = Recorded(journal, "s")
        at = session.log.last_seq
        session.cell("a")
        seq = session.rolled_back("good", at)
        session.end()
    assert problems(path) == []
    assert changed(path, OTHER_VALUE.format(table="events", column="body", value="'x'", where=f"seq = {seq}"))
