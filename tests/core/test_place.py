"""The place of a run of tests: what a run that was killed left is found and removed, and nothing else is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.limits.cgroups import Cgroups
from cellgate_kernels.limits.control_group import ControlGroup
from tests.support import leftovers
from tests.support.place import Place, abandoned
from tests.support.requirements import require

SLEEPS = [sys.executable, "-c", "print('here', flush=True); import time; time.sleep(600)"]


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which places are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def place(around: Path) -> Path:
    """A place that its run has left."""
    place = Place()
    place.let_go()
    return place.folder


class Processes(ExitStack):
    """Programs that would sleep for long."""

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        started = subprocess.Popen([*SLEEPS, *words], env=variables, stdout=subprocess.PIPE)
        self.enter_context(started)
        self.callback(started.kill)
        assert started.stdout is not None
        assert started.stdout.readline() == b"here\n"
        return started


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as made:
        yield made


def test_a_place_is_one_run_s_until_it_is_let_go(around: Path) -> None:
    place = Place()
    assert list(abandoned(around)) == []
    place.let_go()
    assert list(abandoned(around)) == [place.folder]
    assert [list(abandoned(around)) for _ in abandoned(around)] == [[]]


def test_variables_lead_into_it_and_to_what_is_set_up_for_downloads(
    around: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = around / "user"
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text("[global]\n")
    (home / ".config" / "cellgate").mkdir()
    monkeypatch.setenv("HOME", str(home))
    place = Place()
    place.let_go()
    assert all(Path(folder).is_relative_to(place.folder) for folder in place.variables.values())
    config = Path(place.variables["XDG_CONFIG_HOME"])
    assert [each.name for each in config.iterdir()] == ["pip"]
    assert (config / "pip" / "pip.conf").read_text() == "[global]\n"


def test_processes_of_a_killed_run_are_ended_and_no_others(place: Path, processes: Processes) -> None:
    inside = processes.start(TMPDIR=str(place / "tmp"))
    named = processes.start(f"--data-dir={place}/t/data")
    beside = processes.start(f"{place}-2", TMPDIR=str(place.parent))
    assert leftovers.remove(place) == ["2 processes"]
    assert [psutil.pid_exists(each.pid) for each in (inside, named, beside)] == [False, False, True]
    assert not place.exists()


def test_what_runs_on_at_the_end_is_told(
    place: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "END_SECONDS", 0.1)
    left = processes.start(TMPDIR=str(place / "tmp"))
    processes.start("from multiprocessing.forkserver import main", TMPDIR=str(place / "tmp"))
    processes.start()
    (told,) = leftovers.still_running(place)
    assert told.startswith(f"{left.pid} {sys.executable}")


def test_a_place_that_another_run_took_for_abandoned_is_not_used(
    around: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run looks for abandoned places in the moment between a new one's folder and its lock."""
    taken: list[Path] = []

    def make(**options: str) -> str:
        made = around / f"{options['prefix']}{len(taken)}"
        made.mkdir()
        taken.append(made)
        if len(taken) < 3:
            (found,) = [*abandoned(around)]
            leftovers.remove(found)
        return str(made)

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    place = Place()
    place.let_go()
    assert place.folder == taken[2]


def test_frozen_processes_and_their_groups_are_removed(place: Path, processes: Processes) -> None:
    data = place / "t" / "data"
    (data / "workspaces").mkdir(parents=True)
    name = "cellgate-" + hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:16]
    try:
        groups = Cgroups.find(name, freezing=True)
    except BackendUnavailable as error:
        require("cgroups", error.message)
    kernel = processes.start()
    groups.make("kernel", ResourceLimits()).enter(kernel.pid)
    group = ControlGroup.of(kernel.pid)
    if group is None:
        groups.close()
        require("cgroups", "nothing freezes processes here")
    group.freeze()
    found = leftovers.remove(place)
    assert not psutil.pid_exists(kernel.pid)
    assert found[0] == "1 process"
    assert "control groups" in found[1]
    assert not any(parent.exists() for parent, _ in groups._parents)
