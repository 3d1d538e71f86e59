"""The completion scripts in real shells, against the commands that there are and a real gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cellgate.cli.completion import commands, script
from cellgate.cli.main import CellgateApp
from tests.support.requirements import require
from tests.support.server import TOKEN, GatewayProcess
from tests.support.terminal import Terminal

ASK = """
source {script}
COMP_WORDS=("${{@:2}}")
COMP_CWORD=$(($# - 2))
_cellgate
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def environment(gateway: GatewayProcess | None = None) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("CELLGATE_")}
    found["PATH"] = f"{Path(sys.executable).parent}:{found['PATH']}"
    found |= {"CELLGATE_URL": gateway.url, "CELLGATE_TOKEN": TOKEN} if gateway else {}
    return found


def shell(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        require(name, f"there is no {name} here")
    return str(path)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three scripts as the command prints them, named after their shells."""
    folder = tmp_path_factory.mktemp("scripts")
    for name in ("bash", "zsh", "fish"):
        command = [Path(sys.executable).with_name("cellgate"), "completion", name]
        printed = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=True)
        (folder / name).write_bytes(printed.stdout)
    return folder


def bash(scripts: Path, *words: str, gateway: GatewayProcess | None = None, folder: Path) -> list[str]:
    """What bash offers for the last of the words."""
    ask = folder / "ask"
    ask.write_text(ASK.format(script=scripts / "bash"))
    command = [shell("bash"), str(ask), "-", "cellgate", *words]
    done = subprocess.run(
        command, env=environment(gateway), cwd=folder, capture_output=True, timeout=60, check=True, text=True
    )
    assert done.stderr == ""
    return sorted(filter(None, done.stdout.split("\n")))


def fish(scripts: Path, line: str, *, gateway: GatewayProcess | None = None, folder: Path) -> list[str]:
    """What fish offers at the end of the line."""
    code = f"source {scripts / 'fish'}; complete -C {line!r}"
    command = [shell("fish"), "--no-config", "-c", code]
    done = subprocess.run(
        command, env=environment(gateway), cwd=folder, capture_output=True, timeout=60, check=True, text=True
    )
    return sorted(each.partition("\t")[0] for each in filter(None, done.stdout.split("\n")))


def test_every_command_and_every_option_is_known(scripts: Path, tmp_path: Path) -> None:
    assert bash(scripts, "", folder=tmp_path) == sorted([*CellgateApp.subcommands, "--help", "--version"])
    assert fish(scripts, "cellgate ", folder=tmp_path) == sorted(CellgateApp.subcommands)
    for command in commands(CellgateApp.subcommands):
        assert bash(scripts, command.name, "-", folder=tmp_path) == sorted(command.options)
    for name in ("bash", "zsh", "fish"):
        assert (scripts / name).read_text() == script(name, CellgateApp.subcommands).rstrip("\n") + "\n"


def test_values_actions_and_local_files(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "a file.ipynb").touch()
    (tmp_path / "folder").mkdir()
    expected = {
        ("exp",): ["export"],
        ("serve", "--back"): ["--backend"],
        ("serve", "--backend", ""): ["auto", "docker", "process", "sandbox"],
        ("serve", "--log-level", "DEB"): ["DEBUG"],
        ("files", ""): ["get", "ls", "put", "rm"],
        ("run", "a"): ["a file.ipynb", "ask"],
        ("run", "--output", "a f"): ["a file.ipynb"],
        ("mcp", "--notebooks", ""): ["folder"],
        ("exec", ""): [],
    }
    for words, offered in expected.items():
        assert bash(scripts, *words, folder=tmp_path) == offered, words
    assert fish(scripts, "cellgate serve --backend ", folder=tmp_path) == expected[("serve", "--backend", "")]
    assert fish(scripts, "cellgate files ", folder=tmp_path) == expected[("files", "")]
    assert fish(scripts, "cellgate run a", folder=tmp_path)[0] == "a file.ipynb"


def test_sessions_and_their_files_are_asked_of_the_gateway(
    gateway: GatewayProcess, session: str, scripts: Path, tmp_path: Path
) -> None:
    for name in ("data.csv", "two words.txt", "$(touch pwned)"):
        gateway.execute(session, f"_ = open({name!r}, 'w').write('x')")
    start = session[:-2]
    assert bash(scripts, "console", start, gateway=gateway, folder=tmp_path) == [session]
    assert bash(scripts, "files", "get", start, gateway=gateway, folder=tmp_path) == [session]
    assert bash(scripts, "run", "--session", start, gateway=gateway, folder=tmp_path) == [session]
    files = ["$(touch pwned)", "data.csv", "two words.txt"]
    assert bash(scripts, "files", "get", session, "", gateway=gateway, folder=tmp_path) == files
    words = ("files", "get", "--log-level", "ERROR", session, "da")
    assert bash(scripts, *words, gateway=gateway, folder=tmp_path) == ["data.csv"]
    assert fish(scripts, f"cellgate console {start}", gateway=gateway, folder=tmp_path) == [session]
    assert fish(scripts, f"cellgate files get {session} d", gateway=gateway, folder=tmp_path) == ["data.csv"]
    assert not (tmp_path / "pwned").exists()


def test_without_a_gateway_there_are_no_names_and_no_noise(
    scripts: Path, tmp_path: Path, free_port: int
) -> None:
    command = [Path(sys.executable).with_name("cellgate"), "completion", "sessions"]
    none = {**environment(), "CELLGATE_URL": f"http://127.0.0.1:{free_port}"}
    done = subprocess.run(command, env=none, capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_zsh_completes_in_a_terminal(
    gateway: GatewayProcess, session: str, scripts: Path, tmp_path: Path
) -> None:
    gateway.execute(session, "_ = open('$(touch pwned)', 'w').write('x')")
    with Terminal([shell("zsh"), "-f", "-i"], tmp_path, environment(gateway)) as zsh:
        zsh.send(f"autoload -Uz compinit; compinit -u -D; source {scripts / 'zsh'}; print set-up''-done\r")
        zsh.until("set-up-done")
        zsh.send("cellgate expo\t")
        zsh.until("cellgate export")
        zsh.send(f"{session[:-2]}\t")
        zsh.until(session[-2:])
        zsh.send("\x15cellgate files get " + session + " \t")
        zsh.until(r"\\\$\\\(touch")
        zsh.send("\x15exit\r")
        zsh.ended()
    assert not (tmp_path / "pwned").exists()
