"""A setting that does not fit is refused by the name it was given by, with what is expected and given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from traitlets.utils.importstring import import_item

from cellgate.cli.base import BaseApp, UsageError
from cellgate.cli.main import CellgateApp, main
from cellgate.cli.serve.options import aliases_of, flags_of, is_given, read, traits_of
from cellgate.cli.serve.removed import REMOVED
from cellgate_kernels.base.options import BYTES, SECONDS, option, options_of
from cellgate_kernels.base.resources import MIB, parse_size, size_in_units
from tests.gateway.server.test_lifecycle import refusal


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """A setting of each kind, and a constant."""

    PREFIX: ClassVar[str] = "own_"

    port: int = option(1, "", least=0, most=65535, name="port")
    count: int = option(1, "", name="count")
    patience: float = option(1.5, "Seconds.", unit=SECONDS, least=0.5, name="timeout")
    share: float = option(1.0, "", name="share")
    kind: str = option("good", "", among=("good", "bad"), name="kind")
    loud: bool = option(False, "Whether.", name="loud")
    memory: int = option(1024 * MIB, "How much.", unit=BYTES, name="memory")
    space: int | None = option(None, "", unit=BYTES, name="bound")
    reserve: int = option(64 * MIB, "", unit=BYTES, least=0, name="reserve")
    title: str = option("", "", name="title")
    home: str = option("", "", not_empty=True, name="home")
    names: tuple[str, ...] = option((), "", name="names")
    words: frozenset[str] = option(frozenset(), "")
    half: int | None = option(None, "", absent=0)
    other: int | None = option(None, "", least=0)
    path: str = option("", "", absent="/")
    pause: float = 5.0


class DemoApp(BaseApp):
    """A command with these settings; some have options."""

    name = "cellgate-demo"
    description = "Demonstrates."
    vars().update(traits_of(DemoSettings))
    aliases: Any = {  # noqa: RUF012
        **aliases_of("DemoApp", "port", "share", "memory", "timeout", timeout="cell-timeout"),
        ("k", "kind"): "DemoApp.kind",
        **BaseApp.aliases,
    }
    flags: Any = flags_of("DemoApp", DemoSettings, "loud")


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
        ("--DemoApp.prot=1", "there is no setting --DemoApp.prot; did you mean port?"),
    ],
)
def test_an_option_says_what_is_wrong(word: str, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    """And nothing else is said, as traitlets does by itself."""
    assert said(word) == line
    assert capfd.readouterr() == ("", "")


def test_an_empty_place_is_not_taken_for_the_default() -> None:
    """An unset variable of the shell leaves one; an empty variable of the environment counts as absent."""
    assert said("--data-dir=") == "--data-dir is empty: give it a value, or leave it out"
    assert said("--data-dir", "") == "--data-dir is empty: give it a value, or leave it out"
    assert demo(CELLGATE_DATA_DIR="").data_dir == demo().data_dir
    assert demo("--DemoApp.title=").title == ""
    assert said("--DemoApp.home=") == "--DemoApp.home is empty: give it a value, or leave it out"
    places = {"data_dir", "url", "record", "cluster", "workspaces_shared", "principal", "file", "cell_hook"}
    commands = [import_item(path) for path, _ in CellgateApp.subcommands.values()]
    refused = {(klass, name) for klass in commands for name in klass.class_traits(not_empty=True)}
    assert refused == {(klass, name) for klass in commands for name in places & set(klass.class_traits())}


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
        ("--memory=9999999t", "--memory (9999999t) and --ServeApp.disk (1g) must be at most 1024t"),
        ("--cell-timeout=1e9", "--cell-timeout (1000000000) must be above 0 and at most 2592000 seconds"),
        ("--max-lifetime=1e9", "--max-lifetime (1000000000) must be above 0 and at most 2592000 seconds"),
        ("--ServeApp.package_cache=x", f"--ServeApp.package_cache {SIZE}, not 'x'"),
    ],
)
def test_a_gateway_that_can_t_be_started_so_says_why(tmp_path: Path, word: str, line: str) -> None:
    code, error = refusal("--backend=process", f"--data-dir={tmp_path / 'data'}", word)
    assert (code, error) == (2, f"cellgate: {line}\n")


def test_settings_that_nobody_gives_have_their_defaults() -> None:
    assert read(DemoSettings, demo()) == DemoSettings()
    assert not any(is_given(demo(), each.name) for each in options_of(DemoSettings))


@pytest.mark.parametrize(
    ("word", "given"),
    [
        ("--memory=2k", {"memory": 2048}),
        ("--DemoApp.names=x", {"names": ("x",)}),
        ("--DemoApp.own_words=x", {"words": frozenset({"x"})}),
        ("--DemoApp.bound=1g", {"space": 1024 * MIB}),
        ("--DemoApp.reserve=0", {"reserve": 0}),
        ("--DemoApp.own_half=0", {"half": None}),
        ("--DemoApp.own_half=3", {"half": 3}),
        ("--DemoApp.own_other=0", {"other": 0}),
        ("--cell-timeout=0.5", {"patience": 0.5}),
        ("--DemoApp.own_path=/", {"path": ""}),
        ("--DemoApp.own_path=/x", {"path": "/x"}),
        ("--kind=bad", {"kind": "bad"}),
        ("--loud", {"loud": True}),
    ],
)
def test_what_is_given_is_the_value_of_its_field(word: str, given: dict[str, Any]) -> None:
    assert read(DemoSettings, demo(word)) == DemoSettings(**given)


@pytest.mark.parametrize(("name", "near"), [("space", "share"), ("pause", None), ("own_pause", "own_path")])
def test_neither_fields_nor_constants_are_settings(name: str, near: str | None) -> None:
    hint = "" if near is None else f"; did you mean {near}?"
    assert said(f"--DemoApp.{name}=1") == f"there is no setting --DemoApp.{name}{hint}"


def test_a_field_that_is_none_is_refused() -> None:
    assert read(DemoSettings, demo(), pause=1.0).pause == 1.0
    with pytest.raises(TypeError, match="paws"):
        read(DemoSettings, demo(), paws=1.0)


def test_help_says_what_the_declaration_says() -> None:
    told = list(DemoApp(environment={}).emit_help())
    for heading, text in (
        ("  --memory SIZE                    CELLGATE_MEMORY", "      How much. Default: 1g."),
        ("  --cell-timeout SECONDS           CELLGATE_CELL_TIMEOUT", "      Seconds. Default: 1.5."),
        ("  --loud", "      Whether."),
    ):
        assert told[told.index(heading) + 1] == text


def test_sizes_are_shown_in_the_largest_unit_that_fits() -> None:
    for text in ("1", "1k", "1536", "64m", "3g", "1024t"):
        assert size_in_units(parse_size(text)) == text
    assert size_in_units(0) == "0"


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_what_became_a_constant_is_no_setting(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["serve", f"--ServeApp.{name}=1"]) == 2
    gone = f"there is no setting --ServeApp.{name}; it was removed: {REMOVED[name]}"
    assert capsys.readouterr().err == f"cellgate: {gone}\n"
    monkeypatch.setenv(f"CELLGATE__ServeApp__{name}", "1")
    assert main(["serve"]) == 2
    assert f"CELLGATE__ServeApp__{name}: no such setting" in capsys.readouterr().err
