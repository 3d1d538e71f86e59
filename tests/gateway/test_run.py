"""The run of a suite tries failed tests again: which, how often, and what it says of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = '''
import os
from pathlib import Path

import pytest

def passes_at(number, name):
    """Fail until this is the try of that number; whatever runs beside it is seen in a file."""
    with Path("tries", name).open("a") as file:
        file.write(os.environ.get("PYTEST_XDIST_WORKER", "alone") + "\\n")
    tried = len(Path("tries", name).read_text().splitlines())
    assert tried >= number, f"{name} failed at {tried}"
'''


FROM_MAKE = {
    "MAKEFLAGS": r" -- ARGS=--fuzz-seconds\ 3 AT_ONCE=2",
    "ARGS": "--fuzz-seconds 3",
    "MAKELEVEL": "1",
}
"""What make sets for ``make test ARGS="--fuzz-seconds 3" AT_ONCE=2``."""


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    text: str
    folder: Path

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def closing(self) -> str:
        """The last line, without the time that it took."""
        return re.sub(r" in \d+:\d\d$", "", self.lines[-1])

    def tries(self, name: str) -> list[str]:
        """By which process each try of a test was made."""
        return (self.folder / "tries" / name).read_text().splitlines()

    @property
    def failures(self) -> str:
        return (self.folder / "reports" / "failures.txt").read_text()


Suite = Callable[..., Ran]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """Runs suites that are given as texts of test functions, a part each."""
    (tmp_path / "tries").mkdir()
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:schemathesis -p no:anyio -p no:asyncio -p no:cacheprovider\n"
    )

    def run(*parts: str, processes: int = 0, arguments: tuple[str, ...] = ()) -> Ran:
        for number, text in enumerate(parts):
            (tmp_path / f"test_{number}.py").write_text(TESTS + text)
        given = [f"-n {processes} test_{number}.py" for number in range(len(parts))]
        command = [sys.executable, "-m", "tests.run", "--reports", "reports", *given, "--", *arguments]
        env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **FROM_MAKE}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        return Ran(done.returncode, done.stdout + done.stderr, tmp_path)

    return run


def function(name: str, number: int) -> str:
    """A test that passes at the try of this number."""
    return f"\ndef test_{name}(): passes_at({number}, {name!r})\n"


def test_failed_tests_run_again_alone_and_are_listed(suite: Suite) -> None:
    text = function("at_once", 1) + function("second", 2) + function("third", 3)
    ran = suite(text + "\ndef test_skipped(): pytest.skip('not here')\n", processes=2)
    assert ran.code == 0, ran.text
    assert ran.closing == "== 1 passed, 2 passed on another try, 1 skipped"
    assert {line for line in ran.lines if line.startswith("RERUN ")} == {
        "RERUN test_0.py::test_second",
        "RERUN test_0.py::test_third",
    }
    assert len(ran.tries("at_once")) == 1
    assert ran.tries("second")[1:] == ["alone"]
    assert ran.tries("third")[1:] == ["alone", "alone"]
    assert ran.tries("third")[0] != "alone"
    assert str(ran.folder / "reports" / "failures.txt") in ran.text
    told = set(re.findall(r"AssertionError: (\w+ failed at \d)", ran.failures))
    assert told == {"second failed at 1", "third failed at 1", "third failed at 2"}


def test_one_that_fails_three_times_fails_the_run(suite: Suite) -> None:
    ran = suite(function("broken", 4) + function("second", 2), function("of_a_later_part", 1))
    assert ran.code == 1
    assert ran.closing == "== 1 failed, 0 passed, 1 passed on another try"
    assert "FAILED test_0.py::test_broken" in ran.lines[-10:]
    assert "RERUN test_0.py::test_second" in ran.lines[-10:]
    assert len(ran.tries("broken")) == 3
    assert len(ran.tries("second")) == 2
    assert not (ran.folder / "tries" / "of_a_later_part").exists()


@pytest.mark.nightly
def test_more_than_ten_in_all_parts_fail_the_run(suite: Suite) -> None:
    six = [function(f"a{number}", 2) for number in range(6)]
    five = [function(f"b{number}", 2) for number in range(5)]
    ran = suite("".join(six), "".join(five))
    assert ran.code == 1
    assert ran.closing == "== 5 failed, 0 passed, 6 passed on another try"
    assert len(ran.tries("a0")) == 2
    assert len(ran.tries("b0")) == 1


@pytest.mark.nightly
def test_a_failing_end_of_a_test_counts_and_is_tried_again(suite: Suite) -> None:
    fixture = "@pytest.fixture\ndef ends(): yield; passes_at(2, 'end')\n"
    ran = suite(fixture + "def test_it(ends): pass\n")
    assert ran.code == 0, ran.text
    assert ran.closing == "== 0 passed, 1 passed on another try"
    assert "teardown: " in ran.failures


@pytest.mark.nightly
def test_one_that_is_skipped_at_another_try_has_not_passed(suite: Suite) -> None:
    text = "def test_it():\n    if Path('tries', 'it').exists(): pytest.skip('now')\n    passes_at(2, 'it')\n"
    ran = suite(text)
    assert ran.code == 1
    assert ran.closing == "== 1 failed, 0 passed"


@pytest.mark.nightly
def test_arguments_hold_at_each_try(suite: Suite) -> None:
    text = function("one", 2) + function("two", 2) + function("three", 2)
    ran = suite(text, arguments=("-k", "one or two", "-p", "no:randomly"))
    assert ran.code == 0, ran.text
    assert ran.closing == "== 0 passed, 2 passed on another try"
    assert not (ran.folder / "tries" / "three").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [0, 2])
def test_one_that_stops_at_the_first_failure_tries_nothing_again(suite: Suite, processes: int) -> None:
    text = function("one", 2) + "".join(function(f"later_{number}", 1) for number in range(20))
    ran = suite(text, processes=processes, arguments=("-x", "-p", "no:randomly"))
    assert ran.code != 0
    assert ran.closing.startswith("== 1 failed, ")
    assert len(ran.tries("one")) == 1


@pytest.mark.nightly
def test_files_that_cannot_be_read_are_not_tried_again(suite: Suite) -> None:
    ran = suite("\nimport no_such_module\n")
    assert ran.code == 2
    assert "FAILED test_0.py" in ran.lines
    assert ran.closing == "== 1 failed, 0 passed"
    assert "no_such_module" in ran.failures


@pytest.mark.nightly
def test_other_ends_of_pytest_are_the_run_s(suite: Suite) -> None:
    ran = suite(function("one", 1), arguments=("--no-such-option",))
    assert ran.code == 4
    assert "== no test failed, and pytest ended with 4: see above" in ran.lines


@pytest.mark.nightly
def test_a_part_without_tests_is_none_s_fault_and_a_run_without_is(suite: Suite) -> None:
    parts = function("one", 1), function("two", 1)
    assert suite(*parts, arguments=("-k", "one")).code == 0
    assert suite(*parts, arguments=("-k", "nothing")).code == 5


@pytest.mark.nightly
def test_it_makes_its_folder_anew_and_leaves_reports_for_programs(suite: Suite, tmp_path: Path) -> None:
    """A make that a test calls gets nothing of this run."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "old.txt").touch()
    ran = suite("\ndef test_it(): assert not {'ARGS', 'MAKEFLAGS', 'MAKELEVEL'} & set(os.environ)\n")
    assert ran.code == 0, ran.text
    assert (tmp_path / "reports" / "part-1.xml").read_text().count("<testcase") == 1
    assert not (tmp_path / "reports" / "old.txt").exists()


