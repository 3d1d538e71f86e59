"""The wheel as strangers install it: with the server, beside packages and files that bear the names of our
folders; and as a client alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from cellgate.console.assets import STATIC
from cellgate_kernels.specs import uv_command
from tests.conftest import StartGateway
from tests.support.requirements import require
from tests.support.server import TOKEN, GatewayProcess

pytestmark = pytest.mark.timeout(1200)
PATIENCE = 1000.0
"""Seconds for a wheel to be built, or an environment to be made, on a busy machine."""
PROJECT = Path(__file__).parents[3]
STRAY = "raise SystemExit('a stray module was imported')\n"
TOUR = """
import json
from pathlib import Path
import cellgate
from cellgate import Gateway, GatewayError, NotFound

with Gateway.sync({url!r}, {token!r}) as gateway:
    with gateway.session("tour") as session:
        print(session.run("x = 6 * 7; x").text)
        session.save_notebook("tour.ipynb")
    try:
        gateway.get_session("nobody")
    except GatewayError as error:
        print(type(error) is NotFound)
print(cellgate.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the archive of sources, as `uv build` does, and CONTRIBUTING says for releases."""
    folder = tmp_path_factory.mktemp("wheel")
    assert "`.venv/bin/uv build`" in (PROJECT / "CONTRIBUTING.md").read_text()
    run_uv("build", "--quiet", "--out-dir", folder, PROJECT)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """An environment that has the wheel with its server, and Hugging Face's package `kernels`."""
    return make_environment(wheel.parent / "server", f"{wheel}[server]", "kernels")


@pytest.fixture(scope="module")
def client(wheel: Path) -> Path:
    """An environment that has the wheel alone."""
    return make_environment(wheel.parent / "client", str(wheel))


def make_environment(environment: Path, *wanted: str) -> Path:
    run_uv("venv", "--quiet", "--python", sys.executable, environment)
    run_uv("pip", "install", "--quiet", "--python", environment / "bin" / "python", *wanted)
    return environment


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE, **options)


def run_uv(*arguments: str | Path) -> None:
    done = run(sys.executable, uv_command.__file__, *arguments)
    if done.returncode:
        require("packages", f"no wheel can be built or installed here: {done.stderr[-500:]}")


@pytest.fixture
def stray(tmp_path: Path) -> Path:
    """A user's folder with modules of the same names."""
    for name in ("gateway", "kernels"):
        (tmp_path / f"{name}.py").write_text(STRAY)
    return tmp_path


@pytest.mark.nightly
def test_the_tour_runs_from_the_wheel_beside_others_of_the_same_names(
    installed: Path, stray: Path, kernel_prefix: Path
) -> None:
    site = next(installed.glob("lib/python*/site-packages"))
    assert (site / "kernels" / "__init__.py").is_file()
    assert not (site / "gateway").exists()
    kernel_dirs = json.dumps([str(kernel_prefix / "kernels")])
    gateway = GatewayProcess(
        stray / "data", command=installed / "bin" / "cellgate", cwd=stray, kernel_dirs=kernel_dirs
    )
    try:
        script = TOUR.format(url=gateway.url, token=TOKEN)
        tour = run(installed / "bin" / "python", "-c", script, cwd=stray)
        assert tour.returncode == 0, tour.stderr
        assert tour.stdout.splitlines() == ["42", "True", str(site / "cellgate" / "__init__.py")]
        assert gateway.get("/", token=None).body == (STATIC / "index.html").read_bytes()
        assert files_below(site / "cellgate" / "console" / "static") == files_below(STATIC)
        env = {**os.environ, "CELLGATE_URL": gateway.url, "CELLGATE_TOKEN": TOKEN}
        told = run(installed / "bin" / "cellgate", "exec", "print('from the wheel')", cwd=stray, env=env)
        assert (told.returncode, told.stdout) == (0, "from the wheel\n"), told.stderr
        assert gateway.stop() == 0, gateway.log.read_text()
    finally:
        gateway.kill()


def test_the_client_alone_has_no_package_that_only_the_server_needs(client: Path) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    server = {Requirement(text).name.lower() for text in project["optional-dependencies"]["server"]}
    site = next(client.glob("lib/python*/site-packages"))
    found = {each.name.lower() for each in distributions(path=[str(site)])}
    assert {"cellgate", "httpcore2"} <= found
    # The client's HTTP has these two, too.
    assert found & server == {"h11", "idna"}


