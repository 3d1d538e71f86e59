"""What is left to the night: the names of what is not must fit tests that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.containers.conftest import AT_EACH_CHANGE

TESTS = Path(__file__).parents[1]
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def names() -> Iterator[str]:
    """The modules of tests in containers, and the names of all tests."""
    for module in TESTS.rglob("test_*.py"):
        if module.parent.name == "containers":
            yield module.stem
        yield from _TEST.findall(module.read_text())


def test_each_name_of_what_runs_at_each_change_fits_a_test() -> None:
    assert AT_EACH_CHANGE - set(names()) == set()
