"""What is left out of quick runs, or left to the night: tests that are named must be there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cellgate_kernels.testing import backend
from tests import long
from tests.containers.conftest import AT_EACH_CHANGE, ONE_CASE

TESTS = Path(__file__).parents[1]
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def names() -> Iterator[str]:
    """The modules of tests in containers, and the names of all tests, those of the contract included."""
    yield from _TEST.findall(Path(backend.__file__).read_text())
    for module in TESTS.rglob("test_*.py"):
        if module.parent.name == "containers":
            yield module.stem
        yield from _TEST.findall(module.read_text())


def test_each_name_of_what_runs_at_each_change_fits_a_test() -> None:
    assert (AT_EACH_CHANGE | set(ONE_CASE)) - set(names()) == set()


def test_each_test_that_takes_long_is_there() -> None:
    assert long.listed()
    for test in long.listed():
        path, *inside = test.split("::")
        assert re.search(rf"\b{inside[0]}\b", (TESTS.parent / path).read_text()), test


def test_the_list_is_made_of_reports(tmp_path: Path) -> None:
    """The cases of a test count together; classes and folders are part of its name."""
    tests = tmp_path / "tests"
    for module in ("pure/test_a.py", "gateway/http/test_b.py"):
        path = tests / module
        path.parent.mkdir(parents=True)
        path.touch()
    report = tmp_path / "part-1.xml"
    cases = [
        ("tests.pure.test_a", "test_cases[1]", 0.03),
        ("tests.pure.test_a", "test_cases[2]", 0.03),
        ("tests.pure.test_a", "test_short", 0.04),
        ("tests.pure.test_a.TestAll", "runTest", 2),
        ("tests.gateway.http.test_b", "test_short", 0.9),
        ("tests.gateway.http.test_b", "test_long", 1.1),
    ]
    told = "".join(
        f'<testcase classname="{place}" name="{name}" time="{time}"/>' for place, name, time in cases
    )
    report.write_text(f"<testsuite>{told}</testsuite>")
    assert long.long(long.seconds([report], tmp_path)) == [
        "tests/gateway/http/test_b.py::test_long",
        "tests/pure/test_a.py::TestAll::runTest",
        "tests/pure/test_a.py::test_cases",
    ]
