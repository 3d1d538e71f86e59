"""The run that tries the newest releases of clients: what it is made of, and what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.newest import ROOT, TABLE, Client, Outcome, main, tried, versions_of, why

FAILED = """
    def test_e2b(gateway) -> None:
>       assert run(gateway, tmp_path, "e2b") == {
E       AssertionError: Traceback (most recent call last):
E           from e2b_code_interpreter import Sandbox
E         ImportError: cannot import name 'Sandbox'
E       assert 1 == 0
FAILED tests/clients/test_doors.py::test_e2b - AssertionError: Traceback
"""


@pytest.mark.parametrize("client", TABLE, ids=lambda client: client.name)
def test_the_tests_of_each_client_are_there(client: Client) -> None:
    for test in client.tests:
        path, name = test.split("::")
        assert re.search(rf"def {name.partition('[')[0]}\b", (ROOT / path).read_text()), test


def test_one_that_breaks_keeps_no_other_from_its_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def attempt(client: Client, folder: Path) -> Outcome:
        assert folder == tmp_path
        return Outcome(client.name, "x 1", "ImportError: gone" if client.name == "e2b" else "")

    assert main([str(tmp_path), "e2b", "smolagents"], attempt) == 1
    said = capsys.readouterr().out
    assert re.search(r"works +smolagents +x 1\nBROKEN +e2b +x 1\n +ImportError: gone\n", said)
    assert "1 of 2 are broken" in said
    assert main([str(tmp_path), "smolagents"], attempt) == 0
    assert main([str(tmp_path)], attempt) == 1
    assert f"1 of {len(TABLE)}" in capsys.readouterr().out


def test_one_that_can_not_be_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = tmp_path / "uv.py"
    refuses.write_text("raise SystemExit('error: no such package')")
    monkeypatch.setattr(f"{tried.__module__}.UV", refuses)
    outcome = tried(Client("one", ("no-such-package",), ()), tmp_path)
    assert outcome == Outcome("one", "", "error: no such package")
    assert "no such package" in (tmp_path / "one.log").read_text()


def test_the_reason_is_the_error_itself() -> None:
    assert why(FAILED) == "ImportError: cannot import name 'Sandbox'"
    assert why("E       assert 1 == 2\nFAILED x") == "assert 1 == 2"
    assert why("one\nlast\n") == "last"
    assert why("") == ""


def test_versions_are_those_of_the_packages_that_were_asked_for() -> None:
    frozen = "aiohttp==3.1\nautogen-ext==0.7.5\nours @ file:///x\n"
    assert versions_of(("autogen-ext[azure]", "aiohttp>=3", "missing"), frozen) == (
        "autogen-ext 0.7.5, aiohttp 3.1"
    )
