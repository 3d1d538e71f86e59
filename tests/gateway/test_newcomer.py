"""A new user's first hour, with no other knowledge than the README's text: a clone, `make run`, all commands.

``test_tutorials`` tries the same commands from an empty folder, one page after the other. Here it is the
clone that matters, as somebody else gets it: what is committed, the Makefile, the line that sets PATH, the
notebook, and the commands that the other test leaves out. Only the set-up is not repeated: the clone's
environment finds the packages of the one that runs the tests, and its kernels. ``.ci/run`` makes a set-up in
a clean clone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cellgate_kernels.specs.catalog import data_folder
from tests.gateway.test_tutorials import ROOT, Terminal, blocks, compare, exchanges, terminal
from tests.support.requirements import require

__all__ = ["terminal"]

START = "make run"
SAVED = {"tour.py", "tour.ipynb", "tour.zip", "data.csv", "plots/", "executed.ipynb", "report.html"}
"""What the README's commands leave in the clone."""
PATIENCE = 60.0


def clone(folder: Path) -> Path:
    """What is committed, in a folder of its own."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        require("git", "there is nothing to clone")
    # git refuses folders of another user, as a checkout in a container may be.
    trusted = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    subprocess.run(
        ["git", "clone", "--quiet", ROOT, folder], env={**os.environ, **trusted}, check=True, timeout=60
    )
    return folder


def set_up(clone: Path) -> None:
    """What `make setup` would make, of what is here already; the code is the clone's."""
    environment = clone / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=60)
    ours = sysconfig.get_paths()["purelib"]
    theirs = Path(sysconfig.get_paths(vars={"base": str(environment)})["purelib"])
    (theirs / "reused.pth").write_text(f"{clone}/gateway\n{clone}/kernels\n{ours}\n")
    data_folder(environment).parent.mkdir(exist_ok=True)
    data_folder(environment).symlink_to(data_folder(Path(sys.prefix)))
    program = environment / "bin" / "cellgate"
    program.write_text(
        f"#!{environment}/bin/python\nimport sys\nfrom cellgate.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    # In this order: make compares their times, and those of the files that they are made of.
    (environment / "bin" / "uv").touch()
    (environment / ".setup-done").touch()


def hint(said: str) -> str:
    """The command that the gateway says to try."""
    found = re.search(r"Try:  (.*?)     Stop:", said)
    assert found is not None, said
    return found[1]


class FirstTerminal:
    """Where the gateway runs, until Ctrl-C."""

    def __init__(self, clone: Path, command: str, environment: dict[str, str]) -> None:
        self.log = clone.parent / "first-terminal.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=clone,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """What is shown when the gateway serves."""
        deadline = time.monotonic() + PATIENCE
        while not self.log.read_text().endswith("Ctrl-C\n\n"):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return self.log.read_text()

    def press_ctrl_c(self) -> None:
        """Whatever runs in a terminal gets the signal."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(PATIENCE)
        _, alive = psutil.wait_procs(started, timeout=60)
        assert not alive, f"left: {alive}"
        assert self.log.read_text().endswith("Stopped. The record of all sessions is kept.\n")

    def close(self) -> None:
        """Ends all that was started here, if the test has failed."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def started(terminal: Terminal) -> Iterator[list[FirstTerminal]]:
    """The first terminal, once it is there."""
    made: list[FirstTerminal] = []
    yield made
    for each in made:
        each.close()


def environment_of(terminal: Terminal) -> dict[str, str]:
    """The variables that a terminal begins with."""
    return dict(line.split("=", 1) for line in terminal.run("env").splitlines() if "=" in line)


@pytest.mark.timeout(300)
def test_the_readme_alone_leads_from_a_clone_to_a_replayed_plot(
    terminal: Terminal, started: list[FirstTerminal]
) -> None:
    place = clone(terminal.folder / "clone")
    set_up(place)
    terminal.run(f"unset PYTHONPATH; cd {shlex.quote(str(place))}")
    page = (place / "README.md").read_text().replace("8888", str(terminal.port))
    for block in blocks(page):
        if block.mark == "file":
            (place / block.name).write_text(block.text)
            continue
        for command, shown in exchanges(block.text):
            if command.endswith(START):
                started.append(FirstTerminal(place, command, environment_of(terminal)))
                said = started[0].said()
                compare(block, command, shown, said)
                # The other terminal has no PATH of ours yet.
                assert terminal.run(hint(said)) == "42\n"
            else:
                compare(block, command, shown, terminal.run(command))
    assert terminal.run("command -v cellgate") == f"{place}/.venv/bin/cellgate\n"
    module = "import cellgate; print(cellgate.__file__)"
    assert terminal.run(f"python -c '{module}'") == f"{place}/gateway/cellgate/__init__.py\n"
    (first,) = started
    first.press_ctrl_c()
    (plot,) = (place / "plots").iterdir()
    assert plot.read_bytes().startswith(b"\x89PNG")
    left = terminal.run("git status --short").splitlines()
    assert {line.removeprefix("?? ") for line in left} == SAVED
