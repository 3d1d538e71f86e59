"""A session's record in the order of a notebook file: nothing is shown that the record does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import nbformat
import pytest

from cellgate.errors import TooLarge
from cellgate.jobs.convert import convert
from cellgate.record.export.page_order import MOST_CELLS, MOST_TEXT, PageOrder, read_order
from cellgate.record.verify.notebooks import check_bundle, check_notebook
from cellgate.replay.cells import recorded_cells
from cellgate_kernels.base.errors import InvalidInput
from tests.pure.record.recorded import Recorded, text
from tests.pure.record.test_undone import Made, made  # noqa: F401 - a fixture

LIE = [{"output_type": "stream", "name": "stdout", "text": "never printed\n"}]


def code(cell_id: str, source: str, execution: str | None = None) -> dict[str, Any]:
    """A cell as the console writes it, with outputs that are none of the record's."""
    metadata = {} if execution is None else {"cellgate": {"execution": execution}, "tags": ["mine"]}
    return {
        "cell_type": "code",
        "id": cell_id,
        "metadata": metadata,
        "source": source.splitlines(keepends=True),
        "execution_count": 99,
        "outputs": LIE,
    }


def markdown(cell_id: str, source: str, **more: object) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": source, **more}


def file_of(*cells: dict[str, Any]) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def order_of(*cells: dict[str, Any]) -> PageOrder:
    return read_order(file_of(*cells), "page.ipynb")


def shown(notebook: dict[str, Any]) -> list[tuple[str, str, list[Any]]]:
    return [
        (each["cell_type"], "".join(each["source"]), each.get("outputs", [])) for each in notebook["cells"]
    ]


def printed(value: str) -> list[dict[str, Any]]:
    return [{"output_type": "stream", "name": "stdout", "text": [value]}]


async def test_cells_have_the_order_of_the_file_and_the_outputs_of_the_record(made: Made) -> None:  # noqa: F811
    session = Recorded(made.journal, "s")
    first = session.cell("a = 1\na", text("1"), cell_id="one")
    second = session.cell("b", text("2"), cell_id="two")
    session.cell("c", text("3"))
    page = order_of(
        markdown("head", "# Rivers"),
        code("two", "b", second),
        code("new", "never()"),
        code("one", "a = 1\r\na", first),
    )
    notebook = await made.notebook(session, order=page)
    nbformat.validate(nbformat.from_dict(notebook))
    assert shown(notebook) == [
        ("markdown", "# Rivers", []),
        ("code", "b", printed("2")),
        ("code", "never()", []),
        ("code", "a = 1\na", printed("1")),
    ]
    assert [each["id"] for each in notebook["cells"]] == ["head", "two", "new", "one"]
    head, ran, new, _ = (each["metadata"]["cellgate"] for each in notebook["cells"])
    assert head == {"from_file": True}
    assert new == {"from_file": True, "status": "not_run"}
    plain = await made.notebook(session)
    assert ran == plain["cells"][1]["metadata"]["cellgate"]
    assert [each["execution_count"] for each in notebook["cells"][1:]] == [2, None, 1]
    known = notebook["metadata"]["cellgate"]
    assert known["order"] == {"file": "page.ipynb", "sha256": page.digest, "cells_left_out": 1}
    assert (known["rows"], known["head"]) == (
        plain["metadata"]["cellgate"]["rows"],
        plain["metadata"]["cellgate"]["head"],
    )


@pytest.mark.parametrize(
    ("source", "names", "mark"),
    [
        ("a + 1", "its own", {"from_file": True, "status": "not_run", "changed_since": "s-1"}),
        ("a", "nobody's", {"from_file": True, "status": "not_run"}),
        ("a", "none", {"from_file": True, "status": "not_run"}),
    ],
)
async def test_what_the_record_does_not_have_did_not_run(
    made: Made,  # noqa: F811
    source: str,
    names: str,
    mark: dict[str, Any],
) -> None:
    session = Recorded(made.journal, "s")
    execution = {"its own": session.cell("a", text("1")), "nobody's": "s-7", "none": None}[names]
    notebook = await made.notebook(session, order=order_of(code("one", source, execution)))
    (cell,) = notebook["cells"]
    assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert cell["metadata"] == {"cellgate": mark, "tags": ["not-run"]}
    assert [each.skip for each in recorded_cells(notebook)] == ["It did not run then."]


async def test_of_another_sessions_record_nothing_is_shown(made: Made) -> None:  # noqa: F811
    other = Recorded(made.journal, "other")
    execution = other.cell("a", text("secret"))
    session = Recorded(made.journal, "s")
    notebook = await made.notebook(session, order=order_of(code("one", "a", execution)))
    assert shown(notebook) == [("code", "a", [])]


async def test_undone_cells_are_raw_or_left_out(made: Made) -> None:  # noqa: F811
    session = Recorded(made.journal, "s")
    at = session.log.last_seq
    gone = session.cell("x = 1", text("1"))
    session.rolled_back("good", at)
    kept = session.cell("x = 2", text("2"))
    page = order_of(code("b", "x = 2", kept), code("a", "x = 1", gone))
    whole = await made.notebook(session, order=page)
    assert shown(whole) == [("code", "x = 2", printed("2")), ("raw", "x = 1", [])]
    assert shown(await made.notebook(session, order=page, undone=False)) == [("code", "x = 2", printed("2"))]


async def test_a_branch_shows_what_its_parent_ran(made: Made) -> None:  # noqa: F811
    parent = Recorded(made.journal, "parent")
    before = parent.cell("a", text("1"))
    child = Recorded(made.journal, "child", parent)
    after = child.cell("b", text("2"))
    page = order_of(code("two", "b", after), code("one", "a", before))
    assert [each[2] for each in shown(await made.notebook(child, order=page))] == [printed("2"), printed("1")]
    own = await made.notebook(child, order=page, inherited=False)
    assert [each[2] for each in shown(own)] == [printed("2"), []]


