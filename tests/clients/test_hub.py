"""A real JupyterHub that starts the gateway as a service of its own, or spawns one for each user."""

from __future__ import annotations

import asyncio
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
from tornado.httpclient import HTTPRequest

from tests.clients.processes import COMPLETE, ENVIRONMENT, SCRIPTS
from tests.support.browser import Browsers, opened
from tests.support.commands import cellgate, environment
from tests.support.free_ports import free_port
from tests.support.requirements import require
from tests.support.server import until
from tests.support.websockets import websocket

STEWARD = "the-token-of-the-service-steward"
PROXY = "the-token-of-the-proxy"
OWN = "the-token-of-the-gateway-itself"
ACCESS = "access:services!service=cellgate"
PREFIX = "/services/cellgate"
DEPLOY = Path(__file__).parents[2] / "deploy" / "jupyterhub"


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
        return f"http://127.0.0.1:{self._port}"

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


@contextmanager
def running_hub(
    folder: Path,
    *words: str,
    spawns: bool = False,
    internal_ssl: bool = False,
    traefik: bool = False,
    deploy: str = "",
    hub_ip: str = "127.0.0.1",
    **variables: str,
) -> Iterator[Hub]:
    """A Hub, which starts the gateway with these words as a service, unless it `spawns` one for each user.

    `traefik`: with that as its proxy, which it starts itself. `deploy`: the name of a folder of
    deploy/jupyterhub, whose configuration says how.
    """
    program = ENVIRONMENT / "hub" / "bin" / "jupyterhub"
    if not COMPLETE.exists() or not program.exists():
        require("clients", "JupyterHub is not installed; run: make clients")
    ports = free_ports("public", "hub", "proxy_api", "gateway")
    proxy = ENVIRONMENT / "node_modules" / ".bin" / "configurable-http-proxy"
    given = {
        **ports,
        "folder": str(folder),
        "command": [sys.executable, "-m", "cellgate.cli.main", "serve", "--jupyterhub", *words],
        "environment": {
            "CELLGATE_TOKEN": OWN,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "JUPYTERHUB_ACTIVITY_INTERVAL": "1",
        },
        "steward": STEWARD,
        "proxy_token": PROXY,
        "proxy": str(proxy),
        "spawns": spawns or bool(deploy),
        "deploy": str(DEPLOY / deploy / "jupyterhub_config.py") if deploy else "",
        "hub_ip": hub_ip,
        "internal_ssl": internal_ssl,
        "traefik": traefik,
        "lab": [str(program.with_name("jupyter-labhub")), "--allow-root"],
    }
    proxied: list[str | Path] = [
        proxy,
        *("--ip=127.0.0.1", f"--port={ports['public']}"),
        *("--api-ip=127.0.0.1", f"--api-port={ports['proxy_api']}"),
    ]
    config: list[str | Path] = [program, "--config", SCRIPTS / "jupyterhub_config.py"]
    log = folder / "hub.log"
    with ExitStack() as stack:
        if traefik:
            variables["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        elif not internal_ssl:
            stack.enter_context(running(proxied, folder / "proxy.log", CONFIGPROXY_AUTH_TOKEN=PROXY))
            until(
                lambda: listens(ports["proxy_api"]) and listens(ports["public"]),
                "the proxy does not listen",
                60,
            )
        process = stack.enter_context(running(config, log, HUB_TEST=json.dumps(given), **variables))
        started = Hub(ports["public"])

        def serves() -> bool:
            assert process.poll() is None, "the Hub has ended"
            return listens(ports["public"]) and started.ask("GET", "/hub/api/", token="")[0] == 200

        until(serves, "the Hub does not serve", 60)
        yield started
        # The Hub ends its services and servers, and they end what they have started.
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert "Traceback" not in log.read_text(), log.read_text()[-10_000:]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A Hub that has started the gateway as its service."""
    announced = tmp_path / "data" / "gateway.json"
    words = ["--backend=process", "--allow-unsandboxed", f"--data-dir={tmp_path / 'data'}"]
    more = ["--trusted-proxies=127.0.0.1", "--pool-size=0", "--ServeApp.burst_size=0"]
    with running_hub(tmp_path, *words, *more) as started:
        # Not asked through the proxy at first: that costs time, and a Hub gives its services ten seconds.
        until(announced.exists, "the Hub's gateway does not listen", 60)
        until(
            lambda: started.ask("GET", f"{PREFIX}/healthz", token="")[0] == 200,
            "the Hub's gateway does not serve",
            60,
        )
        yield started
    until(lambda: not announced.exists(), "the gateway has not ended")


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


@pytest.mark.nightly
@pytest.mark.parametrize("internal_ssl", [False, True], ids=["plain", "internal_ssl"])
def test_what_a_hub_spawns(tmp_path: Path, *, internal_ssl: bool) -> None:
    """Its user, a visitor, a stranger; what the Hub is told; another server; the end, and the next start."""
    with running_hub(tmp_path, "--backend=process", spawns=True, internal_ssl=internal_ssl) as hub:
        hub.add("eve")
        hub.start("ada")
        ada, bob, eve = (hub.token(user)[0] for user in ("ada", "bob", "eve"))

        def run(code: str, token: str = ada, at: str = "/user/ada") -> tuple[int, Any]:
            status, result = hub.ask("POST", f"{at}/v1/sessions/x/execute", {"code": code}, token=token)
            return status, result.get("text") or result.get("reason")

        def role(token: str) -> Any:
            status, me = hub.ask("GET", "/user/ada/v1/me", token=token)
            return me["role"] if status == 200 else status

        assert run("x = 6 * 7; x") == (200, "42")
        assert [role(token) for token in (ada, bob, eve, "0123456789abcdef")] == ["admin", "user", 403, 401]
        assert run("x = 1; x", bob) == (200, "1")
        assert run("1", eve) == (403, "forbidden")

        # The proxy's own look at activity comes every five minutes.
        before = hub.servers("ada")[""]["last_activity"]
        assert run("x") == (200, "42")
        until(lambda: hub.servers("ada")[""]["last_activity"] > before, "the Hub is told nothing", 30)

        hub.start("ada", "lab")
        assert run("'x' in globals()", at="/user/ada/lab") == (200, "False")
        homes = tmp_path / "homes" / "ada" / ".local" / "share" / "cellgate"
        assert (homes / "gateway.json").exists()
        assert (homes / "servers" / "lab" / "gateway.json").exists()
        hub.stop("ada", "lab")
        assert not (homes / "servers" / "lab" / "gateway.json").exists()

        hub.stop("ada")
        assert not (homes / "gateway.json").exists(), "it was not ended in order"
        hub.start("ada")
        status, found = hub.ask("GET", "/user/ada/v1/sessions/x/executions", token=ada)
        assert (status, len(found["executions"])) == (200, 2)
        assert run("'x' in globals()") == (200, "False")


@pytest.mark.nightly
def test_a_browser_signs_in_at_the_hub(tmp_path: Path) -> None:
    """By the Hub's own pages: its user without being asked, a visitor who agrees, and out again."""
    with running_hub(tmp_path, "--backend=process", spawns=True) as hub, ExitStack() as stack:
        browsers = Browsers()
        stack.callback(browsers.close)
        hub.start("ada")
        pages = {}
        for name in ("ada", "bob"):
            page = pages[name] = stack.enter_context(opened(browsers.get()))
            page.goto(f"{hub.origin}/user/ada/#/gateway")
            page.wait_for_url("**/hub/login**")
            page.fill("#username_input", name)
            page.fill("#password_input", "x")
            page.click("#login_submit")
        pages["bob"].click("button:text-is('Authorize')")
        for name, page in pages.items():
            page.wait_for_selector(f"header .who:text-is('{name}')")
        assert pages["ada"].url == f"{hub.origin}/user/ada/#/gateway", "where it was"
        pages["ada"].click("button[aria-label='Sign out']")
        pages["ada"].wait_for_url("**/hub/log**")
        pages["ada"].goto(f"{hub.origin}/user/ada/")
        # A moment after the Hub was asked, the page does not go there by itself.
        pages["ada"].click("text=sign in at JupyterHub")
        pages["ada"].wait_for_url("**/hub/login**")


async def first_event(url: str, token: str) -> dict[str, Any]:
    """The first event of a session by its WebSocket."""
    async with websocket(HTTPRequest(url, headers={"Authorization": f"token {token}"})) as events:
        async with asyncio.timeout(60):
            event = json.loads(await events.read_message() or "")
    assert isinstance(event, dict)
    return event


@pytest.mark.nightly
def test_traefik_as_the_proxy_of_a_hub(tmp_path: Path) -> None:
    """A cell, a stream, a WebSocket, the gateway's own refusals, and a route that ends with its server."""
    with running_hub(tmp_path, "--backend=process", spawns=True, traefik=True) as hub:
        hub.start("ada")
        ada, _ = hub.token("ada")
        status, result = hub.ask("POST", "/user/ada/v1/sessions/x/execute", {"code": "6 * 7"}, token=ada)
        assert (status, result["text"]) == (200, "42")
        done = cellgate(
            *("exec", "for i in range(3): print(i)", f"--url={hub.origin}/user/ada"),
            env=environment(CELLGATE_TOKEN=ada),
        )
        assert (done.returncode, done.stdout) == (0, "0\n1\n2\n"), done.stderr
        address = f"ws{hub.origin.removeprefix('http')}/user/ada/v1/sessions/x/ws?after=0"
        assert asyncio.run(first_event(address, ada))["seq"] == 1
        assert hub.ask("GET", "/user/ada/v1/me", token="0123456789abcdef")[0] == 401
        hub.stop("ada")
        until(lambda: hub.ask("GET", "/user/ada/v1/me", token=ada)[0] != 200, "the route stays", 30)


@pytest.mark.nightly
def test_jupyterlab_in_one_server_and_cellgate_in_another(tmp_path: Path) -> None:
    """Each answers at its own address to the user's token; the end of one does not touch the other."""
    with running_hub(tmp_path, "--backend=process", spawns=True) as hub:
        hub.start("ada")
        hub.start("ada", "jupyterlab")
        ada, _ = hub.token("ada")

        def kernels(at: str) -> list[Any]:
            status, found = hub.ask("GET", f"{at}/api/kernels", token=ada)
            assert status == 200, found
            return list(found)

        status, page = hub.ask("GET", "/user/ada/jupyterlab/lab", token=ada)
        assert (status, "JupyterLab" in page) == (200, True)
        status, result = hub.ask("POST", "/user/ada/v1/sessions/x/execute", {"code": "6 * 7"}, token=ada)
        assert (status, result["text"]) == (200, "42")
        assert [len(kernels(at)) for at in ("/user/ada/jupyterlab", "/user/ada")] == [0, 1]
        hub.stop("ada", "jupyterlab")
        assert len(kernels("/user/ada")) == 1
        hub.stop("ada")


@pytest.mark.nightly
def test_a_server_that_its_user_shares(tmp_path: Path) -> None:
    """Who is given it in the Hub has sessions of their own there, until the share ends."""
    with running_hub(tmp_path, "--backend=process", spawns=True) as hub:
        hub.add("eve")
        hub.start("ada")
        eve, _ = hub.token("eve")
        cell = ("POST", "/user/ada/v1/sessions/x/execute", {"code": "x = 6 * 7; x"})
        assert hub.ask(*cell, token=eve)[0] == 403
        shared = {"user": "eve", "scopes": ["access:servers!server=ada/"]}
        status, body = hub.ask("POST", "/hub/api/shares/ada/", shared, token=STEWARD)
        assert status == 200, body

        def answer() -> tuple[int, Any]:
            status, result = hub.ask(*cell, token=eve)
            return status, result.get("text")

        until(lambda: answer() == (200, "42"), "the share gives no access", 30)
        status, me = hub.ask("GET", "/user/ada/v1/me", token=eve)
        assert (me["principal"], me["role"]) == ("eve", "user")
        status, body = hub.ask("PATCH", "/hub/api/shares/ada/", {"user": "eve"}, token=STEWARD)
        assert status == 200, body
        until(lambda: hub.ask(*cell, token=eve)[0] == 403, "an ended share gives access", 30)
