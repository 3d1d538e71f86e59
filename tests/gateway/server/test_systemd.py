"""The systemd unit: systemd can read it, and it takes away what it can. No systemd runs here.

That bubblewrap works under it was tried by hand; what it can't live with is left out, as the comments say.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cellgate.cli.serve import ServeApp
from tests.support.requirements import require

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = "cellgate.service"
INSTALLED = "/opt/cellgate/bin/cellgate"

MOST_EXPOSED = {"sandbox": 2.8, "docker": 1.5}
"""What `systemd-analyze security` of systemd 252 says, from 0 to 10; "OK" begins below 5."""


@pytest.fixture(params=sorted(MOST_EXPOSED))
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit, with the drop-in for its backend if it has one; its program is one that is here."""
    if shutil.which("systemd-analyze") is None:
        require("systemd", "there is no systemd-analyze")
    drop_in = f"{UNIT}.d/{request.param}.conf"
    for name in (UNIT, drop_in) if (DEPLOY / drop_in).exists() else (UNIT,):
        target = tmp_path / request.param / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((DEPLOY / name).read_text().replace(INSTALLED, "/bin/true"))
    return tmp_path / request.param / UNIT


def analyze(*words: str | Path) -> str:
    done = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_reads_it_without_a_warning(unit: Path) -> None:
    assert analyze("verify", "--man=no", unit) == ""


def test_it_takes_away_what_it_can(unit: Path) -> None:
    said = analyze("security", "--offline=true", "--no-pager", unit)
    exposure = re.search(r"Overall exposure level for cellgate.service: (\d+\.\d)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= MOST_EXPOSED[unit.parent.name], said


def test_its_command_is_one_that_there_is() -> None:
    found = [
        shlex.split(line.partition("=")[2])
        for file in (DEPLOY / UNIT, *(DEPLOY / f"{UNIT}.d").iterdir())
        for line in file.read_text().splitlines()
        if line.startswith("ExecStart=/")
    ]
    assert len(found) == 2
    for command, serve, *options in found:
        assert (command, serve) == (INSTALLED, "serve")
        app = ServeApp(environment={})
        app.initialize(options)
        assert app.data_dir == "/var/lib/cellgate"
