"""Every example of every ``--help`` is called in a real shell, beside a gateway and the files that it names.

Examples for an operator's machine (`serve`, `setup`, `environment`, `image`, what needs another shell) are
only parsed: an option that is not there, or a value that does not fit, fails them too. At each change all are
parsed, and those of some commands called.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from traitlets.utils.importstring import import_item

from cellgate.cli.base import BaseApp
from cellgate.cli.main import CellgateApp
from tests.conftest import serving
from tests.support.commands import environment
from tests.support.nightly import mostly_nightly
from tests.support.server import GatewayProcess
from tests.support.terminal import Terminal
from tests.support.wheels import Index, build_wheel

PATIENCE = 120
PARSED = ("serve", "setup", "environment", "image", "mcp --http")
"""Examples that begin like this are not called."""
OTHER_SHELLS = ("zsh", "fish")
FOLLOWED = "session watch"
PROMPTS = "console"
A_PROCESS = "p-0123456789ab"

FILES = {
    "analysis.py": "import os; print(os.listdir()); open('made.txt', 'w').close()",
    "script.py": "kept = 1",
    "report.py": "import sys; assert sys.argv == ['report.py', '--year', '2026']; sys.exit(0)",
    "README.md": "# Ours\n\n```python\nprint(6 * 7)\n```\n",
    "guide.md": "```python\nx = 1\n```\n\n```bash\necho from bash\n```\n",
    "data.csv": "n\n1\n",
    "data/more.csv": "n\n2\n",
    "step.py": "print(x)\n",
    "key.txt": "a-secret-value\n",
}
BEFORE = {
    "": ["cellgate exec 1 --session my-session"],
    "files": ["cellgate exec \"open('figure.png', 'w').close()\" --session my-session"],
    "export": [
        "cellgate exec 1 --session my-session",
        "cellgate export my-session -o report.ipynb",
        "cellgate files put my-session report.ipynb",
    ],
    "replay": [
        "cellgate exec 1 --session to-replay",
        "cellgate export to-replay -o analysis.ipynb",
        "cellgate export to-replay --bundle -o analysis.zip",
    ],
    "session": ["cellgate exec 1 --session my-session", "cellgate exec 1 --session careful --checkpoints"],
    "process": ["cellgate exec 1 --session my-session", "cellgate files put my-session data.csv data/a.csv"],
    "verify": [
        "cellgate exec 1 --session my-session",
        "cellgate export my-session -o my-session.ipynb",
        "cellgate export my-session --bundle -o my-session.zip",
    ],
    "user": ["cellgate user remove alice || true"],
    "token": ["cellgate user remove alice || true", "cellgate user add alice"],
    "secret": ["cellgate user remove alice || true", "cellgate user add alice"],
}


def examples(app: type[BaseApp]) -> list[str]:
    """The commands: what is right of two spaces, or alone on a line below, is said about them."""
    lines = inspect.cleandoc(str(app.examples)).splitlines()
    return [line.partition("  ")[0] for line in lines if not line.startswith(" ")]


COMMANDS: dict[str, type[BaseApp]] = {
    "": CellgateApp,
    **{name: import_item(path) for name, (path, _) in CellgateApp.subcommands.items()},
}


@dataclass(frozen=True)
class Desk:
    """A folder with the files of the examples, and a user's variables."""

    folder: Path
    variables: dict[str, str]

    def call(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=PATIENCE,
        )


def desk(folder: Path, data: Path) -> Desk:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    cells = [v4.new_code_cell("1 + 1")]  # type: ignore[no-untyped-call]
    nbformat.write(v4.new_notebook(cells=cells), folder / "analysis.ipynb")  # type: ignore[no-untyped-call]
    variables = environment(
        BROWSER="true %s",  # nobody looks at it
        CELLGATE_DATA_DIR=str(data),
        XDG_CONFIG_HOME=str(folder / "config"),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )
    return Desk(folder, variables)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a gateway that allows one package and serves ports."""
    folder = tmp_path_factory.mktemp("index")
    build_wheel(folder, "humanize", "4.1")
    index = Index(folder)
    data = tmp_path_factory.mktemp("examples") / "data"
    try:
        with serving(data, "process", packages=["humanize"], package_index=index.url, ports_port=0):
            yield data
    finally:
        index.close()


AT_EACH_CHANGE = ("exec",)
REDIRECTION = {"|", "<", ">", "&&"}


def parse(command: str) -> None:
    """Reads an example's options as the command does, and does nothing. Raises UsageError."""
    words = shlex.split(command)
    words = words[words.index("cellgate") + 1 :]
    end = next((number for number, word in enumerate(words) if word in REDIRECTION), len(words))
    CellgateApp(environment={}).initialize(words[:end])


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_the_examples_of_help_can_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk(tmp_path, tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in examples(COMMANDS[name]):
        parse(command)


def test_examples_are_found() -> None:
    assert all(examples(app) for app in COMMANDS.values())
    assert len({line for app in COMMANDS.values() for line in examples(app)}) > 60


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name", mostly_nightly([name for name in COMMANDS if name != "record"], AT_EACH_CHANGE)
)
def test_the_examples_of_help_work(name: str, data: Path, tmp_path: Path) -> None:
    place = desk(tmp_path, data)
    for command in BEFORE.get(name, ()):
        done = place.call(command)
        assert done.returncode == 0, (command, done.stderr)
    for command in examples(COMMANDS[name]):
        plain = command.removeprefix("CELLGATE_TOKEN=... ").removeprefix("cellgate ")
        if plain.startswith(PARSED):
            parse(f"cellgate {plain}")
        elif not any(shell in command.split() or f"{shell})" in command.split() for shell in OTHER_SHELLS):
            example(place, command, plain, data)


def example(place: Desk, command: str, plain: str, data: Path) -> None:
    """Calls one example, which must succeed."""
    if plain.startswith(PROMPTS):
        with Terminal(["bash", "-c", command], place.folder, place.variables) as terminal:
            terminal.until(f"{plain.split()[1]}> ")
            terminal.send("\x04")
            assert terminal.ended() == 0, terminal.raw
        return
    if plain.startswith(FOLLOWED):
        command = f"timeout --preserve-status -s INT 5 {command}"
        assert place.call(command).returncode == 130, command
        return
    if plain.startswith("token revoke"):
        tokens = json.loads(place.call("cellgate token list --json").stdout)
        command = f"cellgate token revoke {tokens[-1]['id']}"
    if A_PROCESS in command:
        program = "echo hi" if plain.startswith("process watch") else "sleep 600"
        started = place.call(f"cellgate process start my-session -- {program}")
        command = command.replace(A_PROCESS, started.stdout.strip())
    command = command.replace("/var/lib/cellgate", str(data))
    if "8f1c..." in command:
        parse(command)
        return
    done = place.call(command)
    assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_examples_of_record_work(tmp_path: Path) -> None:
    """They are for a gateway's data folder, and some for one whose gateway is stopped."""
    data = tmp_path / "data"
    with serving(data, "process") as process:
        assert isinstance(process, GatewayProcess)
        process.execute("some", "1")
    (tmp_path / "desk").mkdir()
    (tmp_path / "backups").mkdir()
    place = desk(tmp_path / "desk", data)
    for command in examples(COMMANDS["record"]):
        done = place.call(command.replace("/backups", str(tmp_path / "backups")))
        assert done.returncode == 0, (command, done.stdout, done.stderr)
