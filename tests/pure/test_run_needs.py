"""What a run of the suite demands of the machine before it begins, and the one text of all its failures."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests import run
from tests.run import GIB, LEAST_DISK, LEAST_MEMORY, in_one_text, too_little


def test_a_machine_that_has_just_enough_is_enough() -> None:
    assert too_little(LEAST_DISK, LEAST_MEMORY) is None


@pytest.mark.parametrize(
    ("disk", "memory", "lacking"),
    [
        (LEAST_DISK - 1, LEAST_MEMORY, f"disk in {tempfile.gettempdir()}: 4.0 GiB are free"),
        (GIB // 2, LEAST_MEMORY, f"disk in {tempfile.gettempdir()}: 0.5 GiB are free"),
        (LEAST_DISK, LEAST_MEMORY // 4, "memory: 0.5 GiB are free"),
        (0, 0, f"disk in {tempfile.gettempdir()}: 0.0 GiB are free"),
    ],
)
def test_too_little_is_named_with_what_there_is(disk: int, memory: int, lacking: str) -> None:
    told = too_little(disk, memory)
    assert told is not None
    assert told.startswith(f"too little {lacking}, and the tests need ")


def test_a_run_that_lacks_something_starts_nothing_and_leaves_the_last_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failures.txt").write_text("of the run before")
    monkeypatch.setattr(run, "LEAST_MEMORY", 2**60)
    assert run.main(["--reports", str(tmp_path), "no such part"]) == 2
    assert "too little memory" in capsys.readouterr().out
    assert [entry.name for entry in tmp_path.iterdir()] == ["failures.txt"]


def test_the_tries_of_a_test_are_beside_each_other() -> None:
    text = in_one_text({"a::one": {1: "first of one", 2: "second of one"}, "a::two": {1: "of two"}})
    assert text == (
        f"{'=' * 20} a::one, try 1 of 3\nfirst of one\n\n"
        f"{'=' * 20} a::one, try 2 of 3\nsecond of one\n\n"
        f"{'=' * 20} a::two, try 1 of 3\nof two\n"
    )
