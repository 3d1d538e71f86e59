"""Writes the list of tests that a quick run leaves out, from the JUnit files of a whole run.

    python -m tests.long .venv/test-reports/test-all/part-*.xml

``make test`` and ``make test-fast`` are quick runs: a test is in the list if its cases together take longer
than `LONGEST` says, on two processors. ``make test-all`` and ``.ci/run`` run these, too. The list is a file,
and no mark in the tests, because it follows from measurements alone. ``tests/conftest.py`` reads it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).with_name("long.txt")
LONGEST = {"tests/pure/": 0.05, "tests/core/": 0.05, "tests/": 1.0}
"""Seconds, by the beginning of a test's path; the first that fits counts."""
HEAD = "# Tests that quick runs leave out. Written by tests/long.py, which says why.\n"


def listed() -> frozenset[str]:
    """The tests that take long: node ids without parameters."""
    return frozenset(line for line in LIST.read_text().splitlines() if not line.startswith("#"))


def function_of(node_id: str) -> str:
    """The test of a case: its node id without parameters."""
    return node_id.partition("[")[0]


def seconds(reports: Iterable[Path], root: Path) -> Counter[str]:
    """What all cases of each test took together. `root`: the folder above ``tests``."""
    taken: Counter[str] = Counter()
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            taken[_test(case.get("classname", ""), case.get("name", ""), root)] += float(case.get("time", 0))
    return taken


def _test(place: str, name: str, root: Path) -> str:
    """The node id of a test, by the dotted name of its module, or of a class in it."""
    words, inside = place.split("."), list[str]()
    while words and not (root / _file(words)).is_file():
        inside.insert(0, words.pop())
    return "::".join([_file(words).as_posix(), *inside, function_of(name)])


def _file(words: list[str]) -> Path:
    return Path(*words).with_suffix(".py")


def long(taken: Counter[str]) -> list[str]:
    """Those of these tests that take longer than they may in a quick run, sorted."""
    return sorted(
        test
        for test, found in taken.items()
        if found > next(most for folder, most in LONGEST.items() if test.startswith(folder))
    )


def main(reports: list[str]) -> None:
    """Write the list."""
    found = long(seconds(map(Path, reports), Path(__file__).parents[1]))
    LIST.write_text(HEAD + "".join(f"{test}\n" for test in found))
    sys.stdout.write(f"{len(found)} tests take long\n")


if __name__ == "__main__":
    main(sys.argv[1:])
