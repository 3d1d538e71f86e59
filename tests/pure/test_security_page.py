"""What the page on security names, against the code: what all users share, and threats with their tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from cellgate.cli.serve.serve import ServeApp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/security.md").read_text()
SECTION = PAGE.partition("### What all share\n")[2].partition("\n### ")[0]
WORD = re.compile(r"`([^`]+)`")
OPTIONS = ServeApp.class_traits(config=True)
A_MOST = re.compile(
    r"\b[Tt]he most\b|\bHow much may\b|\b[Ss]ize of\b|\btogether\b|\bat once\b"
    r"|^(Memory|Processors|Processes and threads|Disk space) of|\boutput kept\b|\bkept of one\b"
)
"""In the help of an option: it limits how much there may be of something."""
HOW = {
    "three quarters": r"\bpart_of_one\(|\bShares\(|\bTurns\(|\bmost_of_one\b",
    "turns": r"\bTurns\b|\bTurnOrder\b|\bLane\b|\.due\b",
    "who has most gives way": r"heaviest|max\(self\._shares",
    "who holds most gives way": r"heaviest|max\(self\._sums",
}
"""What is said of a part, and what must then be in one of the files."""
SHARED = re.compile(
    r"\b(?:Turns|Shares|ByteBudget|ReceiveBudget|Semaphore)\(|^MOST_(?:AT_ONCE|WAITING|ASKING)\b.*="
)
ALONE = {
    # Compiles one package at a time, within the turns of installs.
    "gateway/cellgate/packages/installer.py",
    # At the start, before anybody is served.
    "gateway/cellgate/sessions/adoption.py",
    # Records that one job looks at, and tables that one kernel is asked for.
    "gateway/cellgate/sessions/retention.py",
    "kernels/cellgate_kernels/limits/read_back.py",
    # Names that one session looks up, within the turns of all.
    "gateway/cellgate/egress/resolver.py",
}


@dataclass(frozen=True)
class Row:
    """A row of the table: the names in it, and the text of the files that it refers to."""

    what: str
    limits: tuple[str, ...]
    part: str
    files: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((ROOT / name).read_text() for name in self.files)


def rows() -> list[Row]:
    lines = [line for line in SECTION.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        Row(what, tuple(WORD.findall(limit)), part, tuple(WORD.findall(where)))
        for what, limit, part, where in cells
    ]


ROWS = rows()


def test_there_is_a_table() -> None:
    assert len(ROWS) > 15
    assert len({row.what for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row.what[:30] for row in ROWS])
def test_each_shared_number_has_a_limit_and_a_part_of_one_user(row: Row) -> None:
    assert row.files
    assert row.limits
    for name in row.limits:
        assert name in OPTIONS or re.search(rf"\b{name}\b", row.text), name
    constants = [word for word in WORD.findall(row.part) if word.isupper()]
    assert all(re.search(rf"\b{name}\b", row.text) for name in constants), constants
    said = [how for how in HOW if how in row.part]
    quotas = re.findall(r"quota `(\w+)`", row.part)
    assert said or constants or quotas or row.part.startswith("none is needed"), row.part
    for how in said:
        assert re.search(HOW[how], row.text), how


def test_every_option_that_limits_something_is_said_to_be_shared_or_not() -> None:
    limiting = {
        name
        for name, option in OPTIONS.items()
        if name.startswith("max_") or (option.help and A_MOST.search(option.help))
    }
    assert {"max_connections", "client_memory", "upload_space", "pids", "package_cache"} <= limiting
    told = set(WORD.findall(SECTION))
    assert sorted(limiting - told) == []


def test_everything_in_the_code_that_shares_is_in_the_table() -> None:
    told = {name for row in ROWS for name in row.files}
    told |= {word for word in WORD.findall(SECTION.rpartition("\n| ")[2]) if word.endswith(".py")}
    for folder in ("gateway/cellgate", "kernels/cellgate_kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            uses = [line for line in path.read_text().splitlines() if SHARED.search(line)]
            uses = [line for line in uses if not line.strip().startswith(("class ", "#"))]
            if uses:
                assert name in told | ALONE | DEFINING, (name, uses)


DEFINING = {
    "kernels/cellgate_kernels/pool/pool.py",
    "kernels/cellgate_kernels/channels/sockets.py",
    "kernels/cellgate_kernels/channels/zmtp.py",
}
"""What has one of its own where it is given none, in tests."""


THREATS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## Threats\n")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| T")
]


def test_threats_are_numbered() -> None:
    assert [row[0] for row in THREATS] == [f"T{number}" for number in range(1, len(THREATS) + 1)]
    assert len(THREATS) >= 20


@cache
def all_tests() -> str:
    """All tests, one after the other."""
    return "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))


@pytest.mark.parametrize(("number", "threat", "rule", "test"), THREATS, ids=[row[0] for row in THREATS])
def test_each_threat_has_a_rule_and_a_test_that_is_there(
    number: str, threat: str, rule: str, test: str
) -> None:
    assert threat
    assert rule
    assert re.search(rf"^(?:async )?def {test.strip('`')}\(", all_tests(), re.MULTILINE), number