IMPORTED = """
import os
import sys
from pathlib import Path

import pytest

with Path(__file__).with_name("imports").open("a") as file:
    file.write(f"{os.getpid()}\\n")
IMPORTER = os.getpid()
STDERR = sys.stderr

@pytest.mark.parametrize("number", range(4))
def test_passes(number):
    assert os.getpid() != IMPORTER
    assert os.environ["PYTEST_XDIST_WORKER"].startswith("gw")
    assert not STDERR.closed

def test_shows_both_sides():
    assert {"left": 1} == {"right": 2}
"""


def imported_once(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run these tests with our importer."""
    (folder / "test_imported.py").write_text(text)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "tests.support.outcomes", "-n3"]
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", folder, *options]
    return subprocess.run(
        [*command, folder], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.nightly
def test_modules_of_tests_are_imported_once_for_all_processes(tmp_path: Path) -> None:
    """A failure shows both sides, as any does."""
    done = imported_once(tmp_path, IMPORTED)
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert "Left contains 1 more item" in done.stdout
    assert len((tmp_path / "imports").read_text().splitlines()) == 1


def test_a_module_that_can_not_be_imported_is_an_error_of_the_run(tmp_path: Path) -> None:
    done = imported_once(tmp_path, f"{IMPORTED}\nimport no_such_module\n")
    assert done.returncode != 0
    assert "no_such_module" in done.stdout
    assert "passed" not in done.stdout
