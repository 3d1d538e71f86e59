"""The README, the tutorials and some guides do what they say: their commands run in a real shell, against a
real gateway.

A fence in the language ``console`` is a session: lines after ``$`` are commands, further lines after ``>``
belong to them, and the rest is their output, where ``...`` stands for anything. A comment before a fence says
what else it is::

    <!-- test: skip -->        not to be run, such as a set-up
    <!-- test: serve -->       starts the gateway and shows how it begins
    <!-- test: serve HOW -->   the same, by another command than the page's
    <!-- test: stop -->        its command stops the gateway
    <!-- test: kill -->        its commands end the gateway by force; what they show is not compared
    <!-- test: file NAME -->   a file that the reader saves
    <!-- test: commands -->    each line is a command, which must end well; what it shows is not compared. One
                               that ends in a backslash goes on in the next line
    <!-- test: commands stopped -->   the same, after the gateway has been stopped

What a guide takes for granted, as files and a gateway that serves, is in `GRANTED`.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import BackendUnavailable
from tests.support.free_ports import free_port
from tests.support.nightly import mostly_nightly
from tests.support.requirements import require
from tests.support.wheels import build_wheel

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    ROOT / "docs" / "how-to" / "serve-many-users.md",
    ROOT / "docs" / "how-to" / "use-from-javascript.md",
    ROOT / "docs" / "how-to" / "set-up-with-a-coding-agent.md",
    ROOT / "docs" / "how-to" / "use-the-shell.md",
    ROOT / "docs" / "how-to" / "check-an-export.md",
    ROOT / "docs" / "how-to" / "bill-by-usage.md",
    ROOT / "docs" / "how-to" / "give-sessions-secrets.md",
    ROOT / "docs" / "how-to" / "operate-a-gateway.md",
    ROOT / "docs" / "how-to" / "back-up-and-restore.md",
    ROOT / "docs" / "how-to" / "give-sessions-packages.md",
]
AT_EACH_CHANGE = [
    page
    for page in PAGES
    if page.stem in ("agent-builder", "use-from-javascript", "give-sessions-secrets", "operate-a-gateway")
]
"""``test_newcomer`` runs all commands of the README, in a clone."""
PATIENCE = 60.0
NODE = (20, 18)
"""The first version of Node with EventSource."""
FENCE = re.compile(
    r"(?:^<!-- test: (?P<mark>\w+) ?(?P<name>[^\n]*?) -->\n)?"
    r"^(?P<ticks>`{3,})(?P<language>\w*)[^\n`]*\n(?P<text>.*?)^(?P=ticks)$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Granted:
    """What a guide takes for granted: files by name, commands before its own, and how a gateway is served.

    `wheels`: packages that are in the folder of this name, each with its version.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    serve: str = ""
    wheels: Mapping[str, str] = field(default_factory=dict)