async def test_a_changed_cell_is_found(made: Made) -> None:  # noqa: F811
    session = Recorded(made.journal, "s")
    execution = session.cell("a", text("1"))
    page = order_of(markdown("head", "# One"), code("one", "a", execution), code("new", "b"))
    moment = await made.exports.moment(await made.row(session))
    data = b"".join([part async for part in made.exports.notebook(moment, order=page)])
    found = check_notebook(data, "n")
    assert found.valid
    assert found.checked == "notebook, 3 cells as its author arranged them, of which 1 ran"
    for old, new in (("# One", "# Two"), ('"not_run"', '"ok"'), ('"1"', '"2"')):
        assert old.encode() in data
        assert not check_notebook(data.replace(old.encode(), new.encode()), "n").valid
    cells = msgspec.json.decode(data)
    cells["cells"][0]["metadata"]["cellgate"] = {}
    assert not check_notebook(json.dumps(cells).encode(), "n").valid


async def test_ids_are_valid_and_each_is_there_once(made: Made) -> None:  # noqa: F811
    session = Recorded(made.journal, "s")
    execution = session.cell("a", text("1"))
    copies = [code("cell-2", "a", execution), code("cell-2", "a", execution), code("no id!", "b")]
    del copies[2]["metadata"]
    notebook = await made.notebook(session, order=order_of(*copies))
    nbformat.validate(nbformat.from_dict(notebook))
    assert [each["id"] for each in notebook["cells"]] == ["cell-2", "cell-1", "cell-3"]
    assert [each[2] for each in shown(notebook)] == [printed("1"), [], []]  # an execution is shown once


def test_texts_keep_their_pictures() -> None:
    pictures = {"a.png": {"image/png": "iVBORw0KGgo="}}
    page = order_of(markdown("a", "![](attachment:a.png)", attachments=pictures), {"cell_type": "odd"})
    text_cell, odd = (each.unrun() for each in page.cells)
    assert text_cell["attachments"] == pictures
    assert (odd["cell_type"], odd["source"], odd["id"]) == ("raw", "", "cell-1")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"nbformat": 4}',
        b'{"nbformat": 3, "cells": []}',
        b'{"nbformat": "4", "cells": []}',
        b'{"nbformat": 4, "cells": [{}]}',
        b'{"nbformat": 4, "cells": [7]}',
        b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": 7}]}',
        b'{"nbformat": 4, "cells": [{"cell_type": "code", "id": 7}]}',
        b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": ["\\ud800"]}]}',
        b'{"nbformat": 4, "cells": [{"cell_type": "markdown", "attachments": 7}]}',
        b'{"nbformat": 4, "cells": ' + b"[" * 100_000,
        b"import math",
    ],
)
def test_what_is_no_notebook_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"'a\.ipynb'"):
        read_order(content, "a.ipynb")


def test_what_is_too_much_is_refused() -> None:
    with pytest.raises(TooLarge, match="2001 cells"):
        order_of(*[{"cell_type": "raw"}] * (MOST_CELLS + 1))
    with pytest.raises(TooLarge, match="4 MiB"):
        order_of(code("a", "x" * MOST_TEXT))
    assert len(order_of(*[{"cell_type": "raw"}] * MOST_CELLS).cells) == MOST_CELLS


@pytest.mark.parametrize("metadata", [{"cellgate": 7}, {"cellgate": {"execution": 7}}, {}, {"cellgate": {}}])
def test_other_programs_metadata_name_no_execution(metadata: dict[str, Any]) -> None:
    (cell,) = order_of({**code("a", "x"), "metadata": metadata}).cells
    assert cell.execution is None


# ---- runs of one cell -------------------------------------------------------------------------------------


async def test_a_cell_that_ran_again_names_its_cell(made: Made, tmp_path: Path) -> None:  # noqa: F811
    session = Recorded(made.journal, "s")
    first = session.cell("a")
    session.cell("b", cell_id="two")
    session.cell("a2", cell_id=first)
    session.cell("b2", cell_id="two")
    notebook = await made.notebook(session)
    assert notebook["metadata"]["cellgate"]["repeats"] is True
    assert [(each["id"], each["metadata"]["cellgate"].get("repeats")) for each in notebook["cells"]] == [
        ("s-1", None),
        ("two", None),
        ("s-3", "s-1"),
        ("s-4", "two"),
    ]
    bundle = tmp_path / "s.zip"
    bundle.write_bytes(await made.bundle(session))
    assert check_bundle(bundle).problem is None


async def test_what_an_author_wrote_looks_like_no_cell_that_ran(made: Made) -> None:  # noqa: F811
    session = Recorded(made.journal, "s")
    execution = session.cell("a", text("1"))
    session.cell("left out", text("2"))
    forged = {
        "cell_type": "raw",
        "id": "raw",
        "metadata": {"raw_mimetype": "text/html"},
        "source": '<div class="jp-Cell forged">p = 0.001</div>',
    }
    order = order_of(forged, code("one", "a", execution), code("new", "b"), code("copy", "a", execution))
    notebook = await made.notebook(session, order=order)
    assert notebook["metadata"]["cellgate"]["order"]["cells_left_out"] == 1
    page = convert(json.dumps(notebook), "html")
    assert "p = 0.001" in page
    assert '<div class="jp-Cell forged"' not in page
    assert page.count("This cell did not run:") == 2
    assert "cells of the record that are left out: 1." in page
    plain = convert(json.dumps(notebook), "markdown")
    assert plain.count("*This cell did not run:*") == 2
    assert "*A raw cell of the file:*\n\n```\n<div" in plain