def test_the_client_alone_talks_to_a_gateway(
    client: Path, start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway()
    env = {**os.environ, "CELLGATE_URL": gateway.url, "CELLGATE_TOKEN": TOKEN}
    tour = run(client / "bin" / "python", "-c", TOUR.format(url=gateway.url, token=TOKEN), cwd=tmp_path)
    assert tour.returncode == 0, tour.stderr
    assert tour.stdout.splitlines()[:2] == ["42", "True"]

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return run(client / "bin" / "cellgate", *words, cwd=tmp_path, env=env)

    (tmp_path / "cells.py").write_text("print('a script')\n")
    (tmp_path / "cells.md").write_text("```python\nprint('a page')\n```\n")
    for words, told in [
        (("exec", "--session", "s", "print('a cell')"), "a cell\n"),
        (("run", "cells.py", "-o", "cells.ipynb"), "a script\n"),
        (("run", "cells.md"), "a page\n"),
        (("files", "put", "s", "cells.py"), ""),
        (("files", "ls", "s"), "cells.py"),
        (("sessions",), "s "),
        (("export", "s", "-o", "s.ipynb"), ""),
        (("verify", "s.ipynb"), "valid"),
        (("replay", "s.ipynb"), ""),
        (("completion", "bash"), "_python_argcomplete cellgate"),
    ]:
        done = command(*words)
        assert (done.returncode, told in done.stdout) == (0, True), (words, done.stdout, done.stderr)


@pytest.fixture
def newer(wheel: Path, tmp_path: Path) -> Path:
    """The wheel of the next version, made of the same sources."""
    (sources,) = wheel.parent.glob("*.tar.gz")
    shutil.unpack_archive(sources, tmp_path)
    (folder,) = tmp_path.glob("cellgate-*")
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.1.0"', 'version = "0.1.1"', 1))
    run_uv("build", "--quiet", "--wheel", "--out-dir", tmp_path / "newer", folder)
    (built,) = (tmp_path / "newer").glob("*.whl")
    return built


@pytest.mark.nightly
def test_an_upgrade_and_the_way_back(wheel: Path, newer: Path, tmp_path: Path, kernel_prefix: Path) -> None:
    """As the guide on deployment has it: stop, copy the data, install, start, check; and back by the copy."""
    environment, data, copy = tmp_path / "environment", tmp_path / "data", tmp_path / "data-before"
    make_environment(environment, f"{wheel}[server]")
    command = environment / "bin" / "cellgate"
    options = {"kernel_dirs": json.dumps([str(kernel_prefix / "kernels")])}

    def install(upgrade: Path) -> None:
        python = environment / "bin" / "python"
        run_uv("pip", "install", "--quiet", "--reinstall-package", "cellgate", "--python", python, upgrade)

    def called(*words: str) -> str:
        done = run(command, *words, "--data-dir", data, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def served() -> Iterator[GatewayProcess]:
        gateway = GatewayProcess(data, command=command, cwd=tmp_path, **options)
        try:
            yield gateway
            assert gateway.stop() == 0, gateway.log.read_text()
        finally:
            gateway.kill()

    with served() as gateway:
        assert gateway.get("/v1/info").json()["version"] == "0.1.0"
        gateway.execute("work", "x = 42; open('a.txt', 'w').write('kept')")
        before = gateway.result("work", gateway.execute("work", "print(x)")["execution"])
    shutil.copytree(data, copy, symlinks=True)
    install(newer)
    assert "valid" in called("verify")
    with served() as gateway:
        assert gateway.get("/v1/info").json()["version"] == "0.1.1"
        assert gateway.result("work", before["execution"]) == before
        after = gateway.execute("work", "print(open('a.txt').read(), 'x' in globals())")
        assert (after["stdout"], after["kernel"]["replaced"]) == ("kept False\n", True)
        assert after["kernel"]["cause"] == "gateway_shutdown"
    assert "valid" in called("verify")
    shutil.rmtree(data)
    copy.rename(data)
    install(wheel)
    with served() as gateway:
        assert gateway.get("/v1/info").json()["version"] == "0.1.0"
        assert gateway.execute("work", "print(open('a.txt').read())")["stdout"] == "kept\n"
        assert gateway.result("work", before["execution"]) == before


@pytest.mark.parametrize("command", ["serve", "setup", "image", "record"])
def test_what_needs_the_server_says_how_to_install_it(client: Path, tmp_path: Path, command: str) -> None:
    done = run(client / "bin" / "cellgate", command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cellgate {command} needs the server" in done.stderr
    assert "pip install 'cellgate[server]'" in done.stderr


def test_the_wheel_has_what_is_read_at_run_time(installed: Path) -> None:
    site = next(installed.glob("lib/python*/site-packages"))
    for name in (
        "Dockerfile.kernel",
        "bootstrap.py",
        "fonts.py",
        "manifest.py",
        "stills.js",
        "drawing/stills_dom.js",
        "standard.lock",
        "minimal.lock",
        "uv.txt",
    ):
        assert (site / "cellgate_kernels" / "inside" / name).is_file(), name
    for package in ("cellgate", "cellgate_kernels"):
        assert (site / package / "py.typed").is_file()
