"""The example configurations of Caddy and nginx for programs' ports, as they are, in front of a gateway.

Each port has a name of its own, as a gateway with users needs it. No name is looked up: all are this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPRequest
from tornado.netutil import DefaultLoopResolver, OverrideResolver
from tornado.websocket import websocket_connect

from cellgate.ports.headers import COOKIE
from tests.conftest import serving
from tests.gateway.ports.conftest import ECHO, Answer, Ports
from tests.support.certificates import Authority
from tests.support.free_ports import free_port
from tests.support.proxies import Connection, caddy, nginx, replaced, require_proxy, started
from tests.support.server import TOKEN, GatewayProcess
from tests.support.users import add_user, create_token
from tests.support.websockets import websocket

NAME, UPSTREAM = "ports.example.org", "127.0.0.1:8890"
CERTIFICATE, KEY = "/etc/cellgate/tls/ports.pem", "/etc/cellgate/tls/ports.key"
PORT = 8000
PATIENCE = 120.0


def caddy_command(folder: Path, upstream: str, port: int, files: tuple[Path, Path]) -> list[str]:
    changes = {
        f"\n*.{NAME} {{": f"\nhttps://*.{NAME}:{port} {{\n\tbind 127.0.0.1",
        CERTIFICATE: str(files[0]),
        KEY: str(files[1]),
        UPSTREAM: upstream,
    }
    return caddy(folder, replaced("Caddyfile.ports", changes))


def nginx_command(folder: Path, upstream: str, port: int, files: tuple[Path, Path]) -> list[str]:
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        CERTIFICATE: str(files[0]),
        KEY: str(files[1]),
        UPSTREAM: upstream,
    }
    return nginx(folder, replaced("nginx-ports.conf", changes))


COMMANDS = {"caddy": caddy_command, "nginx": nginx_command}


@dataclass(frozen=True)
class Proxied:
    """A gateway that serves ports, and the port of the proxy in front of these."""

    gateway: GatewayProcess
    authority: Authority
    port: int

    def connect(self, url: str) -> Connection:
        """A connection to what the URL names."""
        return Connection(str(urlsplit(url).hostname), self.port, self.authority.context())

    def open(self, url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        with closing(self.connect(url)) as connection:
            target = urlsplit(url)._replace(scheme="", netloc="").geturl()
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def enter(self, session: str, token: str = TOKEN) -> tuple[str, str]:
        """Redeem a ticket, as a browser does; returns the URL of the first page, and the cookie."""
        asked = self.gateway.post(f"/v1/sessions/{session}/ports/{PORT}", token=token)
        assert asked.status == 200, asked.body
        url = str(asked.json()["url"])
        answer = self.open(url)
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith(f"__Host-{COOKIE}=")
        assert "; Secure" in cookie
        return url.partition("?")[0], cookie.partition(";")[0]


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def proxied(
    request: pytest.FixtureRequest, sandbox: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    """A gateway whose ports are behind a proxy, and a session with a program that listens."""
    folder = tmp_path_factory.mktemp(request.param)
    require_proxy(request.param)
    authority = Authority(folder)
    port = free_port()
    behind = free_port()
    with serving(
        folder / "data",
        "sandbox",
        trusted_proxies="127.0.0.1",
        ports_port=behind,
        ports_url=f"https://*.{NAME}:{port}",
    ) as gateway:
        files = authority.issue("ports", f"*.{NAME}")
        command = COMMANDS[request.param](folder, f"127.0.0.1:{behind}", port, files)
        with started(command, folder, port):
            Ports(gateway, f"http://127.0.0.1:{behind}").run("s", ECHO, str(PORT))
            yield Proxied(gateway, authority, port)


def test_a_browser_sees_the_program_at_a_name_of_its_own(proxied: Proxied) -> None:
    first, cookie = proxied.enter("s")
    parts = urlsplit(first)
    assert (parts.scheme, parts.port) == ("https", proxied.port)
    assert str(parts.hostname).endswith(f".{NAME}")
    seen = proxied.open(f"{first}page?x=1", Cookie=f"{cookie}; mine=1")
    assert (seen.status, seen.json()["uri"]) == (200, "/page?x=1")
    assert seen.sent("Host") == [parts.netloc]
    assert seen.sent("X-Forwarded-Proto") == ["https"]
    assert seen.sent("X-Forwarded-Host") == [parts.netloc]
    assert seen.sent("Cookie") == ["mine=1"]
    assert proxied.open(first).status == 401
    assert proxied.open(first, Cookie=cookie, Sec_Fetch_Site="cross-site").status == 403
    elsewhere = first.replace(f"{PORT}-s-", f"{PORT + 1}-s-")
    assert proxied.open(elsewhere, Cookie=cookie).status == 401


def test_answers_and_bodies_pass_as_they_come(proxied: Proxied) -> None:
    first, cookie = proxied.enter("s")
    with closing(proxied.connect(first)) as connection:
        connection.request("GET", "/slowly", headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert [answer.readline() for _ in range(4)] == [b"0\n", b"1\n", b"2\n", b""]
    body = b"x" * (8 * 1024 * 1024)
    assert len(proxied.open(first, "POST", body, Cookie=cookie).json()["body"]) == len(body)
    assert len(proxied.open(f"{first}large", Cookie=cookie).body) == 32 * 1024 * 1024


async def test_a_websocket_is_relayed_for_pages_of_its_origin_alone(proxied: Proxied) -> None:
    first, cookie = await asyncio.to_thread(proxied.enter, "s")
    origin = first.rstrip("/")
    name = str(urlsplit(first).hostname)
    resolver = OverrideResolver(DefaultLoopResolver(), {name: "127.0.0.1"})

    def request(origin: str) -> HTTPRequest:
        headers = {"Cookie": cookie, "Origin": origin}
        url = f"wss://{name}:{proxied.port}/ws"
        return HTTPRequest(url, headers=headers, ssl_options=proxied.authority.context())

    async with asyncio.timeout(PATIENCE):
        async with websocket(request(origin), resolver=resolver) as connected:
            for message in ("text", b"\x00bytes", "x" * 1_000_000):
                await connected.write_message(message, binary=isinstance(message, bytes))
                assert await connected.read_message() == message
        with pytest.raises(Exception, match="403"):
            await websocket_connect(request("https://elsewhere.example.org"), resolver=resolver)


def test_users_have_names_of_their_own_for_sessions_of_the_same_key(proxied: Proxied) -> None:
    add_user(proxied.gateway, "alice")
    _, token = create_token(proxied.gateway, "alice")
    assert proxied.gateway.post(f"/v1/sessions/s/ports/{PORT}", token=token).status == 404
    assert proxied.gateway.post("/v1/sessions", {"session": "s"}, token=token, timeout=120).status == 201
    hers, cookie = proxied.enter("s", token)
    first, _ = proxied.enter("s")
    assert urlsplit(hers).hostname != urlsplit(first).hostname
    assert proxied.open(first, Cookie=cookie).status == 401
    # Nothing listens in her session.
    assert proxied.open(hers, Cookie=cookie).status == 502
