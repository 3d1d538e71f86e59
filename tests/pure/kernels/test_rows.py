"""What a kernel says of a table's rows, as values: a page that fits what was asked for, or nothing."""

from __future__ import annotations

import importlib.util
import re
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cellgate_kernels.kernel.rows import (
    MOST_COLUMNS,
    MOST_ROWS,
    MOST_TEXT,
    ROWS,
    CutCell,
    KernelColumn,
    KernelRows,
    Kind,
    Refusal,
    RowsRefused,
    RowsWanted,
    rows_of,
)

INSIDE = Path(__file__).parents[3] / "kernels" / "cellgate_kernels" / "inside"
WANTED = RowsWanted("table", limit=2)
COLUMN = {"name": "a", "type": "int64", "kind": "number", "index": False}
PAGE: dict[str, Any] = {
    "type": "DataFrame",
    "columns": [COLUMN],
    "rows": [[1], [None]],
    "offset": 3,
    "total": 5,
    "all_rows": 9,
    "first_column": 0,
    "all_columns": 1,
}


def test_a_page_is_a_value() -> None:
    assert rows_of({"status": "ok", **PAGE}, WANTED) == KernelRows(
        type="DataFrame",
        columns=[KernelColumn("a", "int64", Kind.NUMBER, index=False)],
        rows=[[1], [None]],
        offset=3,
        total=5,
        all_rows=9,
        first_column=0,
        all_columns=1,
    )


@pytest.mark.parametrize("cell", [True, -(2**53), 2**53, 0.5, "", "x" * MOST_TEXT, None])
def test_a_cell_keeps_its_type(cell: object) -> None:
    told = rows_of({**PAGE, "rows": [[cell]]}, WANTED)
    assert isinstance(told, KernelRows)
    assert [(type(each), each) for each in told.rows[0]] == [(type(cell), cell)]


def test_a_long_text_is_its_beginning_and_its_length() -> None:
    told = rows_of({**PAGE, "rows": [[{"text": "x…", "length": 500}]]}, WANTED)
    assert isinstance(told, KernelRows)
    assert told.rows == [[CutCell("x…", 500)]]


def test_names_can_be_shown() -> None:
    told = rows_of({**PAGE, "type": "a\n", "columns": [COLUMN | {"name": "\u202ea", "type": "\t"}]}, WANTED)
    assert isinstance(told, KernelRows)
    assert (told.type, told.columns[0].name, told.columns[0].type) == ("a?", "?a", "?")


@pytest.mark.parametrize("refusal", Refusal)
def test_a_refusal_has_one_of_the_known_reasons(refusal: Refusal) -> None:
    assert rows_of({"status": "ok", "refused": refusal.value}, WANTED) == RowsRefused(refused=refusal)


@pytest.mark.parametrize(
    "said",
    [
        {"refused": "because"},
        {"refused": None},
        {"rows": 5},
        {"rows": [[1, 2]]},
        {"rows": [[]]},
        {"rows": [[1]] * 3},
        {"rows": [["x" * (MOST_TEXT + 1)]]},
        {"rows": [[2**53 + 1]]},
        {"rows": [[[1]]]},
        {"rows": [[{"text": "a"}]]},
        {"rows": [[{"text": "x" * (MOST_TEXT + 1), "length": 1}]]},
        {"rows": [[{"text": "a", "length": -1}]]},
        {"offset": 4},
        {"offset": -1},
        {"total": 4},
        {"total": 10},
        {"all_rows": 2**60},
        {"first_column": 2},
        {"type": None},
        {"type": "x" * (MOST_TEXT + 1)},
        {"columns": []},
        {"columns": [COLUMN | {"kind": "colour"}]},
        {"columns": [COLUMN | {"name": 1}]},
        {"columns": [COLUMN] * (MOST_COLUMNS + 1), "rows": [[1] * (MOST_COLUMNS + 1)]},
    ],
)
def test_an_answer_without_sense_is_none(said: dict[str, Any]) -> None:
    assert rows_of({**PAGE, **said}, WANTED) is None


@pytest.mark.parametrize("name", PAGE)
def test_an_answer_that_lacks_something_is_none(name: str) -> None:
    assert rows_of({key: value for key, value in PAGE.items() if key != name}, WANTED) is None


@pytest.fixture(scope="module")
def inside() -> ModuleType:
    """What runs in the kernel; it needs no library of its own."""
    spec = importlib.util.spec_from_file_location("rows_inside", INSIDE / "rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("files", "fits"),
    [
        ({"memory.max": "1000000000\n", "memory.current": "900000000\n"}, True),
        ({"memory.max": "1000000000\n", "memory.current": "900000001\n"}, False),
        ({"memory.max": "max\n", "memory.current": "900000000\n"}, True),
        (
            {"memory/memory.limit_in_bytes": "1000000000\n", "memory/memory.usage_in_bytes": "950000000\n"},
            False,
        ),
        ({}, True),
    ],
)
def test_what_memory_is_too_small_for_is_not_sorted(
    inside: ModuleType, tmp_path: Path, files: dict[str, str], fits: bool
) -> None:
    """The kernel would be killed for it, and all variables lost."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with nullcontext() if fits else pytest.raises(inside.Refused):
        inside.check_room(100_000_000, tmp_path)
    inside.check_room(inside.SMALL - 1, tmp_path)


def test_a_page_ends_before_it_is_large(inside: ModuleType) -> None:
    row = ["x" * 100_000]
    assert len(inside.fitting([row] * 20)) == inside.MOST_BYTES // 100_000 - 1
    assert len(inside.fitting([["x" * 2_000_000], row])) == 1
    assert inside.fitting([]) == []


def test_the_kernel_and_the_gateway_name_the_same(inside: ModuleType) -> None:
    said = re.findall(r'(?:Refused\(|"refused": )"(\w+)"', (INSIDE / "rows.py").read_text())
    assert inside.REQUEST == ROWS
    assert set(said) == {each.value for each in Refusal}
    assert inside.MOST_ROWS == MOST_ROWS
