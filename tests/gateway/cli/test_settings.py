"""Where settings come from and who wins; what a wrong command line answers."""

from __future__ import annotations

import json
import logging
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from traitlets import Bool, Enum, Float, Int, Integer, List, TraitType, Unicode
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from cellgate.cli.base import BaseApp, CommandApp, UsageError, environment_config
from cellgate.cli.main import CellgateApp, main
from cellgate.cli.run.run import RunApp
from cellgate.cli.serve.serve import ServeApp
from cellgate.client import GatewayError
from tests.support.commands import cellgate, environment


class DemoApp(BaseApp):
    """Stands for any command with an option of its own."""

    name = "cellgate-demo"
    description = "Demonstrates."
    port = Int(8888, help="The port.").tag(config=True, metavar="PORT")
    life = Float(2592000.0, help="How long.").tag(config=True)
    share = Float(0.0, help="How much; default: all.").tag(config=True)
    spare = Int(1, help="A setting without an option.").tag(config=True)
    names = List(Unicode(), help="Some names.").tag(config=True)
    aliases: Any = {  # noqa: RUF012
        "name": "DemoApp.names",
        ("p", "port"): "DemoApp.port",
        "life": "DemoApp.life",
        "share": "DemoApp.share",
        **BaseApp.aliases,
    }


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def demo(argv: list[str], environment: dict[str, str] | None = None) -> DemoApp:
    app = DemoApp(environment=environment or {})
    app.initialize(argv)
    return app


