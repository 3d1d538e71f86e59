"""A real JupyterHub that starts the gateway as a service of its own, and lets its users in."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clients.processes import COMPLETE, ENVIRONMENT, SCRIPTS
from tests.support.commands import cellgate, environment
from tests.support.free_ports import free_port
from tests.support.requirements import require
from tests.support.server import until

STEWARD = "the-token-of-the-service-steward"
PROXY = "the-token-of-the-proxy"
OWN = "the-token-of-the-gateway-itself"
ACCESS = "access:services!service=cellgate"
PREFIX = "/services/cellgate"


class Hub:
    """A running Hub with its proxy and the gateway."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(
        self, method: str, path: str, body: object = None, *, token: str, scheme: str = "token"
    ) -> tuple[int, Any]:
        """Status and body of an answer that comes through the Hub's proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            headers = {"Authorization": f"{scheme} {token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            with connection.getresponse() as answer:
                content = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(content) if content.startswith((b"{", b"[")) else content.decode()

    def add(self, user: str) -> None:
        status, body = self.ask("POST", f"/hub/api/users/{user}", token=STEWARD)
        assert status == 201, body

    def token(self, user: str, *scopes: str) -> tuple[str, str]:
        """A new token of the user and its id; without scopes it has all of the user's."""
        wanted = {"scopes": scopes} if scopes else {}
        status, body = self.ask("POST", f"/hub/api/users/{user}/tokens", wanted, token=STEWARD)
        assert status == 201, body
        return body["token"], body["id"]

    def revoke(self, user: str, identity: str) -> None:
        status, body = self.ask("DELETE", f"/hub/api/users/{user}/tokens/{identity}", token=STEWARD)
        assert status == 204, body

    @property
    def url(self) -> str:
        """The gateway's URL for its users."""
        return f"http://127.0.0.1:{self._port}{PREFIX}"

    def gateway(self, method: str, path: str, body: object = None, *, token: str) -> tuple[int, Any]:
        """An answer of the gateway."""
        return self.ask(method, PREFIX + path, body, token=token)


def free_ports(*names: str) -> dict[str, int]:
    """A free port by each name; all are different."""
    numbers: set[int] = set()
    while len(numbers) < len(names):
        numbers.add(free_port())
    return dict(zip(names, numbers, strict=True))


@contextmanager
def running(words: list[str | Path], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program and whatever it starts, until the end of the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(HOME=str(log.parent), **variables),
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException:
        sys.stderr.write(log.read_text()[-10_000:])
        raise
    finally:
        process.kill()
        process.wait()
        end_all_below(log.parent)


def end_all_below(folder: Path) -> None:
    """End the processes that work in a test's folder: a Hub's services outlive it, if it fails."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder):
                process.kill()


def listens(port: int) -> bool:
    """Whether somebody listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A Hub that has started the gateway."""
    program = ENVIRONMENT / "hub" / "bin" / "jupyterhub"
    if not COMPLETE.exists() or not program.exists():
        require("clients", "JupyterHub is not installed; run: make clients")
    ports = free_ports("public", "hub", "proxy_api", "gateway")
    serve = ["serve", "--jupyterhub", "--backend=process", f"--data-dir={tmp_path / 'data'}"]
    given_too = ["--trusted-proxies=127.0.0.1", "--pool-size=0", "--ServeApp.burst_size=0"]
    given = {
        **ports,
        "folder": str(tmp_path),
        "command": [sys.executable, "-m", "cellgate.cli.main", *serve, *given_too],
        "environment": {"CELLGATE_TOKEN": OWN, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        "steward": STEWARD,
        "proxy_token": PROXY,
    }
    proxy: list[str | Path] = [
        ENVIRONMENT / "node_modules" / ".bin" / "configurable-http-proxy",
        *("--ip=127.0.0.1", f"--port={ports['public']}"),
        *("--api-ip=127.0.0.1", f"--api-port={ports['proxy_api']}"),
    ]
    config: list[str | Path] = [program, "--config", SCRIPTS / "jupyterhub_config.py"]
    log = tmp_path / "hub.log"
    with ExitStack() as stack:
        stack.enter_context(running(proxy, tmp_path / "proxy.log", CONFIGPROXY_AUTH_TOKEN=PROXY))
        until(
            lambda: listens(ports["proxy_api"]) and listens(ports["public"]), "the proxy does not listen", 60
        )
        process = stack.enter_context(running(config, log, HUB_TEST=json.dumps(given)))
        started = Hub(ports["public"])

        def listens_too() -> bool:
            """Not asked through the proxy: that costs time, and a Hub gives its services ten seconds."""
            assert process.poll() is None, "the Hub has ended"
            return (tmp_path / "data" / "gateway.json").exists()

        def serves() -> bool:
            assert process.poll() is None, "the Hub has ended"
            return started.ask("GET", f"{PREFIX}/healthz", token="")[0] == 200

        until(listens_too, "the Hub's gateway does not listen", 60)
        until(serves, "the Hub's gateway does not serve", 60)
        yield started
        # The Hub ends its services, and they end what they have started.
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert "Traceback" not in log.read_text(), log.read_text()[-10_000:]
        until(lambda: not (tmp_path / "data" / "gateway.json").exists(), "the gateway has not ended")


@pytest.mark.nightly
def test_the_users_of_a_hub(hub: Hub) -> None:
    """Cells through the Hub's proxy; who is let in, as whom, and for how long."""
    hub.add("eve")
    ada, revoked_later = hub.token("ada", ACCESS)
    status, result = hub.gateway("POST", "/v1/sessions/x/execute", {"code": "6 * 7"}, token=ada)
    assert (status, result["text"]) == (200, "42")
    done = cellgate("exec", "2 ** 10", f"--url={hub.url}", env=environment(CELLGATE_TOKEN=ada))
    assert (done.returncode, done.stdout) == (0, "1024\n"), done.stderr
    status, me = hub.gateway("GET", "/v1/me", token=ada)
    assert (status, me["principal"], me["role"]) == (200, "ada", "user")
    assert hub.gateway("GET", "/v1/sessions/x", token=hub.token("ada")[0])[0] == 200, "all of ada's scopes"

    # An administrator of the Hub is one of the gateway, unless the token is limited.
    root, _ = hub.token("root")
    status, session = hub.gateway("GET", "/v1/sessions/x?principal=ada", token=root)
    assert (status, session["principal"]) == (200, "ada")
    modest, _ = hub.token("root", ACCESS)
    assert hub.gateway("GET", "/v1/me", token=modest)[1]["role"] == "user"
    assert hub.gateway("GET", "/v1/me", token=OWN)[1]["role"] == "admin"

    # A user without access, a token without it, a service, and nobody.
    for token in (hub.token("eve")[0], hub.token("ada", "read:users:name!user")[0], STEWARD):
        status, problem = hub.gateway("GET", "/v1/sessions", token=token)
        assert (status, problem["reason"]) == (403, "forbidden")
    status, problem = hub.gateway("GET", "/v1/sessions", token="0123456789abcdef")
    assert (status, problem["reason"]) == (401, "not_authenticated")

    hub.revoke("ada", revoked_later)
    until(lambda: hub.gateway("GET", "/v1/sessions", token=ada)[0] == 401, "a revoked token lives", 20)
