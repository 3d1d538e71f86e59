"""All of Cellgate in one container: the line of docs/how-to/run-one-container.md, as a user gives it."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterator

import pytest

from cellgate import Gateway
from tests.support.compose import DEPLOY
from tests.support.free_ports import free_port
from tests.support.one_image import docker_command
from tests.support.server import until

PAGE = DEPLOY.parent / "docs" / "how-to" / "run-one-container.md"
NAME = VOLUME = "cellgate-test-one"
TOKEN = secrets.token_hex(16)

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


def documented(port: int) -> list[str]:
    """The page's line with another port, name and volume, in the background."""
    (line,) = (each for each in PAGE.read_text().splitlines() if each.startswith("$ docker run --rm -it "))
    line = line.replace("deploy/seccomp.json", str(DEPLOY / "seccomp.json"))
    line = line.replace(":8888:8888", f":{port}:8888").replace("cellgate:/data", f"{VOLUME}:/data")
    return [word for word in shlex.split(line)[3:] if word not in ("--rm", "-it")]


def start(port: int, *left_out: str) -> None:
    """Start the container, without some of the line's words."""
    words = [word for word in documented(port) if word not in left_out]
    given = [f"--name={NAME}", "--detach", f"--env=CELLGATE_TOKEN={TOKEN}"]
    started = docker_command("run", *given, *words)
    assert started.returncode == 0, started.stderr


def wait_until_it_serves() -> None:
    ask = "import urllib.request as web; web.urlopen('http://127.0.0.1:8888/readyz', timeout=5)"
    until(lambda: docker_command("exec", NAME, "python3", "-c", ask).returncode == 0, "not ready", 120)


def said() -> str:
    """The container's output."""
    logs = docker_command("logs", NAME)
    return logs.stdout + logs.stderr


@pytest.fixture
def port(one_image: str) -> Iterator[int]:
    """One for a container, which is removed with its volume."""
    yield free_port()
    docker_command("rm", "--force", "--volumes", NAME)
    docker_command("volume", "rm", "--force", VOLUME)


def test_the_documented_line_serves_and_its_volume_keeps_the_record(port: int) -> None:
    start(port)
    wait_until_it_serves()
    assert f"serves at http://127.0.0.1:{8888}" in said()
    assert TOKEN not in said()
    link = docker_command("exec", NAME, "cellgate", "open")
    assert "ticket=" in link.stdout, link.stderr
    with Gateway.sync(f"http://127.0.0.1:{port}", TOKEN) as gateway:
        session = gateway.session("kept", checkpoint="auto")
        assert session.run("import pandas; x = 41").ok
        assert session.run("x += 1; x").text == "42"
        assert session.model().isolation == "sandbox"
        branch = session.branch()
        assert branch.run("x").text == "42"
        session.undo()
        assert session.run("x").text == "41"
        hidden = session.run("import os; os.path.exists('/data'), os.path.exists('/opt/gateway')")
        assert hidden.text == "(False, False)"
    stopped = docker_command("stop", "-t", "60", NAME)
    assert stopped.returncode == 0, stopped.stderr
    assert docker_command("inspect", "--format={{.State.ExitCode}}", NAME).stdout == "0\n", said()
    docker_command("rm", NAME)
    start(port)
    wait_until_it_serves()
    with Gateway.sync(f"http://127.0.0.1:{port}", TOKEN) as gateway:
        notebook = gateway.session("kept").notebook()
        assert "x += 1; x" in str(notebook)


@pytest.mark.parametrize("left_out", ["seccomp=" + str(DEPLOY / "seccomp.json"), "systempaths=unconfined"])
def test_without_one_of_the_options_it_says_which_to_give(port: int, left_out: str) -> None:
    words = documented(port)
    before = words.index(left_out) - 1
    assert words[before] == "--security-opt"
    del words[before : before + 2]
    done = docker_command("run", "--rm", f"--name={NAME}", *words)
    assert done.returncode == 1, done.stdout
    assert "--security-opt seccomp=deploy/seccomp.json --security-opt systempaths=unconfined" in done.stderr