def config_file(folder: Path, text: str, name: str = "cellgate_config.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_the_default_holds_when_nothing_is_set() -> None:
    assert demo([]).port == 8888


def test_the_command_line_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    path = config_file(tmp_path, "c.DemoApp.port = 1\nc.DemoApp.spare = 5")
    file = ["--config", str(path)]
    assert demo(file).port == 1
    assert demo(file, {"CELLGATE_PORT": "2"}).port == 2
    app = demo([*file, "--port", "3"], {"CELLGATE_PORT": "2"})
    assert (app.port, app.spare) == (3, 5)


def test_every_spelling_of_an_option_counts() -> None:
    for argv in (["--port=3"], ["--port", "3"], ["-p", "3"], ["--DemoApp.port=3"]):
        assert demo(argv).port == 3


def test_the_configuration_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = config_file(tmp_path, json.dumps({"DemoApp": {"port": 4}}), "other.json")
    assert demo([], {"CELLGATE_CONFIG": str(path)}).port == 4


def test_the_configuration_folder_of_the_user_is_looked_into(tmp_path: Path) -> None:
    config_file(tmp_path / "config" / "cellgate", "c.DemoApp.port = 6")
    assert demo([]).port == 6


def test_variables_of_traits_of_options_and_of_lists() -> None:
    environment = {"CELLGATE__DemoApp__spare": "7", "CELLGATE__Other__x": "1", "CELLGATE__odd": "1"}
    assert demo([], environment).spare == 7
    # An option's own wins over the long one.
    assert demo([], {"CELLGATE__DemoApp__port": "1", "CELLGATE_PORT": "2"}).port == 2
    # A list is an option again and again, or a variable with commas.
    assert demo(["--name", "a", "--name=b"]).names == ["a", "b"]
    assert demo([], {"CELLGATE_NAME": "a,b"}).names == ["a", "b"]
    assert demo(["--name", "c"], {"CELLGATE_NAME": "a,b"}).names == ["c"]
    # An empty variable counts as absent.
    assert demo([], {"CELLGATE_PORT": ""}).port == 8888
    assert environment_config({"CELLGATE_PORT": ""}, {"port": "DemoApp.port"}) == Config()


def another(trait: TraitType[Any, Any], default: Any) -> tuple[str, Any]:
    """A value of a setting that is not its default: as a variable has it, and as it is then."""
    if isinstance(trait, Bool):
        return str(not default).lower(), not default
    if trait.name == "log_level":
        return "debug", logging.DEBUG
    if isinstance(trait, Enum):
        value = next(each for each in trait.values or () if isinstance(each, str) and each != default)
        return value, value
    if isinstance(trait, Integer):
        return "7", 7
    if isinstance(trait, Float):
        return "2.5", 2.5
    if isinstance(trait, List):
        return "one,two", ["one", "two"]
    return "512m", "512m"


OWN = {
    name: trait
    for name, trait in ServeApp.class_traits(config=True).items()
    if trait.this_class.__module__.startswith("cellgate.") and name != "config_file"
}
"""Every setting of the gateway, but that of where others are read from."""


@pytest.mark.parametrize("name", OWN)
def test_each_setting_of_the_gateway_has_a_variable(name: str) -> None:
    text, value = another(OWN[name], getattr(ServeApp(), name))
    app = ServeApp(environment={f"CELLGATE_{name.upper()}": text})
    app.initialize([])
    assert getattr(app, name) == value
    app = ServeApp(environment={f"CELLGATE_{name.upper()}": ""})
    app.initialize([])
    assert getattr(app, name) == getattr(ServeApp(), name)


def test_an_options_own_variable_counts_before_that_of_its_setting() -> None:
    app = ServeApp(environment={"CELLGATE_ALLOWED_HOSTS": "a", "CELLGATE_ALLOW_HOST": "b,c"})
    app.initialize([])
    assert app.allowed_hosts == ["b", "c"]
    # Commands that have few settings, whose names mean something else elsewhere, are told by options alone.
    assert demo([], {"CELLGATE_SPARE": "7"}).spare == 1


def test_a_wrong_value_of_a_variable_names_it() -> None:
    app = ServeApp(environment={"CELLGATE_KEEP_KERNELS": "perhaps"})
    with pytest.raises(UsageError, match=r"^CELLGATE_KEEP_KERNELS "):
        app.initialize([])


def test_the_log_level_is_taken_in_any_case() -> None:
    assert demo(["--log-level", "debug"]).log_level == 10


@pytest.mark.parametrize(
    ("argv", "environment", "part"),
    [
        (["--prot", "1"], {}, "there is no option --prot; did you mean --port?"),
        (["--prot=1"], {}, "there is no option --prot; did you mean --port?"),
        (["--zzz"], {}, "there is no option --zzz"),
        (["-z"], {}, "there is no option -z"),
        (["--port"], {}, "--port needs a value"),
        (["--port", "many"], {}, "many"),
        (["--por", "1"], {}, "there is no option --por"),
        (["--DemoApp.prot=1"], {}, "there is no setting --DemoApp.prot"),
        (["--Nothing.port=1"], {}, "there is no setting --Nothing.port"),
        (["--DemoApp.port.x=1"], {}, "there is no setting --DemoApp.port.x"),
        (["--DemoApp.port.x.y", "1"], {}, "there is no setting --DemoApp.port.x.y"),
        (["--port.x=1"], {}, "there is no setting --port.x"),
        (["--log-level", "loud"], {}, "--log-level"),
        ([], {"CELLGATE_PORT": "many"}, "many"),
        (["--config", "/nowhere/x.py"], {}, "there is no configuration file /nowhere/x.py"),
        (["--config", "/etc/passwd"], {}, "must end in .py or .json"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    argv: list[str], environment: dict[str, str], part: str
) -> None:
    with pytest.raises(UsageError) as caught:
        demo(argv, environment)
    assert part in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("c.py", "1 / 0", "ZeroDivisionError"),
        ("c.py", "c.DemoApp.port = 'many'", "many"),
        ("c.py", "def", "SyntaxError"),
        ("c.json", "{", "JSONDecodeError"),
    ],
)
def test_a_broken_configuration_file_is_one_line(tmp_path: Path, name: str, text: str, part: str) -> None:
    path = config_file(tmp_path, text, name)
    with pytest.raises(UsageError, match=part) as caught:
        demo(["--config", str(path)])
    assert "\n" not in caught.value.message


def test_help_shows_options_variables_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        demo(["--help"])
    text = capsys.readouterr().out
    assert left.value.code == 0
    for part in (
        "Usage: cellgate demo",
        "-p, --port PORT",
        "CELLGATE_PORT",
        "Default: 8888.",
        "Default: 2592000.",
        "default: all.\n",
        "Demonstrates.",
    ):
        assert part in text


@pytest.mark.parametrize("command", ["setup", "run", "export", "sessions"])
@pytest.mark.parametrize("option", ["--help", "--help-all", "-h"])
def test_every_command_explains_itself(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, option])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "Examples\n  cellgate " in text
    assert "CELLGATE_" in text or option == "--help-all"


