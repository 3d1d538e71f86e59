"""Tables as data are what they were: what the kernel writes, as JSON, and what the client makes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import hypothesis
import msgspec
import pytest

from cellgate.client import Result
from cellgate.client.values import TABLE
from tests.support.examples import FEWEST, SHARE

TRIPS = Path(__file__).parents[2] / "support" / "table_trips.py"


def run_check(kernel_prefix: Path, name: str, examples: int = 0) -> None:
    """Run a check of ``table_trips`` with the kernel environment's Python, which has pandas."""
    folder = str(Path(hypothesis.__file__).parents[1])
    done = subprocess.run(
        [
            kernel_prefix / "environment" / "bin" / "python",
            TRIPS,
            name,
            str(max(FEWEST, round(examples * SHARE))),
        ],
        check=False,
        env={"HYPOTHESIS": folder, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout == "as it was\n", done.stderr[-6000:]


def test_every_table_comes_back_as_it_was(kernel_prefix: Path) -> None:
    run_check(kernel_prefix, "trips", 300)


def test_every_kind_of_column_comes_back_as_it_was(kernel_prefix: Path) -> None:
    run_check(kernel_prefix, "columns", 40)


@pytest.mark.parametrize("name", ["simple", "forms", "refused", "shell"])
def test_what_a_cell_shows_has_the_form_that_is_documented(kernel_prefix: Path, name: str) -> None:
    run_check(kernel_prefix, name)


def test_a_result_says_why_a_table_is_not_there() -> None:
    outputs = [
        {"output_type": "display_data", "data": {TABLE: {"schema": {}}}, "metadata": {}},
        {"output_type": "display_data", "data": {}, "metadata": {TABLE: {"problem": "it is a secret"}}},
        {"output_type": "display_data", "data": {}, "metadata": {TABLE: "odd"}},
        {"output_type": "stream", "name": "stdout", "text": "x"},
    ]
    result = msgspec.convert({"session": "s", "execution": "e", "status": "ok", "outputs": outputs}, Result)
    assert (len(result.tables), result.table_problems) == (1, ["it is a secret"])
