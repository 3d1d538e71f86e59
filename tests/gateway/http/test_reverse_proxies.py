"""The example configurations of Caddy and nginx, as they are, in front of a gateway.

Both are started as ordinary processes; only names, ports and files are replaced.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellgate.client import Event, Gateway, Stream, Trust
from cellgate_kernels.limits import MIB
from tests.conftest import serving
from tests.support.certificates import Authority
from tests.support.channels import kernel_info
from tests.support.requirements import require
from tests.support.server import TOKEN, GatewayProcess, until

DEPLOY = Path(__file__).parents[3] / "deploy"
NAME, UPSTREAM = "gateway.example.org", "127.0.0.1:8888"
BASE = "/cellgate"
CLIENT = "127.0.0.5"
LARGE = 48 * MIB


@dataclass(frozen=True)
class Proxied:
    """A gateway, and the port of the proxy in front of it. `gateway` asks it directly."""

    gateway: GatewayProcess
    authority: Authority
    port: int

    @property
    def client(self) -> Gateway:
        """A client of the proxy."""
        url = f"https://127.0.0.1:{self.port}{BASE}"
        return Gateway(url, TOKEN, trust=Trust(ca_file=self.authority.file))

    def connect(self) -> http.client.HTTPSConnection:
        """A connection to the proxy from an address that is no proxy's."""
        context = self.authority.context()
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=30, context=context, source_address=(CLIENT, 0)
        )


def replaced(name: str, changes: dict[str, str]) -> str:
    """The example's text; each of the words to replace must be there."""
    text = (DEPLOY / name).read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def caddy(folder: Path, upstream: str, port: int, files: tuple[Path, Path]) -> list[str]:
    """Caddy's command: without an interface of its own, and without a second port for redirections."""
    site = f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\nhttps://127.0.0.1:{port} {{"
    text = replaced(
        "Caddyfile", {f"\n{NAME} {{": f"\n{site}\n\ttls {files[0]} {files[1]}", UPSTREAM: upstream}
    )
    # The options of a Caddyfile come first.
    options = text[text.index("{\n\tadmin") : text.index("https://127")]
    (folder / "Caddyfile").write_text(options + text.replace(options, ""))
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


def nginx(folder: Path, upstream: str, port: int, files: tuple[Path, Path]) -> list[str]:
    """nginx's command; the example is included as Debian's nginx.conf does it."""
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/cellgate/tls/fullchain.pem": str(files[0]),
        "/etc/cellgate/tls/privkey.pem": str(files[1]),
        UPSTREAM: upstream,
    }
    (folder / "cellgate.conf").write_text(replaced("nginx.conf", changes))
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "main.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nuser {_user()};\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {folder}/cellgate.conf;\n}}\n"
    )
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "main.conf")]


def _user() -> str:
    """Its workers run as this process's user: the test's files are nobody else's."""
    return pwd.getpwuid(os.getuid()).pw_name


COMMANDS = {"caddy": caddy, "nginx": nginx}


@contextmanager
def started(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """The proxy, once it listens; stopped afterwards."""
    log = folder / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_DATA_HOME": str(folder)},
        )

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "the proxy does not listen")
        yield
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """A gateway below a path that trusts the proxy."""
    folder = tmp_path_factory.mktemp(request.param)
    # Debian has it in a folder that not every user's PATH has.
    if shutil.which(request.param, path=f"{os.environ['PATH']}:/usr/sbin") is None:
        require(request.param, f"{request.param} is not installed")
    authority = Authority(folder)
    port = free_port()
    with serving(
        folder / "data",
        base_url=BASE,
        trusted_proxies="127.0.0.1",
        log_json=True,
        log_level="INFO",
        pool_size=1,
    ) as gateway:
        command = COMMANDS[request.param](folder, gateway.host, port, authority.issue("proxy"))
        with started(command, folder, port):
            yield Proxied(gateway, authority, port)


async def test_cells_and_a_websocket(proxied: Proxied) -> None:
    async with proxied.client.session("cells") as session:
        assert (await session.run("20 + 1")).text == "21"
        assert (await kernel_info(proxied.client, "cells"))["status"] == "ok"


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_events_arrive_as_they_happen(proxied: Proxied, accept: str) -> None:
    """The cell goes on only after its first event has arrived."""
    with closing(proxied.connect()) as connection:
        connection.request(
            "POST",
            f"{BASE}/v1/sessions/events/execute",
            json.dumps({"code": "print('first', flush=True)\nprint(input())"}),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Accept": accept},
        )
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Type"]) == (200, f"{accept}; charset=utf-8")
        said = b""
        while b'"input_request"' not in said:
            said += answer.readline()
        assert b"first" in said
        execution = re.findall(rb'"execution":"([^"]+)"', said)[-1].decode()
        path = f"{BASE}/v1/sessions/events/executions/{execution}/input"
        assert proxied.gateway.post(path, {"value": "second"}).status == 204
        rest = answer.read()
    assert b"second" in rest
    assert b'"finished"' in rest


async def test_the_gateway_is_told_that_a_client_left(proxied: Proxied) -> None:
    client = proxied.client
    async with client.session("left") as session:
        events: list[Event] = []
        stream = session.stream("import time\nprint(1)\ntime.sleep(100)")
        async for event in stream:
            events.append(event)
            if isinstance(event, Stream):
                break
        await stream.aclose()
        execution = events[-1].execution
        assert execution is not None
        path = f"{BASE}/v1/sessions/left/executions/{execution}"

        def ended() -> bool:
            return proxied.gateway.get(path).json()["cause"] == "client_disconnected"

        until(ended, "the cell runs on")


async def test_large_files_pass_both_ways(proxied: Proxied) -> None:
    content = hashlib.sha256(b"x").digest() * (LARGE // 32)
    async with proxied.client.session("files") as session:
        await session.files.put("large.bin", content)
        code = "import hashlib; print(hashlib.sha256(open('large.bin', 'rb').read()).hexdigest())"
        assert (await session.run(code)).stdout.strip() == hashlib.sha256(content).hexdigest()
        assert await session.files.get("large.bin") == content


def test_the_client_s_address_is_seen_and_can_t_be_forged(proxied: Proxied) -> None:
    for number, forged in enumerate(
        ({}, {"X-Forwarded-For": "203.0.113.1", "X-Forwarded-Host": "evil.example"})
    ):
        path = f"{BASE}/v1/no-such-thing-{number}"
        with closing(proxied.connect()) as connection:
            own = {"Origin": f"https://127.0.0.1:{proxied.port}", "Authorization": f"Bearer {TOKEN}"}
            connection.request("GET", path, headers=own | forged)
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["reason"]) == (404, "not_found")

        def logged(path: str = path) -> str | None:
            lines = [line for line in proxied.gateway.log.read_text().splitlines() if f"GET {path} " in line]
            return json.loads(lines[-1])["client"] if lines else None

        assert until(logged, "the request is not logged") == CLIENT
