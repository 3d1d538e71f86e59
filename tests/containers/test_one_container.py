"""All of Cellgate in one container: the line of docs/how-to/run-one-container.md, as a user gives it."""

from __future__ import annotations

import secrets
import shlex
import urllib.request
from collections.abc import Iterator

import pytest
from docker.api.client import APIClient

from cellgate import Gateway
from tests.support.compose import DEPLOY, composed
from tests.support.free_ports import free_port
from tests.support.one_image import IMAGE, docker_command
from tests.support.server import until

ADVICE = "--security-opt seccomp=deploy/seccomp.json --security-opt systempaths=unconfined"
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
def test_without_one_of_the_options_kernels_are_behind_landlock(port: int, left_out: str) -> None:
    words = documented(port)
    before = words.index(left_out) - 1
    assert words[before] == "--security-opt"
    del words[before : before + 2]
    given = [f"--name={NAME}", "--detach", f"--env=CELLGATE_TOKEN={TOKEN}"]
    assert docker_command("run", *given, *words).returncode == 0
    wait_until_it_serves()
    assert ADVICE in " ".join(said().split())
    kernels_are_behind_landlock(port)


def test_a_sandbox_that_is_asked_for_and_can_not_be_is_no_start(port: int) -> None:
    done = docker_command("run", "--rm", f"--name={NAME}", "--env=CELLGATE_BACKEND=sandbox", IMAGE)
    assert done.returncode == 1, done.stdout
    assert ADVICE in done.stderr


def test_compose_serves_one_service(client: APIClient, one_image: str) -> None:
    port = free_port()
    settings = {"CELLGATE_TOKEN": TOKEN, "CELLGATE_PORT": str(port)}
    with composed(client, "cellgate-test-one", DEPLOY / "compose-one.yaml", settings) as compose:
        compose("up", "--detach")
        try:
            until(lambda: readyz(port) == 200, "not ready", 120)
            kernels_are_behind_landlock(port)
        finally:
            compose("down", "--volumes")


def readyz(port: int) -> int:
    """The status of the answer; 0 while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return int(answer.status)
    except OSError:
        return 0


def kernels_are_behind_landlock(port: int) -> None:
    """A session works, says how it is isolated, and sees nothing of the gateway."""
    with Gateway.sync(f"http://127.0.0.1:{port}", TOKEN) as gateway:
        info = gateway.info()
        assert info.isolation == "landlock"
        assert ADVICE in info.isolation_gaps[-1]
        session = gateway.session("less")
        assert session.run("import pandas; pandas.DataFrame({'a': [41]}).to_csv('a.csv'); 6 * 7").text == "42"
        for path in ("/data", "/proc/1/environ", "/tmp"):
            look = f"import os; open({path!r}) if os.path.isfile({path!r}) else os.listdir({path!r})"
            assert session.run(look).error is not None
