"""``cellgate packages``: packages of a session from the shell, from an index of tiny wheels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import serving
from tests.support.commands import cellgate, environment
from tests.support.server import TOKEN, GatewayProcess
from tests.support.wheels import Index, build_wheel

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Calls ``cellgate packages`` for a gateway that allows some packages."""
    folder = tmp_path_factory.mktemp("index")
    build_wheel(folder, "apple", "1.0")
    build_wheel(folder, "apple", "2.0")
    build_wheel(folder, "banana", requires=["apple<2"])
    index = Index(folder)
    data = tmp_path_factory.mktemp("packages") / "data"
    try:
        with serving(data, "process", packages=["apple", "banana"], package_index=index.url) as process:
            yield calling(process, folder)
    finally:
        index.close()


def calling(gateway: GatewayProcess, folder: Path) -> Call:
    variables = environment(CELLGATE_URL=gateway.url, CELLGATE_TOKEN=TOKEN, XDG_CONFIG_HOME=str(folder))
    return lambda *words: cellgate("packages", *words, env=variables, timeout=90)


def test_packages_are_installed_listed_upgraded_and_removed(call: Call) -> None:
    done = call("install", "fruit", "banana", "apple>=1")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        ["installed: apple 1.0", "installed: banana 1.0"],
    )
    lines = [line.split() for line in call("list", "fruit").stdout.splitlines()]
    assert lines == [["PACKAGE", "VERSION", "REQUESTED"], ["apple", "1.0", "yes"], ["banana", "1.0", "yes"]]
    assert [each["name"] for each in json.loads(call("list", "fruit", "--json").stdout)] == [
        "apple",
        "banana",
    ]
    assert call("install", "fruit", "apple").stdout == "Nothing to change: it is all there.\n"
    assert call("uninstall", "fruit", "banana").stdout == "removed: banana 1.0\n"
    assert set(call("install", "fruit", "apple", "--upgrade").stdout.splitlines()) == {
        "installed: apple 2.0",
        "removed: apple 1.0",
    }
    changes = json.loads(call("uninstall", "fruit", "apple", "--json").stdout)
    assert ([each["version"] for each in changes["removed"]], changes["packages"]) == (["2.0"], [])
    assert call("list", "fruit").stdout == "fruit has only the packages of its kernel's environment.\n"


def test_what_may_be_installed_is_listed_and_everything_else_refused(call: Call) -> None:
    assert call("allowed").stdout == "apple\nbanana\n"
    assert json.loads(call("allowed", "--json").stdout) == ["apple", "banana"]
    refused = call("install", "fruit", "cherry")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "cherry" in refused.stderr
    for words in ((), ("install", "fruit"), ("list",), ("allowed", "x"), ("remove", "fruit", "apple")):
        done = call(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words


def test_where_nothing_may_be_installed_it_says_what_would_allow_it(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    assert calling(gateway, tmp_path)("allowed").stdout == (
        "No packages may be installed; the operator allows some by --allow-package NAME.\n"
    )
