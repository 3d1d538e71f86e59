"""The systemd unit: systemd can read it, and it takes away what it can. No systemd runs here.

That bubblewrap works under it was tried by hand; what it can't live with is left out, as the comments say.
"""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cellgate.cli.record.record import RecordApp
from cellgate.cli.serve.serve import ServeApp
from cellgate_kernels.limits.cgroups import CONTROLLERS
from tests.support.requirements import require

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = "cellgate.service"
INSTALLED = "/opt/cellgate/bin/cellgate"

MOST_EXPOSED = {"sandbox": 3.0, "docker": 1.5}
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


@pytest.fixture
def backup_units(tmp_path: Path) -> list[Path]:
    """The service that copies the record, with a program that is here, and its timer."""
    if shutil.which("systemd-analyze") is None:
        require("systemd", "there is no systemd-analyze")
    units = [tmp_path / f"cellgate-backup.{kind}" for kind in ("service", "timer")]
    for unit in units:
        unit.write_text((DEPLOY / unit.name).read_text().replace(INSTALLED, "/bin/true"))
    return units


def analyze(*words: str | Path) -> str:
    done = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_reads_it_without_a_warning(unit: Path) -> None:
    assert analyze("verify", "--man=no", unit) == ""


def test_systemd_reads_the_backup_and_its_timer_without_a_warning(backup_units: list[Path]) -> None:
    assert analyze("verify", "--man=no", *backup_units) == ""


def test_the_backup_has_few_rights(backup_units: list[Path]) -> None:
    said = analyze("security", "--offline=true", "--no-pager", backup_units[0])
    exposure = re.search(r"Overall exposure level for cellgate-backup.service: (\d+\.\d)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= 1.0, said


def test_the_backup_is_one_that_the_command_makes() -> None:
    unit = (DEPLOY / "cellgate-backup.service").read_text()
    command, record, *words = shlex.split(unit.partition("ExecStart=")[2].splitlines()[0])
    assert (command, record) == (INSTALLED, "record")
    app = RecordApp(environment={})
    app.initialize(words)
    assert (app.extra_args, app.keep) == (["backup", "/var/lib/cellgate-backups"], 14)
    assert app.data_dir == "/var/lib/cellgate"


def test_it_takes_away_what_it_can(unit: Path) -> None:
    said = analyze("security", "--offline=true", "--no-pager", unit)
    exposure = re.search(r"Overall exposure level for cellgate.service: (\d+\.\d)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= MOST_EXPOSED[unit.parent.name], said


def test_it_gets_the_cgroups_that_a_gateway_makes_for_kernels(unit: Path) -> None:
    """Later files of the unit say the last word."""
    drop_ins = sorted((unit.parent / f"{UNIT}.d").glob("*.conf"))
    lines = [line for file in (unit, *drop_ins) for line in file.read_text().splitlines()]
    said = dict(
        line.split("=", 1) for line in lines if line.startswith(("Delegate=", "ProtectControlGroups="))
    )
    assert (
        said
        == {
            "sandbox": {"Delegate": " ".join(CONTROLLERS)},
            "docker": {"Delegate": "no", "ProtectControlGroups": "true"},
        }[unit.parent.name]
    )


def lines_of(unit: Path, name: str) -> list[str]:
    """The values of a unit's key, those of its drop-ins last."""
    files = (unit, *sorted((unit.parent / f"{UNIT}.d").glob("*.conf")))
    lines = [line.partition("=") for file in files for line in file.read_text().splitlines()]
    return [value for key, _, value in lines if key == name]


@pytest.mark.parametrize(
    "given",
    [{}, {"CELLGATE_LOG_LEVEL": "debug", "CELLGATE_MAX_KERNELS": "5", "CELLGATE_KEEP_KERNELS": "true"}],
)
def test_its_command_is_one_that_there_is_and_its_file_sets_any_setting(
    unit: Path, given: dict[str, str]
) -> None:
    """What `EnvironmentFile=` reads counts before `Environment=` (systemd.exec(5))."""
    (line,) = lines_of(unit, "ExecStart")
    command, serve, *options = shlex.split(line.replace("/bin/true", INSTALLED))
    assert (command, serve) == (INSTALLED, "serve")
    own = dict(pair.split("=", 1) for line in lines_of(unit, "Environment") for pair in shlex.split(line))
    app = ServeApp(environment=own | given)
    app.initialize(options)
    assert (app.data_dir, app.backend, app.log_json) == ("/var/lib/cellgate", unit.parent.name, True)
    assert app.log_level == (logging.DEBUG if given else logging.INFO)
    assert app.keep_kernels is bool(given)
    assert (app.max_kernels == 5) is bool(given)
    assert int(lines_of(unit, "TimeoutStopSec")[-1]) > app.shutdown_grace + 30
