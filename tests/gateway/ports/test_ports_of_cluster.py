"""Ports of sessions that another gateway of the cluster has: tickets, cookies and tokens are good at each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPRequest

from cellgate.ports.headers import COOKIE
from tests.gateway.ports.conftest import ECHO, Browser, Ports, base_of
from tests.support.nodes import Pair, pair_of
from tests.support.server import TOKEN
from tests.support.websockets import websocket

PORT = 8000
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    request.getfixturevalue("sandbox")
    with pair_of(tmp_path_factory.mktemp("ports"), "sandbox", ports_port=0) as pair:
        yield pair


@pytest.fixture
def here(pair: Pair) -> Iterator[Ports]:
    """The first gateway, with a program in its session `s`."""
    ports = Ports(pair.one, base_of(pair.one))
    pair.one.execute("s", "1")
    ports.run("s", ECHO, str(PORT))
    yield ports
    pair.one.delete("/v1/sessions/s")


@pytest.fixture
def there(pair: Pair) -> str:
    """Where the other gateway serves ports."""
    return base_of(pair.other)


def at(base: str, url: str) -> str:
    """A URL as it is at another gateway's origin."""
    return urlsplit(url)._replace(netloc=urlsplit(base).netloc).geturl()


def test_a_ticket_and_its_cookie_are_good_at_each_gateway(pair: Pair, here: Ports, there: str) -> None:
    browser, url = Browser(), here.url("s", PORT)
    first = browser.enter(at(there, url))
    seen = browser.open(f"{first}a?b=1")
    assert (seen.status, seen.json()["uri"]) == (200, "/a?b=1")
    assert seen.sent("Cookie") == seen.sent("Cellgate-Hop") == []
    body = b"x" * 3_000_000
    assert len(browser.open(f"{first}b", "POST", body).json()["body"]) == len(body)
    assert browser.open(at(here.base, f"{first}c")).json()["uri"] == "/c"
    for base in (here.base, there):
        assert Browser().open(at(base, url)).status == 401, "it was used"
        assert Browser({("/", COOKIE): "forged"}).open(at(base, first)).status == 401
    used = pair.one.get("/v1/me").json()
    assert used["principal"] == "default"


def test_a_token_opens_a_port_at_each_gateway(here: Ports, there: str) -> None:
    for base in (here.base, there):
        answer = Browser().open(f"{base}/s/{PORT}/x?y=z", **AUTHORIZED)
        assert (answer.status, answer.json()["uri"]) == (200, "/x?y=z")
        assert answer.sent("Authorization") == []
        assert Browser().open(f"{base}/nothing/{PORT}/", **AUTHORIZED).status == 404
        assert Browser().open(f"{base}/s/{PORT}/", Authorization="Bearer wrong").status == 401


async def test_a_websocket_of_a_program_goes_through_the_other_gateway(here: Ports, there: str) -> None:
    request = HTTPRequest(f"{there.replace('http', 'ws', 1)}/s/{PORT}/ws", headers=AUTHORIZED)
    async with websocket(request) as socket, asyncio.timeout(60):
        for word in ("one", b"\x00two"):
            await socket.write_message(word, binary=isinstance(word, bytes))
            assert await socket.read_message() == word


def test_a_program_is_served_at_the_origin_of_ports_alone(pair: Pair, here: Ports, there: str) -> None:
    for gateway in (pair.one, pair.other):
        assert gateway.get(f"/s/{PORT}/").status == 404
        forged = gateway.get(f"/s/{PORT}/", headers={"Cellgate-Hop": "node 1 127.0.0.1 http port 00"})
        assert (forged.status, forged.reason) == (400, "hop_refused")
    assert Browser().open(f"{there}/v1/info", **AUTHORIZED).status == 404


def test_a_port_ends_with_its_session(pair: Pair, here: Ports, there: str) -> None:
    browser = Browser()
    first = browser.enter(at(there, here.url("s", PORT)))
    assert browser.open(first).status == 200
    assert pair.one.delete("/v1/sessions/s").status == 204
    for base in (here.base, there):
        assert browser.open(at(base, first)).status == 404
