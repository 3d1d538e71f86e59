"""Completion in real shells, against the commands that there are and local files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from traitlets.utils.importstring import import_item

from cellgate.cli.base import BaseApp
from cellgate.cli.completion_values import forms_of
from cellgate.cli.main import CellgateApp
from tests.support.commands import cellgate
from tests.support.requirements import require
from tests.support.terminal import Terminal

ASK = """
source {script}
COMP_LINE=$2 COMP_POINT=${{#2}} COMP_TYPE=9
_python_argcomplete cellgate
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def environment() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("CELLGATE_")}
    found["PATH"] = f"{Path(sys.executable).parent}:{found['PATH']}"
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
        (folder / name).write_text(cellgate("completion", name, env=environment()).stdout)
    return folder


def bash(scripts: Path, *words: str, folder: Path) -> list[str]:
    """What bash offers for the last of the words, as it would put that into the line."""
    ask = folder / "ask"
    ask.write_text(ASK.format(script=scripts / "bash"))
    command = [shell("bash"), str(ask), "-", " ".join(["cellgate", *words])]
    done = subprocess.run(
        command, env=environment(), cwd=folder, capture_output=True, timeout=60, check=True, text=True
    )
    assert done.stderr == ""
    return sorted(filter(None, (each.rstrip(" ") for each in done.stdout.split("\n"))))


def fish(scripts: Path, line: str, *, folder: Path) -> list[str]:
    """What fish offers at the end of the line."""
    code = f"source {scripts / 'fish'}; complete -C {line!r}"
    command = [shell("fish"), "--no-config", "-c", code]
    done = subprocess.run(
        command, env=environment(), cwd=folder, capture_output=True, timeout=60, check=True, text=True
    )
    return sorted(each.partition("\t")[0] for each in filter(None, done.stdout.split("\n")))


def offered(line: str, folder: Path) -> list[str]:
    """What the command offers at the end of the line to the scripts' function, which no shell calls here."""
    answer = folder / "offered"
    asking = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    cellgate(env=environment() | asking, cwd=folder)
    return sorted(filter(None, (each.rstrip(" ") for each in answer.read_text().split("\n"))))


def options_of(command: str) -> set[str]:
    """The options of a command, as its class says."""
    app: type[BaseApp] = import_item(CellgateApp.subcommands[command][0])
    names = [
        name
        for names in (*app.aliases, *app.flags)
        for name in ((names,) if isinstance(names, str) else names)
    ]
    return {"-" * min(2, len(name)) + name for name in names} | {"-h", "--help", "--help-all"}


def test_every_command_and_every_option_is_known(scripts: Path, tmp_path: Path) -> None:
    assert bash(scripts, "", folder=tmp_path) == sorted(CellgateApp.subcommands)
    assert bash(scripts, "-", folder=tmp_path) == ["--help", "--help-all", "--version", "-h"]
    assert fish(scripts, "cellgate ", folder=tmp_path) == sorted(CellgateApp.subcommands)
    assert bash(scripts, "verify", "-", folder=tmp_path) == offered("cellgate verify -", tmp_path)
    for command in CellgateApp.subcommands:
        known = {option for option in offered(f"cellgate {command} -", tmp_path) if "." not in option}
        assert known == options_of(command), command


def test_settings_without_an_option_are_known_by_their_class(scripts: Path, tmp_path: Path) -> None:
    assert "--ServeApp." in bash(scripts, "serve", "-", folder=tmp_path)
    assert bash(scripts, "serve", "--ServeApp.tls_", folder=tmp_path) == [
        "--ServeApp.tls_cert",
        "--ServeApp.tls_key",
    ]


def test_arguments_are_read_from_usage_lines() -> None:
    assert forms_of("a|b FILE|c [options]", ()) == {"a": [], "b": ["FILE"], "c": []}
    assert forms_of("[FILE.ipynb|BUNDLE.zip] [options]", ()) == {"": ["[FILE.ipynb|BUNDLE.zip]"]}
    assert forms_of("a|b ...", ("a SESSION [PATH]", "b")) == {"a": ["SESSION", "[PATH]"], "b": []}
    assert forms_of("[options]", ()) == {"": []}
    # An option that a form needs is no argument.
    assert forms_of("", ("set NAME --user USER", "run S -- PROGRAM...")) == {
        "set": ["NAME"],
        "run": ["S", "--", "PROGRAM..."],
    }


def test_values_actions_and_local_files(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "a file.ipynb").touch()
    (tmp_path / "folder").mkdir()
    expected = {
        ("exp",): ["export"],
        ("serve", "--back"): ["--backend"],
        ("serve", "--backend", ""): ["auto", "docker", "landlock", "process", "sandbox"],
        ("serve", "--log-level", "DEB"): ["DEBUG"],
        ("files", ""): ["get", "ls", "put", "rm"],
        ("serve", "--backend=s"): ["sandbox"],
        ("record", "res"): ["restore"],
        ("user", "role", "ada", "a"): ["admin", "auditor"],
        ("run", "a"): ["a\\ file.ipynb", "ask"],
        ("run", "--output", "a\\ f"): ["a\\ file.ipynb"],
        ("mcp", "--notebooks", ""): ["folder/"],
        ("exec", ""): [],
        ("console", ""): [],
        ("no-such-command", ""): [],
    }
    for words, offered in expected.items():
        assert bash(scripts, *words, folder=tmp_path) == offered, words
    assert fish(scripts, "cellgate serve --backend ", folder=tmp_path) == expected[("serve", "--backend", "")]
    assert fish(scripts, "cellgate files ", folder=tmp_path) == expected[("files", "")]
    assert fish(scripts, "cellgate run a", folder=tmp_path)[0] == "a file.ipynb"


def test_zsh_completes_in_a_terminal(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "$(touch pwned).ipynb").touch()
    with Terminal([shell("zsh"), "-f", "-i"], tmp_path, environment()) as zsh:
        zsh.send(f"autoload -Uz compinit; compinit -u -D; source {scripts / 'zsh'}; print set-up''-done\r")
        zsh.until("set-up-done")
        zsh.send("cellgate veri\t")
        zsh.until("cellgate verify")
        zsh.send("\t")
        zsh.until(r"\\\$\\\(touch")
        zsh.send("\x15exit\r")
        zsh.ended()
    assert not (tmp_path / "pwned").exists()