def test_the_main_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in CellgateApp.subcommands)


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2
    assert "Usage: cellgate COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["expotr"], "there is no command 'expotr'; did you mean export?"),
        (["help", "rnu"], "there is no command 'rnu'; did you mean run?"),
        (["zzz"], "there is no command 'zzz'; see cellgate --help"),
        (["version"], "there is no command 'version'; did you mean --version?"),
        (["--bogus", "run"], "there is no option --bogus"),
        (["--doors", "all"], "there is no option --doors; did you mean cellgate serve --doors?"),
        (["--no-auth"], "there is no option --no-auth; did you mean cellgate serve --no-auth?"),
        (["--RunApp.url=x", "run"], "the command comes first, then its options; see cellgate --help"),
        (["run"], "FILE is missing: cellgate run FILE [options] [-- ARGUMENT...]"),
        (["run", "a.py", "b.py"], "unexpected argument 'b.py': cellgate run FILE [options] [-- ARGUMENT...]"),
        (["sessions", "-o", "x"], "there is no option -o"),
        (["exec", "-c", "1"], "there is no option -c; CODE stands alone: cellgate exec CODE"),
        (["exec", "-s", "a", "1"], "there is no option -s; did you mean --session?"),
        (["exec", "-t", "5", "1"], "there is no option -t; did you mean --timeout or --token?"),
        (
            ["exec", "--file", "a.py"],
            "there is no option --file; a file is for another command: cellgate run FILE",
        ),
        (["run", "-f", "a.py"], "there is no option -f; FILE stands alone: cellgate run FILE"),
        (["run", "a.py", "-c", "x"], "there is no option -c; put -- before what is for a.py itself"),
        (
            ["run", "print(1)"],
            "print(1) is no file here; code is for another command: cellgate exec 'print(1)'",
        ),
        (
            ["run", "x = " + "1 + " * 200 + "1"],
            (f"x = {'1 + ' * 14}... is no file here; code is for another command: cellgate exec CODE"),
        ),
        (["run", "my (1) analysis.ipynb"], "my (1) analysis.ipynb can't be read: No such file or directory"),
        (["export", "a", "--format", "html"], "there is no option --format; did you mean --to?"),
        (["-c", "print(1)"], "there is no option -c; cellgate exec CODE runs code"),
        (["-v"], "there is no option -v; did you mean --version?"),
        (["exec", "--out", "x", "1"], "there is no option --out"),
        (
            ["process", "end", "s", "p", "--ProcessApp.json=True"],
            ("--json is an option of cellgate process run, start, ls and watch, and end does not have it"),
        ),
        (["files", "get", "s", "a", "b", "-o", "x"], "--output is the FILE of get, which is given once"),
        (["run", "--tiemout", "1"], "there is no option --tiemout; did you mean --timeout?"),
        (
            ["serve", "--transport", "tcp"],
            "there is no option --transport; it was removed: kernels are reached by Unix sockets only",
        ),
        (
            ["serve", "--ServeApp.data_cap=1"],
            "there is no setting --ServeApp.data_cap; it was removed: it is always 50 MiB",
        ),
        (["serve", "--ServeApp.prot=1"], "there is no setting --ServeApp.prot; did you mean port?"),
        (["serve", "--SevreApp.port=1"], "there is no setting --SevreApp.port; did you mean ServeApp?"),
        (["run", "a.txt"], "a.txt: only .ipynb, .py and .md files can be run"),
        (["run", "absent.py"], "absent.py can't be read: No such file or directory"),
        (["run", "absent.py", "-o", "A.HTML"], "absent.py can't be read: No such file or directory"),
        (["replay", "absent.ipynb", "-o", "A.JSON"], "absent.ipynb can't be read: No such file or directory"),
        (["run", "a.py", "--timeout", "0"], "--timeout must be a number of seconds above 0, not 0"),
        (["run", "a.py", "--timeout", "inf"], "--timeout must be a number of seconds above 0, not inf"),
        (
            ["run", "a.py", "-o", "out.txt"],
            "--output out.txt: a notebook's name ends in .ipynb, a page's in .html",
        ),
        (["run", "a.py", "-o", "no/x.ipynb"], "--output no/x.ipynb: there is no folder no"),
        (["export"], "SESSION is missing: cellgate export SESSION [options]"),
        (["export", ""], "a session's name can't be empty"),
        (
            ["export", "s", "-o", "-"],
            "- is no name of a file, and nothing goes to stdout: name one, such as ./-",
        ),
        (
            ["export", "s", "-o", "s.pdf"],
            (
                "--output s.pdf: a notebook's name ends in .ipynb, a page's in .html, Markdown's"
                " in .md, a script's in .py, a bundle's in .zip; else --to says what to write"
            ),
        ),
        (
            ["export", "s", "--bundle", "-o", "s.ipynb"],
            "--output s.ipynb: a bundle's name ends in .zip; or leave out --bundle",
        ),
        (
            ["export", "s", "--bundle", "--to", "html"],
            "a bundle has the notebook as .ipynb; leave out --bundle or --to",
        ),
        (
            ["export", "s", "-o", "s.zip", "--no-outputs"],
            "a bundle always has the outputs; leave out --no-outputs",
        ),
        (["sessions", "x"], "unexpected argument 'x': cellgate sessions [options]"),
        (["sessions", "--url", "ftp://x"], "'ftp://x' is not a gateway's URL, such as http://127.0.0.1:8888"),
        (
            ["sessions", "--url", f"http://{'x' * 70}.de"],
            f"'http://{'x' * 70}.de' is not a gateway's URL: its name can't be one",
        ),
        (["setup", "--environment", "large"], "--environment must be one of standard, minimal, not 'large'"),
        (["user"], "usage: cellgate user add|list|role|disable|enable|remove [NAME] | migrate [options]"),
        (["token", "ls"], "cellgate token does not know 'ls'; did you mean list?"),
        (["user", "delete", "alice"], "cellgate user does not know 'delete'; did you mean remove?"),
        (["session", "search", "x"], "cellgate session does not know 'search'; did you mean ls?"),
        (["record", "key", "rotate"], "what key does is an option: cellgate record key --rotate"),
        (["session", "delete", "s"], "cellgate session does not know 'delete'; did you mean end?"),
        (["files", "upload", "s", "x"], "cellgate files does not know 'upload'; did you mean put?"),
        (["token", "create", "alice"], "usage: cellgate token create --user USER"),
        (["secret", "set", "KEY", "value"], "usage: cellgate secret set NAME --user USER"),
        (["verify", "."], ". is a folder; a data folder's record: cellgate verify --data-dir ."),
        (["completion"], "usage: cellgate completion bash|zsh|fish [options]"),
        (["record", "stats", "x"], "usage: cellgate record stats"),
        (["record", "backup"], "usage: cellgate record backup FILE|FOLDER"),
        (["record", "restor", "x"], "cellgate record does not know 'restor'; did you mean restore?"),
        (["sessions", "--token", "a b"], "the token holds characters that no token has"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err == f"cellgate: {line}\n"
    assert captured.out == ""


def test_another_database_is_no_record_that_is_not_valid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    backup = tmp_path / "monday.sqlite3"
    with closing(sqlite3.connect(backup)) as db:
        db.execute("CREATE TABLE t (n)")
        db.commit()
    assert main(["verify", str(backup)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"cellgate: {backup} is a database of SQLite, but no record\n"


def test_a_data_folder_without_a_gateway_is_named(
    capsys: pytest.CaptureFixture[str], free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is a guess then, and who has mistyped the folder would look for a mistake in it."""
    monkeypatch.setattr(CommandApp, "address", lambda _: f"http://127.0.0.1:{free_port}")
    monkeypatch.chdir(tmp_path)
    for words, folder in ((("--data-dir", "d5"), tmp_path / "d5"), ((), BaseApp(environment={}).data_path)):
        assert main(["sessions", *words]) == 2
        error = capsys.readouterr().err
        assert "Connection refused" in error
        assert "`cellgate serve`" in error
        assert f" There is no {folder}/gateway.json; one that serves with another" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["run", "tuor.ipynb"], "tuor.ipynb can't be read: No such file or directory"),
        (["replay", "tuor.ipynb"], "tuor.ipynb can't be read: No such file or directory"),
        (["verify", "tuor.ipynb"], "tuor.ipynb can't be read: No such file or directory"),
        (["run", "a.py", "--with", "tuor.ipynb"], "--with tuor.ipynb: there is no such file"),
        (["setup", "--requirements", "tuor.ipynb"], "--requirements: there is no file tuor.ipynb"),
    ],
)
def test_a_file_of_a_name_much_like_it_is_suggested(
    words: list[str], missing: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "the tour.ipynb").touch()
    assert main(words) == 2
    assert capsys.readouterr().err == f"cellgate: {missing}; did you mean 'the tour.ipynb'?\n"


@pytest.mark.parametrize(
    ("file", "token", "said"),
    [
        (
            "own",
            "wrong-token",
            "Wrong: {url} was sent that of --token or CELLGATE_TOKEN; without it, that in {file} is taken",
        ),
        (None, "wrong-token", "Wrong: {url} was sent that of --token or CELLGATE_TOKEN"),
        ("own", "", "Wrong: {url} was sent that in {file}; give CELLGATE_TOKEN"),
        (
            "other",
            "",
            "{url} wants a token, and this command has none: set CELLGATE_TOKEN. {file} is for another",
        ),
        (
            None,
            "",
            "{url} wants a token, and this command has none: set CELLGATE_TOKEN. {file} is not there; one",
        ),
    ],
)
def test_a_refused_token_is_told_from_none(file: str | None, token: str, said: str, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    running = {"url": url if file == "own" else "http://127.0.0.1:10", "token": "secret", "pid": 1}
    if file is not None:
        (tmp_path / "gateway.json").write_text(json.dumps(running))
    app = RunApp(environment={"CELLGATE_TOKEN": token})
    app.initialize(["x.py", "--data-dir", str(tmp_path), "--url", url])
    told = app._explained(GatewayError(401, "not_authenticated", "Wrong"))
    assert told.startswith(said.format(url=url, file=tmp_path / "gateway.json"))
    assert "secret" not in told


def test_a_command_to_paste_is_for_the_same_gateway() -> None:
    app = RunApp(environment={"CELLGATE_URL": "http://a.example", "CELLGATE_TOKEN": "secret"})
    app.initialize(["x.py", "--data-dir", "my data", "--token", "secret"])
    assert app.pasted("export", "a~b") == "cellgate export 'a~b' --data-dir 'my data'"


def test_the_running_gateway_gives_url_and_token_and_no_other_gets_it(
    tmp_path: Path, seen: Callable[[CommandApp], Any]
) -> None:
    own = "http://127.0.0.1:9"
    (tmp_path / "gateway.json").write_text(f'{{"url": "{own}", "token": "secret", "pid": 1}}')
    cases = {(): own, ("--url", f"{own}/v1/"): own, ("--url", "http://example.org"): "http://example.org"}
    for words, url in cases.items():
        app = RunApp(environment={})
        app.initialize(["x.py", "--data-dir", str(tmp_path), *words])
        assert seen(app) == (url, "Bearer secret" if url == own else None)
    app = RunApp(environment={"CELLGATE_TOKEN": "t"})
    app.initialize(["x.py"])
    assert seen(app) == ("http://127.0.0.1:8888", "Bearer t")


def test_an_unreadable_gateway_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gateway.json").write_text("{")
    assert main(["sessions", "--data-dir", str(tmp_path)]) == 2
    assert str(tmp_path / "gateway.json") in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "--config", "LONG.py"],
        ["setup", "--requirements", "LONG"],
        ["record", "backup", "LONG"],
        ["serve", "--data-dir", "LONG"],
        ["sessions", "--data-dir", "LONG"],
        ["verify", "LONG"],
        ["run", "LONG.ipynb"],
        ["replay", "LONG.ipynb"],
    ],
)
def test_a_path_that_can_t_be_looked_at_is_one_line(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As one in a folder that the user may not search; a name that is too long is so for root too."""
    path = f"{tmp_path}/{'x' * 300}"
    assert main([word.replace("LONG", path) for word in words]) in (1, 2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("cellgate: ")
    assert path in said
    assert "File name too long" in said
    assert "[Errno" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["doctor", "--data-dir", "~nobody-here/x"],
        ["serve", "--config", "~nobody-here/x"],
        ["verify", "~nobody-here/x"],
        ["record", "restore", "~nobody-here/x"],
        ["setup", "--requirements", "~nobody-here/x"],
        ["image", "build", "--requirements", "~nobody-here/x"],
        ["files", "put", "work", "~nobody-here/x"],
        ["sessions", "--ca-file", "~nobody-here/x"],
        ["serve", "--tls-cert", "~nobody-here/x", "--tls-key", "~nobody-here/x"],
        [
            "serve",
            "--oidc-issuer",
            "https://id.example",
            "--oidc-audience",
            "a",
            "--oidc-jwks",
            "~nobody-here/x",
        ],
    ],
)
def test_a_home_folder_of_nobody_is_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELLGATE_DATA_DIR", str(tmp_path))
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "cellgate: ~nobody-here/x: this home folder is not known; give the whole path"
    )


def test_a_user_without_a_home_names_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container with a user of its own number."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "CELLGATE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert main(["verify"]) == 2
    said = "cellgate: your home folder is not known: set HOME, or give --data-dir DIR\n"
    assert capsys.readouterr().err == said
    assert main(["verify", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"cellgate: There is no record at {tmp_path}/record.sqlite3\n"


@pytest.mark.parametrize("words", [["serve", "--backend", "docker"], ["image", "check"]])
@pytest.mark.parametrize("url", ["tcp://localhost:abc", "http://[::1"])
def test_an_engine_s_url_that_is_none_is_one_line(
    tmp_path: Path, words: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data-dir", str(tmp_path)]
    assert main([*words, "--docker-url", url, *data]) == 1
    assert (
        capsys.readouterr().err
        == f"cellgate: No Docker engine answers at {url}. Is it installed, and running?\n"
    )


def test_an_address_to_listen_on_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{'x' * 70}.example"
    assert main(["serve", "--ip", name, "--port", "0", "--data-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"cellgate: Can't listen on {name}: that is no address. Choose another with --ip"


def test_an_address_of_another_machine_is_said_to_be_one(tmp_path: Path) -> None:
    done = cellgate("serve", "--ip", "192.0.2.1", "--port", "0", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("cellgate: Can't listen on 192.0.2.1: that is no address of this machine.")
    assert "--ip" in said


def test_a_port_that_is_taken_is_no_dead_end(tmp_path: Path, free_port: int) -> None:
    with closing(socket.create_server(("127.0.0.1", free_port))):
        done = cellgate("serve", "--port", str(free_port), "--data-dir", str(tmp_path))
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"cellgate: Can't listen on 127.0.0.1:{free_port}: Address already in use.")
    assert "such as JupyterLab" in said
    assert "another port with --port" in said


def test_folders_of_the_settings_are_absolute_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installs, for one, are programs in folders of their own."""
    monkeypatch.chdir(tmp_path)
    app = ServeApp(environment={"CELLGATE_DATA_DIR": "data"})
    app.initialize(["--ServeApp.package_links=wheels", "--ServeApp.package_links=https://example.org/x"])
    assert app.data_path == tmp_path / "data"
    assert app.package_settings({}).links == (str(tmp_path / "wheels"), "https://example.org/x")


def test_the_command_line_starts_without_the_server_s_and_the_client_s_libraries() -> None:
    """Help and errors are quick because these are imported by the commands that need them."""
    heavy = {"asyncio", "nbformat", "packaging", "rich", "tornado", "zmq"}
    code = f"import cellgate.cli.main, sys\nprint({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.fixture
def seen() -> Callable[[CommandApp], Any]:
    """What a command's client would use: the URL and the Authorization header."""

    def read(app: CommandApp) -> Any:
        server = app.gateway()._calls._server
        return server.url, server._headers.get("Authorization")

    return read


def setting_classes() -> set[str]:
    """The classes of all commands, and all that they have settings of."""
    commands = [import_item(path) for path, _ in CellgateApp.subcommands.values()]
    return {each.__name__ for command in commands for each in command.__mro__ if issubclass(each, BaseApp)}


def test_every_class_of_settings_is_known() -> None:
    assert CellgateApp().classes_of_settings() == setting_classes() - {"BaseApp"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c.ServApp.port = 9100", "ServApp.port in {}: no command has such settings; did you mean ServeApp?"),
        ("c.Zzz.port = 9100", "Zzz.port in {}: no command has such settings"),
        ("c.port = 9100", "port in {} must be of a command, such as ServeApp.port"),
    ],
)
def test_a_class_that_is_none_is_refused_by_every_command(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path, text)
    for command in (["sessions"], ["serve"], ["exec", "1"]):
        assert main([*command, "--config", str(path)]) == 2
        assert capsys.readouterr().err == f"cellgate: {said.format(path)}\n"


def test_a_variable_of_a_class_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELLGATE__ServApp__port", "9100")
    assert main(["sessions"]) == 2
    said = "CELLGATE__ServApp__port: no command has such settings; did you mean ServeApp?"
    assert capsys.readouterr().err == f"cellgate: {said}\n"


def test_settings_of_other_commands_and_of_what_they_share_are_none_of_ours(tmp_path: Path) -> None:
    lines = [f"c.{name}.x = 1" for name in sorted(setting_classes() - {"BaseApp", "CommandApp", "OpenApp"})]
    path = config_file(tmp_path, "\n".join(lines))
    app = CellgateApp(environment={})
    app.initialize(["open", "--config", str(path)])
    assert isinstance(app.subapp, CommandApp)


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("files", ["put SESSION FILE [PATH] [options]", "get SESSION PATH [FILE] [options]"]),
        ("process", ["run SESSION [options] -- PROGRAM...", "ls SESSION [options]"]),
        ("record", ["stats [options]", "backup FILE|FOLDER [options]"]),
        ("image", ["build [options]", "check [options]"]),
        ("secret", ["set NAME --user USER [options]", "list --user USER [options]"]),
        ("token", ["create --user USER [options]", "revoke ID [options]"]),
        ("user", ["role NAME user|admin|auditor [options]"]),
    ],
)
def test_help_has_a_usage_line_for_each_verb(
    command: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out.partition("\n\n")[0]
    assert text.startswith(f"Usage: cellgate {command} ")
    found = [line.removeprefix("Usage:").strip() for line in text.splitlines()]
    assert {f"cellgate {command} {line}" for line in lines} <= set(found)


def test_every_command_with_verbs_has_a_usage_line_for_each() -> None:
    """A usage that lists verbs has all of them as forms, so none is left out of the help."""
    for path, _ in CellgateApp.subcommands.values():
        command = import_item(path)
        verbs = getattr(command, "actions", None)
        if verbs is not None or "|" in command.usage.partition(" ")[0]:
            first = {form.partition(" ")[0] for form in command.forms}
            assert first == set(verbs or first), path
            assert command.forms or command.__name__ in {"CompletionApp", "ReplayApp", "VerifyApp"}, path


WITH_ACTIONS = ("record", "files", "packages", "process", "session", "user", "token", "secret", "image")


@pytest.mark.parametrize("name", WITH_ACTIONS)
def test_an_option_that_an_action_does_not_have_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is done, and whatever else is said; all that no action is said to lack is for all."""
    command = import_item(CellgateApp.subcommands[name][0])
    actions = {form.split()[0]: form.partition(" --")[0].split()[1:] for form in command.forms}
    options = {target.partition(".")[2]: names for names, target in command.aliases.items()}
    switches = {next(iter(one)): names for names, (of, _) in command.flags.items() for one in of.values()}
    assert command.options_of_some.keys() <= (options | switches).keys()
    refusals = 0
    for setting, having in command.options_of_some.items():
        names = (options | switches)[setting]
        option = f"--{names if isinstance(names, str) else names[-1]}"
        numbers = {"after", "cell_time", "idle_time", "keep", "seed", "timeout"}
        value = {"role": "admin", "on_idle": "end"}.get(setting, "1" if setting in numbers else "minimal")
        assert set(having.split()) < actions.keys()
        for action in actions.keys() - set(having.split()):
            words = [name, action, *actions[action], option, *([value] if setting in options else [])]
            assert main(words) == 2
            told = capsys.readouterr().err
            assert told.startswith(f"cellgate: {option} is an option of cellgate {name} "), words
            assert told.endswith(f", and {action} does not have it\n")
            refusals += 1
    assert refusals


def test_what_the_environment_says_is_for_all_actions_of_a_command() -> None:
    for words in (("add", "ann"), ("disable", "ann"), ("list",)):
        done = cellgate("user", *words, env=environment(CELLGATE_ROLE="auditor"))
        assert (done.returncode, done.stderr) == (0, "")
    assert "auditor" in done.stdout
