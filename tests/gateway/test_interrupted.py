"""A run of tests that is interrupted, by Ctrl-C or as `timeout` and CI end what takes too long: it leaves no
gateway and no kernel behind.

The run is a real one of this suite, with two tests of its own: one is in the middle of a cell.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support import leftovers
from tests.support.nightly import mostly_nightly

ROOT = Path(__file__).parents[2]
TESTS = """
import time
from pathlib import Path

def waits(session):
    Path(__file__).with_name(session).touch()
    time.sleep(600)

def test_with_the_gateway_that_is_shared(gateway):
    assert gateway.post("/v1/sessions", {"session": "shared"}).status == 201
    waits("shared")

def test_with_a_gateway_of_its_own(start_gateway):
    gateway = start_gateway(shutdown_grace=0.5)
    assert gateway.post("/v1/sessions", {"session": "own"}).status == 201
    gateway.post("/v1/sessions/own/execute", {"code": "import time; time.sleep(600)", "wait": False})
    while gateway.get("/v1/sessions/own").json()["state"] != "busy":
        time.sleep(0.02)
    waits("own")
"""
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Which signal comes, how many processes run tests, and whether all or only the outermost gets it."""

    number: signal.Signals
    processes: int
    everywhere: bool

    def __str__(self) -> str:
        return f"{self.number.name}-{self.processes}-{'all' if self.everywhere else 'first'}"


CTRL_C = Interrupt(signal.SIGINT, 2, everywhere=True)
ENDED = Interrupt(signal.SIGTERM, 2, everywhere=False)
OTHERS = [
    Interrupt(signal.SIGINT, 0, everywhere=True),
    Interrupt(signal.SIGTERM, 0, everywhere=False),
    Interrupt(signal.SIGTERM, 2, everywhere=True),
]


class Running:
    """A run of the suite, and what it has started."""

    def __init__(self, folder: Path, processes: int) -> None:
        self._folder = folder
        (folder / "test_long.py").write_text(TESTS)
        ours = f"-c {ROOT}/pyproject.toml --rootdir {folder} -p tests.conftest"
        part = f"{ours} -n {processes} {folder}/test_long.py"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.run", "--reports", folder / "reports", part],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(folder), "PYTEST_ADDOPTS": "-p no:cacheprovider"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    def until_kernels_run(self, count: int) -> None:
        """Wait until so many tests have their kernel."""
        deadline = time.monotonic() + PATIENCE
        while sum((self._folder / session).exists() for session in ("shared", "own")) < count:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def started(self) -> list[psutil.Process]:
        """All that runs because of it: its children, and what has something of its place."""
        (place,) = self._folder.glob("cgt-*")
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [*{*below, *(each for each in psutil.process_iter() if leftovers.is_of(each, place))}]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for the run's place. Its path is short: sockets are in it. What a failure leaves is ended."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        for place in Path(folder).glob("cgt-*"):
            leftovers.remove(place)


@pytest.mark.parametrize("how", mostly_nightly([CTRL_C, ENDED, *OTHERS], [ENDED], str))
def test_no_gateway_and_no_kernel_outlives_the_run(folder: Path, how: Interrupt) -> None:
    running = Running(folder, how.processes)
    try:
        running.until_kernels_run(how.processes or 1)
        started = running.started()
        if how.everywhere:
            os.killpg(running.process.pid, how.number)
        else:
            running.process.send_signal(how.number)
        assert running.process.wait(PATIENCE) == pytest.ExitCode.INTERRUPTED
        assert re.search(r"^!+ (?:\S+ )*KeyboardInterrupt", running.said(), re.MULTILINE), running.said()
        _, alive = psutil.wait_procs(started, timeout=PATIENCE)
        assert not alive, running.said()
    finally:
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()
