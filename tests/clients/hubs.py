"""A real JupyterHub with its proxy, and what it starts: of each release that ``make clients`` installs."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.clients.processes import COMPLETE, ENVIRONMENT, SCRIPTS
from tests.support.commands import environment
from tests.support.free_ports import free_port
from tests.support.requirements import require
from tests.support.server import until

NEWEST, OLDEST = "hub", "hub-5.2"
"""The folders of the newest release that is supported, and of the oldest."""

STEWARD = "the-token-of-the-service-steward"
PROXY = "the-token-of-the-proxy"
OWN = "the-token-of-the-gateway-itself"
ACCESS = "access:services!service=cellgate"
PREFIX = "/services/cellgate"
DEPLOY = Path(__file__).parents[2] / "deploy" / "jupyterhub"


class Hub:
    """A running Hub with its proxy and the gateway."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = port

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str,
        sender: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and body of an answer that comes through the Hub's proxy.

        `sender`: the address of this machine that the proxy sees, if any will not do.
        """
        connection = http.client.HTTPConnection(
            self._host, self._port, timeout=60, source_address=(sender, 0)
        )
        try:
            sent = {"Authorization": f"token {token}", "Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, None if body is None else json.dumps(body), sent)
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

    def start(self, user: str, server: str = "") -> None:
        """Have the Hub spawn a server of this user, and wait until it is ready."""
        path = f"servers/{server}" if server else "server"
        status, body = self.ask("POST", f"/hub/api/users/{user}/{path}", token=STEWARD)
        assert status in {201, 202}, body
        until(lambda: self.servers(user).get(server, {}).get("ready"), "the server is not ready", 120)

    def stop(self, user: str, server: str = "") -> None:
        """Have the Hub stop it."""
        path = f"servers/{server}" if server else "server"
        status, body = self.ask("DELETE", f"/hub/api/users/{user}/{path}", token=STEWARD)
        assert status in {202, 204}, body
        until(lambda: server not in self.servers(user), "the server does not stop", 60)

    def servers(self, user: str) -> dict[str, Any]:
        """What the Hub knows of the user's servers that run."""
        status, body = self.ask("GET", f"/hub/api/users/{user}", token=STEWARD)
        assert status == 200, body
        return dict(body["servers"])

    def revoke(self, user: str, identity: str) -> None:
        status, body = self.ask("DELETE", f"/hub/api/users/{user}/tokens/{identity}", token=STEWARD)
        assert status == 204, body

    @property
    def origin(self) -> str:
        """The URL of the Hub's proxy."""
        return f"http://{self._host}:{self._port}"

    @property
    def socket(self) -> str:
        """The URL of the Hub's proxy for WebSockets."""
        return f"ws://{self._host}:{self._port}"

    @property
    def url(self) -> str:
        """The service's URL for its users."""
        return f"{self.origin}{PREFIX}"

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


def program_of(release: str) -> Path:
    """The program of a Hub; the test is skipped where it is not installed."""
    program = ENVIRONMENT / release / "bin" / "jupyterhub"
    if not COMPLETE.exists() or not program.exists():
        require("clients", "JupyterHub is not installed; run: make clients")
    return program


CONFIG = SCRIPTS / "jupyterhub_config.py"


def given_to(folder: Path, program: Path, *words: str, deploy: str = "", **more: object) -> dict[str, Any]:
    """What the configuration of a Hub is told in HUB_TEST, as `running_hub` says."""
    return {
        **free_ports("public", "hub", "proxy_api", "gateway"),
        "folder": str(folder),
        "command": [sys.executable, "-m", "cellgate.cli.main", "serve", "--jupyterhub", *words],
        "environment": {
            "CELLGATE_TOKEN": OWN,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "JUPYTERHUB_ACTIVITY_INTERVAL": "1",
        },
        "steward": STEWARD,
        "proxy_token": PROXY,
        "proxy": str(ENVIRONMENT / "node_modules" / ".bin" / "configurable-http-proxy"),
        "spawns": bool(deploy),
        "deploy": str(DEPLOY / deploy / "jupyterhub_config.py") if deploy else "",
        "public_ip": "127.0.0.1",
        "hub_ip": "127.0.0.1",
        "internal_ssl": False,
        "traefik": False,
        "tls_proxy": "",
        "lab": [str(program.with_name("jupyter-labhub")), "--allow-root"],
        **more,
    }


@contextmanager
def running_hub(
    folder: Path,
    *words: str,
    spawns: bool = False,
    internal_ssl: bool = False,
    traefik: bool = False,
    tls_proxy: str = "",
    release: str = NEWEST,
    deploy: str = "",
    hub_ip: str = "127.0.0.1",
    **variables: str,
) -> Iterator[Hub]:
    """A Hub, which starts the gateway with these words as a service, unless it `spawns` one for each user.

    `traefik`: with that as its proxy, which it starts itself, and which believes the address `tls_proxy`.
    `release`: `NEWEST` or `OLDEST`. `deploy`: the name of a folder of deploy/jupyterhub, whose configuration
    says how.
    """
    program = program_of(release)
    how = {"internal_ssl": internal_ssl, "traefik": traefik, "tls_proxy": tls_proxy, "hub_ip": hub_ip}
    given = given_to(folder, program, *words, deploy=deploy, spawns=spawns or bool(deploy), **how)
    proxied: list[str | Path] = [
        given["proxy"],
        *("--ip=127.0.0.1", f"--port={given['public']}"),
        *("--api-ip=127.0.0.1", f"--api-port={given['proxy_api']}"),
    ]
    log = folder / "hub.log"
    with ExitStack() as stack:
        if traefik:
            variables["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        elif not internal_ssl:
            stack.enter_context(running(proxied, folder / "proxy.log", CONFIGPROXY_AUTH_TOKEN=PROXY))
            until(
                lambda: listens(given["proxy_api"]) and listens(given["public"]),
                "the proxy does not listen",
                60,
            )
        config: list[str | Path] = [program, "--config", CONFIG]
        process = stack.enter_context(running(config, log, HUB_TEST=json.dumps(given), **variables))
        started = Hub(given["public"])

        def serves() -> bool:
            assert process.poll() is None, "the Hub has ended"
            return listens(given["public"]) and started.ask("GET", "/hub/api/", token="")[0] == 200

        until(serves, "the Hub does not serve", 60)
        yield started
        # The Hub ends its services and servers, and they end what they have started.
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert "Traceback" not in log.read_text(), log.read_text()[-10_000:]