NOTEBOOK: Final = json.dumps(
    {
        "nbformat": 4,
        "nbformat_minor": 4,
        "metadata": {},
        "cells": [
            {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": "6 * 7"}
        ],
    }
)
GRANTED: Final[Mapping[str, Granted]] = MappingProxyType(
    {
        "use-the-shell": Granted(
            {
                "step.py": "print(x)\n",
                "analysis.py": "print('1')\nopen('made.txt', 'w').write('1')\n",
                "analysis.ipynb": NOTEBOOK,
                "report.py": "import sys\nprint(sys.argv)\n",
                "data.csv": "n\n1\n",
                "data/data.csv": "n\n1\n",
                "names.txt": "b\na\n",
            },
            ("export BROWSER=true",),
            "cellgate serve --ports-port {port} --allow-package humanize --ServeApp.package_links=wheels",
            {"humanize": "4.0"},
        ),
        "give-sessions-packages": Granted(
            commands=(
                "export TOKEN=a-long-token-1 CELLGATE_TOKEN=a-long-token-1",
                "export URL=http://127.0.0.1:$CELLGATE_PORT/v1/sessions/other",
            ),
            wheels={"humanize": "4.0"},
        ),
        "back-up-and-restore": Granted({}, ("mkdir backups",), "cellgate serve"),
        "operate-a-gateway": Granted(serve="cellgate serve --data-dir data"),
        "give-sessions-secrets": Granted({"key.txt": "a-long-secret-1\n"}, ("cellgate user add alice",)),
    }
)


@dataclass(frozen=True)
class Block:
    """A fence to act on: `mark` says how, `line` where it stands."""

    mark: str
    name: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """The fences of a page that a test has to do with, in order."""
    return [
        Block(
            found["mark"] or "", found["name"] or "", found["text"], page.count("\n", 0, found.start("text"))
        )
        for found in FENCE.finditer(page)
        if found["language"] == "console" or found["mark"]
    ]


def exchanges(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console session, and what is shown after it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        first, *lines = part.splitlines()
        more = 0
        while more < len(lines) and lines[more].startswith("> "):
            more += 1
        command = "\n".join([first, *(line.removeprefix("> ") for line in lines[:more])])
        yield command, "\n".join(lines[more:])


def stripped(text: str) -> str:
    """Without what a page can't show: spaces at the ends of lines, and empty lines around all."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"


class Terminal:
    """A shell that runs one command after the other, with a gateway in the background."""

    END = "--end-of-output--"

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        home = folder / "home"
        home.mkdir()
        # The last two are of a make that runs the tests: another within it would say so.
        ours = ("CELLGATE_", "XDG_", "MAKE", "MFLAGS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={
                **kept,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(home),
                "COLUMNS": "100",
                "CELLGATE_PORT": str(port),
                "CELLGATE_BACKEND": "sandbox",
            },
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """What the command writes to either of its outputs."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{{ {command}\n}} < /dev/null\necho {self.END}\n".encode())
        self.process.stdin.flush()
        written, deadline = b"", time.monotonic() + PATIENCE
        end = f"{self.END}\n".encode()
        # A job in the background may write after the command's end.
        while end not in written:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{command!r} does not end; so far: {written!r}"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, f"the shell has ended in {command!r}: {written!r}"
            written += piece
        return written.replace(end, b"").decode()

    def serve(self, command: str) -> str:
        """Starts the gateway; what it says when it serves."""
        log = self.folder / "gateway.log"
        log.write_text("")
        self.run(f"(exec env {command}) > {shlex.quote(str(log))} 2>&1 & gateway=$!")
        deadline = time.monotonic() + PATIENCE
        while not log.read_text().endswith("Ctrl-C\n\n"):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        said = log.read_text()
        while not self._is_ready():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return said

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=PATIENCE).close()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True

    def stop(self) -> None:
        """Stops what may still run, as it should be stopped."""
        if self.run("jobs -p").strip():
            assert self.run('kill -TERM "$gateway"; wait "$gateway"; echo $?') == "0\n"

    def close(self) -> None:
        """Ends all that was started here."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[Terminal]:
    try:
        await SandboxProvisioner.check()
    except BackendUnavailable as error:
        require("sandbox", error.message)
    made = Terminal(tmp_path, free_port())
    yield made
    made.close()


def require_node() -> None:
    """Demands a Node that has all that the page for JavaScript uses."""
    found = shutil.which("node")
    if found is None:
        require("node", "node is not installed; with apt-get: nodejs")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=True)
    version = said.stdout.strip()
    if tuple(int(part) for part in version.removeprefix("v").split(".")[:2]) < NODE:
        require("node", f"Node {version} has no EventSource; 20.18 and newer have it")


def compare(block: Block, command: str, shown: str, written: str) -> None:
    """Whether what was written is what the page shows."""
    checker, wanted, got = doctest.OutputChecker(), stripped(shown), stripped(written)
    if not checker.check_output(wanted, got, doctest.ELLIPSIS):
        raise AssertionError(f"line {block.line}: $ {command}\nshown:\n{wanted}\nwritten:\n{got}")


def take_for_granted(granted: Granted, terminal: Terminal) -> None:
    """Makes what a guide does not."""
    for name, content in granted.files.items():
        (terminal.folder / name).parent.mkdir(exist_ok=True)
        (terminal.folder / name).write_text(content)
    for name, version in granted.wheels.items():
        (terminal.folder / "wheels").mkdir(exist_ok=True)
        build_wheel(terminal.folder / "wheels", name, version)
    for command in granted.commands:
        assert terminal.run(command) == ""
    if granted.serve:
        terminal.serve(granted.serve.format(port=free_port()))


def commands(text: str) -> list[str]:
    """The commands of a fence, one a line but where a backslash at the end continues one."""
    found: list[str] = []
    goes_on = False
    more = ""
    for line in text.splitlines():
        if goes_on:
            found[-1] += f"\n{line.removeprefix(more)}"
        elif line.strip():
            more = "> " if line.startswith("$ ") else ""
            found.append(line.removeprefix("$ "))
        goes_on = line.endswith("\\")
    return found


def run_all(block: Block, terminal: Terminal) -> int:
    """Runs each command, which must end with 0; returns how many there were."""
    found = commands(block.text)
    for command in found:
        written = terminal.run(f"{command}\necho status $?")
        assert written.endswith("status 0\n"), f"line {block.line}: $ {command}\n{written}"
    return len(found)


def test_a_command_may_go_on_in_the_next_line() -> None:
    text = "$ first \\\n>   -a \\\n    -b\n\nsecond\nthird \\\n> file\n"
    assert commands(text) == ["first \\\n  -a \\\n    -b", "second", "third \\\n> file"]


@pytest.mark.parametrize("page", mostly_nightly(PAGES, AT_EACH_CHANGE, lambda page: page.stem))
def test_commands_give_what_the_page_shows(page: Path, terminal: Terminal) -> None:
    """From the first command to the last, in order; the gateway stops cleanly in the end."""
    text = page.read_text().replace("8888", str(terminal.port))
    if "$ node " in text:
        require_node()
    compared = 0
    take_for_granted(GRANTED.get(page.stem, Granted()), terminal)
    for block in blocks(text):
        if block.mark == "commands":
            if block.name == "stopped":
                terminal.stop()
            compared += run_all(block, terminal)
            continue
        if block.mark == "file":
            (terminal.folder / block.name).write_text(block.text)
            continue
        for command, shown in exchanges(block.text) if block.mark != "skip" else ():
            written = (
                terminal.run(command) if block.mark != "serve" else terminal.serve(block.name or command)
            )
            if block.mark != "kill":
                compare(block, command, shown, written)
                compared += 1
        if block.mark in {"stop", "kill"}:
            terminal.run("wait")
    assert compared
    terminal.stop()
