"""The example configurations of Caddy and nginx, as they are, in front of a gateway.

Both are started as ordinary processes; only names, ports and files are replaced.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellgate.client import Event, Gateway, Stream, Trust
from cellgate_kernels.base.resources import MIB
from tests.conftest import serving
from tests.support.certificates import Authority
from tests.support.channels import kernel_info
from tests.support.free_ports import free_port
from tests.support.proxies import caddy, nginx, replaced, require_proxy, started
from tests.support.server import TOKEN, GatewayProcess, together, until

NAME, UPSTREAM = "gateway.example.org", "127.0.0.1:8888"
BASE = "/cellgate"
CLIENT = "127.0.0.5"
LARGE = 48 * MIB
STREAMS = 80
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


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
            "127.0.0.1", self.port, timeout=60, context=context, source_address=(CLIENT, 0)
        )


def caddy_command(folder: Path, upstream: str, port: int, files: tuple[Path, Path]) -> list[str]:
    """Caddy's command, with a certificate of the test's own."""
    site = f"\nhttps://127.0.0.1:{port} {{\n\ttls {files[0]} {files[1]}"
    return caddy(folder, replaced("Caddyfile", {f"\n{NAME} {{": site, UPSTREAM: upstream}))


def nginx_command(folder: Path, upstream: str, port: int, files: tuple[Path, Path]) -> list[str]:
    """nginx's command."""
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/cellgate/tls/fullchain.pem": str(files[0]),
        "/etc/cellgate/tls/privkey.pem": str(files[1]),
        UPSTREAM: upstream,
    }
    return nginx(folder, replaced("nginx.conf", changes))


COMMANDS = {"caddy": caddy_command, "nginx": nginx_command}


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """A gateway below a path that trusts the proxy."""
    folder = tmp_path_factory.mktemp(request.param)
    require_proxy(request.param)
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
            AUTHORIZED | {"Accept": accept},
        )
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Type"]) == (200, f"{accept}; charset=utf-8")
        said = b""
        while b'"input_request"' not in said:
            line = answer.readline()
            assert line, f"the stream ends early: {said!r}"
            said += line
        assert b"first" in said
        execution = re.findall(rb'"execution":"([^"]+)"', said)[-1].decode()
        path = f"{BASE}/v1/sessions/events/executions/{execution}/input"
        assert proxied.gateway.post(path, {"value": "second"}).status == 204
        rest = answer.read()
    assert b"second" in rest
    assert b'"finished"' in rest


@pytest.mark.nightly
def test_every_stream_is_whole_on_a_busy_machine(proxied: Proxied) -> None:
    """A proxy must not break off an answer that begins at once."""

    def stream(client: int) -> Iterator[bytes]:
        path, headers = f"{BASE}/v1/sessions/busy-{client}/execute", {"Accept": "application/x-ndjson"}
        for _ in range(STREAMS):
            with closing(proxied.connect()) as connection:
                connection.request("POST", path, json.dumps({"code": "1"}), AUTHORIZED | headers)
                yield connection.getresponse().read()

    ends = [text.splitlines()[-1:] for texts in together(4, lambda n: list(stream(n))) for text in texts]
    assert len(ends) == 4 * STREAMS
    assert [end for end in ends if not end or b'"finished"' not in end[0]] == []


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
            lines = [line for line in proxied.gateway.logged() if f"GET {path} " in line]
            return json.loads(lines[-1])["client"] if lines else None

        assert until(logged, "the request is not logged") == CLIENT
