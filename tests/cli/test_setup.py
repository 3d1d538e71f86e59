"""``cellgate setup`` where it fails; where it succeeds, all other tests stand on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellgate.cli.main import main


def test_a_requirements_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--prefix", str(tmp_path), "--requirements", "absent.txt"]) == 2
    assert capsys.readouterr().err == "cellgate: --requirements: there is no file absent.txt\n"
    assert list(tmp_path.iterdir()) == []


def test_packages_that_can_t_be_installed_end_in_pip_s_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"{tmp_path}/no-such-package\n")
    assert main(["setup", "--prefix", str(tmp_path / "prefix"), "--requirements", str(requirements)]) == 1
    error = capsys.readouterr().err
    assert "no-such-package" in error
    assert "setup.log" in error
    assert "Traceback" not in error
