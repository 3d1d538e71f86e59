"""A setting that does not fit is refused by the name it was given by, with what is expected and given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from traitlets import Bool, Enum, Float, HasTraits, Integer, List, Unicode

from cellgate.cli.base import BaseApp, UsageError
from cellgate.cli.main import CellgateApp, main
from cellgate.cli.setting_checks import Size, settings_of_kind
from tests.gateway.server.test_lifecycle import refusal


class DemoApp(BaseApp):
    """A setting of each kind; some have options."""

    name = "cellgate-demo"
    description = "Demonstrates."
    port = Integer(1, min=0, max=65535, help="").tag(config=True)
    count = Integer(1, help="").tag(config=True)
    timeout = Float(1.0, min=0.5, help="").tag(config=True)
    share = Float(1.0, help="").tag(config=True)
    kind = Enum(("good", "bad"), "good", help="").tag(config=True)
    loud = Bool(False, help="").tag(config=True)
    memory = Size("1g", help="").tag(config=True)
    bound = Size("", help="").tag(config=True)
    reserve = Size("64m", zero=True, help="").tag(config=True)
    title = Unicode(help="").tag(config=True)
    names = List(Unicode(), help="").tag(config=True)
    aliases: Any = {  # noqa: RUF012
        **{name: f"DemoApp.{name}" for name in ("port", "share", "memory")},
        ("k", "kind"): "DemoApp.kind",
        "cell-timeout": "DemoApp.timeout",
        **BaseApp.aliases,
    }
    flags: Any = {"loud": ({"DemoApp": {"loud": True}}, "")}  # noqa: RUF012


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def demo(*argv: str, **environment: str) -> DemoApp:
    app = DemoApp(environment=environment)
    app.initialize([*argv])
    return app


def said(*argv: str, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        demo(*argv, **environment)
    return caught.value.message


SIZE = "must be a size such as 512m or 1.5g"


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--port=abc", "--port must be a whole number from 0 to 65535, not 'abc'"),
        ("--port=-1", "--port must be a whole number from 0 to 65535, not -1"),
        ("--port=1.5", "--port must be a whole number from 0 to 65535, not '1.5'"),
        ("--DemoApp.port=abc", "--port must be a whole number from 0 to 65535, not 'abc'"),
        ("--DemoApp.count=x", "--DemoApp.count must be a whole number, not 'x'"),
        ("--cell-timeout=x", "--cell-timeout must be a number of at least 0.5, not 'x'"),
        ("--cell-timeout=0", "--cell-timeout must be a number of at least 0.5, not 0"),
        ("--cell-timeout=nan", "--cell-timeout must be a number of at least 0.5, not nan"),
        ("--share=inf", "--share must be a number, not inf"),
        ("--kind=ugly", "--kind must be one of good, bad, not 'ugly'"),
        ("--DemoApp.loud=perhaps", "--DemoApp.loud must be True or False, not 'perhaps'"),
        ("--loud=3", "--loud takes no value"),
        ("--memory=xyz", f"--memory {SIZE}, not 'xyz'"),
        ("--memory=0", f"--memory {SIZE}, not '0'"),
        ("--memory=", f"--memory {SIZE}, not ''"),
        ("--DemoApp.bound=x", f"--DemoApp.bound {SIZE}, not 'x'"),
        ("--DemoApp.reserve=-1", f"--DemoApp.reserve {SIZE}, or 0, not '-1'"),
        (
            "--log-level=loud",
            "--log-level must be one of debug, info, warn, warning, error, critical, not 'loud'",
        ),
        ("--memory=" + "9" * 200, f"--memory {SIZE}, not '{'9' * 59}…"),
        ("--DemoApp.prot=1", "there is no setting --DemoApp.prot"),
    ],
)
def test_an_option_says_what_is_wrong(word: str, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    """And nothing else is said, as traitlets does by itself."""
    assert said(word) == line
    assert capfd.readouterr() == ("", "")


def test_an_option_that_is_given_twice_says_so() -> None:
    assert said("--port", "1", "--port", "2") == "--port may be given only once"
    assert said("--kind=good", "--kind", "bad") == "--kind may be given only once"


def test_a_variable_is_named_as_it_was_given() -> None:
    expected = "must be a whole number from 0 to 65535, not 'abc'"
    assert said(CELLGATE_PORT="abc") == f"CELLGATE_PORT {expected}"
    assert said(CELLGATE__DemoApp__port="abc") == f"CELLGATE__DemoApp__port {expected}"
    assert said(CELLGATE_PORT="abc", CELLGATE__DemoApp__port="2") == f"CELLGATE_PORT {expected}"
    assert said(CELLGATE__DemoApp__memory="x") == f"CELLGATE__DemoApp__memory {SIZE}, not 'x'"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"DemoApp": {"prot": 1}}, "DemoApp.prot in {}: no such setting; did you mean port?"),
        ({"BaseApp": {"zzz": 1}}, "BaseApp.zzz in {}: no such setting"),
        ({"DemoApp": 3}, "DemoApp in {} must hold settings, such as DemoApp.NAME, not 3"),
    ],
)
def test_a_setting_of_a_file_that_is_not_there_is_refused(
    tmp_path: Path, content: dict[str, Any], line: str
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(content))
    assert said("--config", str(path)) == line.format(path)


def test_other_words_are_named_in_the_user_s_terms() -> None:
    assert said(CELLGATE__DemoApp__prot="1") == "CELLGATE__DemoApp__prot: no such setting; did you mean port?"
    assert said("--port") == "--port needs a value"
    assert said("word", "--loud", "more") == "unexpected argument 'more'"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"port": "abc"}, "DemoApp.port in {} must be a whole number from 0 to 65535, not 'abc'"),
        ({"port": [1, 2]}, "DemoApp.port in {} must be given once, not 2 times"),
        ({"title": 5}, "DemoApp.title in {} must be a text, not 5"),
        ({"names": "a"}, "DemoApp.names in {} must be a list of texts, not 'a'"),
        ({"memory": 1.5}, f"DemoApp.memory in {{}} {SIZE}, not 1.5"),
        ({"loud": None}, "DemoApp.loud in {} must be True or False, not None"),
    ],
)
def test_a_file_is_named_with_the_setting(tmp_path: Path, settings: dict[str, Any], line: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"DemoApp": settings, "AnotherApp": {"port": "for others"}}))
    assert said("--config", str(path)) == line.format(path)


def test_what_fits_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"DemoApp": {"memory": 1048576, "share": 2}}))
    app = demo(
        "--config", str(path), "--DemoApp.reserve=0", "--DemoApp.bound=", "--DemoApp.names=a", "--loud"
    )
    assert (app.memory, app.share, app.reserve, app.bound) == ("1048576", 2.0, "0", "")
    assert (app.names, app.loud) == (["a"], True)
    assert demo("--log-level", "debug").log_level == 10


@pytest.mark.parametrize("command", sorted(CellgateApp.subcommands))
def test_each_command_refuses_values_that_do_not_fit(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--log-level", "loud"]) == 2
    assert capsys.readouterr().err.startswith("cellgate: --log-level must be one of debug, ")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--port=abc", "--port must be a whole number from 0 to 65535, not 'abc'"),
        ("--max-memory=xyz", f"--max-memory {SIZE}, not 'xyz'"),
        ("--memory=1k", "--memory (1k) must be at least 64m: a kernel can't start with less"),
        ("--max-memory=1k", "--max-memory (1k) must be at least 64m: a kernel can't start with less"),
        ("--cpus=0.001", "--cpus (0.001) must be between 0.05 and 1024"),
        ("--ServeApp.pids=1", "--ServeApp.pids (1) must be between 16 and 1000000"),
        ("--max-pids=1", "--max-pids (1) must be between 16 and 1000000"),
        (
            "--memory=9999999t",
            "--memory (9999999t) and --ServeApp.disk (1g) must be at most 1024t",
        ),
        ("--cell-timeout=1e9", "--cell-timeout (1000000000) must be above 0 and at most 2592000 seconds"),
        ("--max-lifetime=1e9", "--max-lifetime (1000000000) must be above 0 and at most 2592000 seconds"),
        ("--ServeApp.package_cache=x", f"--ServeApp.package_cache {SIZE}, not 'x'"),
    ],
)
def test_a_gateway_that_can_t_be_started_so_says_why(tmp_path: Path, word: str, line: str) -> None:
    code, error = refusal("--backend=process", f"--data-dir={tmp_path / 'data'}", word)
    assert (code, error) == (2, f"cellgate: {line}\n")


@dataclass(frozen=True)
class Kind:
    """Settings of something."""

    memory: int
    names: tuple[str, ...] = ()
    space: int | None = 7
    reserve: int = 8
    other: str = "as it is"


class Options(HasTraits):
    """Options that are named as settings are, and one that is not."""

    memory = Size("1k").tag(config=True)
    names = List(Unicode(), ["a", "b"]).tag(config=True)
    space = Size("").tag(config=True)
    reserve = Size("64m", zero=True).tag(config=True)
    further = Unicode("none of it").tag(config=True)


def test_settings_are_made_of_the_options_of_their_names() -> None:
    assert settings_of_kind(Kind, Options()) == Kind(1024, ("a", "b"), 7, 64 * 1024 * 1024)
    assert settings_of_kind(Kind, Options(reserve="0", space="2k"), memory=5).reserve == 0
    assert settings_of_kind(Kind, Options(space="2k"), memory=5) == Kind(
        5, ("a", "b"), 2048, 64 * 1024 * 1024
    )
