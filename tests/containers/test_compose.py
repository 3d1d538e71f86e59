"""``docker compose up`` with deploy/compose.yaml: the gateway in a container, its kernels beside it.

The gateway's image is built (half a minute the first time) and stays in the engine; the kernels' is there.
"""

from __future__ import annotations

import http.client
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.api.client import APIClient

from cellgate_kernels.engine.container import INSTANCE_LABEL
from tests.support.compose import DEPLOY, Compose, composed
from tests.support.free_ports import free_port
from tests.support.server import until

FILE = DEPLOY / "compose.yaml"
TOKEN = secrets.token_hex(16)


@pytest.fixture
def port() -> int:
    """One that nobody listens on."""
    return free_port()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder whose name is short enough for sockets, below which containers may be given folders."""
    folder = Path(tempfile.mkdtemp(prefix="cg-compose-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def compose(client: APIClient, port: int, data_dir: Path, tmp_path: Path) -> Iterator[Compose]:
    """Runs compose on the file, as a project of its own; what was made is taken down."""
    file = tmp_path / "settings"
    file.write_text("CELLGATE_MAX_KERNELS=7\n")
    settings = {"CELLGATE_TOKEN": TOKEN, "CELLGATE_PORT": str(port), "CELLGATE_DATA_DIR": str(data_dir)}
    settings["CELLGATE_ENV_FILE"] = str(file)
    with composed(client, "cellgate-test", FILE, settings) as run:
        yield run


def ask(port: int, method: str, path: str, body: object = None, *, token: str = TOKEN) -> tuple[int, Any]:
    """One request; the status is 0 while nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        with connection.getresponse() as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()


def two_users(compose: Compose, port: int) -> None:
    """Users are added in the gateway's container; each has a session of the same key."""
    tokens = {}
    for name in ("alice", "bob"):
        compose("exec", "-T", "gateway", "cellgate", "user", "add", name)
        made = compose("exec", "-T", "gateway", "cellgate", "token", "create", "--user", name, "--json")
        tokens[name] = json.loads(made)["token"]
    for name, token in tokens.items():
        until(lambda token=token: ask(port, "GET", "/v1/me", token=token)[0] == 200, "no user yet")  # type: ignore[misc]
        status, result = ask(
            port, "POST", "/v1/sessions/mine/execute", {"code": f"who = {name!r}; who"}, token=token
        )
        assert (status, result["text"]) == (200, repr(name))
    for name, token in tokens.items():
        assert ask(port, "GET", "/v1/sessions/mine", token=token)[1]["principal"] == name
        assert ask(port, "DELETE", "/v1/sessions/mine", token=token)[0] == 204


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_compose_up_serves_and_stops(compose: Compose, client: APIClient, port: int, data_dir: Path) -> None:
    compose("build", "gateway")
    compose("up", "--detach", "--no-build")
    until(lambda: ask(port, "GET", "/readyz")[0] == 200, "the gateway is not ready", 120)
    status, result = ask(port, "POST", "/v1/sessions/s/execute", {"code": "import os; 6 * os.getuid()"})
    assert (status, result["text"]) == (200, "6000")
    assert ask(port, "GET", "/v1/sessions/s")[1]["isolation"] == "container"
    assert ask(port, "GET", "/v1/info")[1]["pool"]["max_kernels"] == 7
    label = f"{INSTANCE_LABEL}={(data_dir / 'instance').read_text()}"
    assert client.containers(filters={"label": label})

    two_users(compose, port)
    compose("stop")
    assert client.containers(all=True, filters={"label": label}) == []
    labels = ["com.docker.compose.project=cellgate-test", "com.docker.compose.service=gateway"]
    (gateway,) = client.containers(all=True, filters={"label": labels})
    said = client.logs(gateway, stdout=False).decode().splitlines()
    assert said
    assert {json.loads(line)["level"] for line in said} <= {"info", "warning"}
    assert client.inspect_container(gateway)["State"]["ExitCode"] == 0
