"""The proxies of a JupyterHub in front of what it spawns: a day through Traefik, and whose a request is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest

from tests.clients.hubs import NEWEST, OLDEST, Hub, running_hub
from tests.support.commands import cellgate, environment
from tests.support.server import until
from tests.support.websockets import websocket

AT = "/user/ada"
WRONG = "0123456789abcdef"
CLIENT, NEIGHBOUR, TLS_PROXY = "127.0.0.5", "127.0.0.6", "127.0.0.7"
FAR, OTHER = "198.51.100.1", "198.51.100.2"
"""Clients of the proxy for TLS."""
LIES = {
    "X-Forwarded-For": "203.0.113.1",
    "X-Forwarded-Host": "evil.example",
    "X-Forwarded-Port": "1",
    "X-Real-Ip": "203.0.113.2",
    "Forwarded": "for=203.0.113.3;host=evil.example",
}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
PROXIES = pytest.mark.parametrize("traefik", [False, True], ids=["configurable-http-proxy", "traefik"])


async def first_event(url: str, token: str) -> dict[str, Any]:
    """The first event of a session by its WebSocket."""
    async with websocket(HTTPRequest(url, headers={"Authorization": f"token {token}"})) as events:
        async with asyncio.timeout(60):
            event = json.loads(await events.read_message() or "")
    assert isinstance(event, dict)
    return event


@pytest.mark.nightly
@pytest.mark.parametrize("release", [NEWEST, OLDEST])
def test_a_day_through_traefik(tmp_path: Path, release: str) -> None:
    """A cell, a stream, a WebSocket, a refusal; a route that ends with its server, and comes back with it."""
    with running_hub(tmp_path, "--backend=process", spawns=True, traefik=True, release=release) as hub:
        hub.start("ada")
        ada, _ = hub.token("ada")
        status, result = hub.ask("POST", f"{AT}/v1/sessions/x/execute", {"code": "6 * 7"}, token=ada)
        assert (status, result["text"]) == (200, "42")
        done = cellgate(
            *("exec", "for i in range(3): print(i)", f"--url={hub.origin}{AT}"),
            env=environment(CELLGATE_TOKEN=ada),
        )
        assert (done.returncode, done.stdout) == (0, "0\n1\n2\n"), done.stderr
        address = f"{hub.socket}{AT}/v1/sessions/x/ws?after=0"
        assert asyncio.run(first_event(address, ada))["seq"] == 1
        assert hub.ask("GET", f"{AT}/v1/me", token=WRONG)[0] == 401
        hub.stop("ada")
        until(lambda: hub.ask("GET", f"{AT}/v1/me", token=ada)[0] != 200, "the route stays", 30)
        hub.start("ada")
        until(lambda: hub.ask("GET", f"{AT}/v1/me", token=ada)[0] == 200, "the route does not return", 30)
        status, found = hub.ask("GET", f"{AT}/v1/sessions/x/executions", token=ada)
        assert (status, len(found["executions"])) == (200, 1)


def refused(hub: Hub, token: str) -> dict[str, int]:
    """How many wrong tokens the audit trail has, by the address that they came from."""
    status, page = hub.ask("GET", f"{AT}/v1/audit?limit=1000", token=token)
    assert status == 200, page
    entries = [each["entry"] for each in page["entries"] if each["entry"]["type"] == "refused"]
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry["address"]] = counts.get(entry["address"], 0) + entry.get("count", 1)
    return counts


def link(hub: Hub, token: str, sender: str, headers: Mapping[str, str]) -> str:
    """Where a link that the gateway gives out leads, without its path."""
    status, body = hub.ask("POST", f"{AT}/v1/console", token=token, sender=sender, headers=headers)
    assert status == 200, body
    return str(body["url"].partition(AT)[0])


@pytest.mark.nightly
@PROXIES
def test_no_client_passes_for_another(tmp_path: Path, *, traefik: bool) -> None:
    """The proxy's own word counts in the trail, in limits and in links, whatever headers a client sends."""
    words = ["--backend=process", "--ServeApp.login_attempts=3"]
    with running_hub(tmp_path, *words, spawns=True, traefik=traefik) as hub:
        hub.start("ada")
        ada, _ = hub.token("ada")

        def wrong(sender: str, number: int, **more: str) -> int:
            lies = {**LIES, "X-Forwarded-For": f"203.0.113.{number}"}
            status, _ = hub.ask(
                "GET", f"{AT}/v1/me", token=f"{WRONG}{number}", sender=sender, headers={**lies, **more}
            )
            return status

        # With a token that is known by now: after wrong ones, others are not asked about.
        assert link(hub, ada, CLIENT, LIES) == hub.origin
        # The loopback addresses of this machine count as one for the limit.
        assert wrong(NEIGHBOUR, 1, **UPGRADE) == 401
        assert [wrong(CLIENT, number) for number in (2, 3, 4)] == [401, 401, 429]
        until(lambda: set(refused(hub, ada)) == {CLIENT, NEIGHBOUR}, "the trail has other addresses")


@pytest.mark.nightly
@PROXIES
def test_a_proxy_for_tls_before_that_of_the_hub(tmp_path: Path, *, traefik: bool) -> None:
    """It is believed of the scheme, and of its client if the gateway knows the address; nobody else is."""
    trusted = f"--trusted-proxies=127.0.0.1,{TLS_PROXY}"
    words = ["--backend=process", "--ServeApp.login_attempts=2", trusted]
    with running_hub(tmp_path, *words, spawns=True, traefik=traefik, tls_proxy=TLS_PROXY) as hub:
        hub.start("ada")
        ada, _ = hub.token("ada")

        def said(client: str, **more: str) -> dict[str, str]:
            return {"X-Forwarded-For": client, "Host": "hub.example.org", **more}

        def wrong(sender: str, number: int, headers: Mapping[str, str]) -> int:
            token = f"{WRONG}{number}"
            return hub.ask("GET", f"{AT}/v1/me", token=token, sender=sender, headers=headers)[0]

        for scheme in ("X-Forwarded-Proto", "X-Scheme"):
            assert link(hub, ada, TLS_PROXY, said(FAR, **{scheme: "https"})) == "https://hub.example.org"
        assert [wrong(TLS_PROXY, number, said(FAR)) for number in range(3)] == [401, 401, 429]
        assert wrong(TLS_PROXY, 3, said(OTHER)) == 401
        assert wrong(CLIENT, 4, LIES) == 401
        until(lambda: set(refused(hub, ada)) == {FAR, OTHER, CLIENT}, "the trail has other addresses")
        assert link(hub, ada, CLIENT, LIES) == hub.origin
