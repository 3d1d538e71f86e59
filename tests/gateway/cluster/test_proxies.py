"""The proxies of `deploy` in front of a cluster: they learn where sessions are, so that few requests hop."""

from __future__ import annotations

import http.client
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.free_ports import free_port
from tests.support.nodes import OWNER, Pair, pair
from tests.support.proxies import haproxy, replaced, require_proxy, started
from tests.support.server import TOKEN, GatewayProcess

__all__ = ["pair"]

SESSIONS, REQUESTS = 100, 1000


@pytest.fixture
def proxy(pair: Pair, tmp_path: Path) -> Iterator[str]:
    """HAProxy before both gateways: its host and port."""
    require_proxy("haproxy")
    port = free_port()
    one, other = pair.node(pair.one)[:8], pair.node(pair.other)[:8]
    changes = {
        "bind :8888": f"bind 127.0.0.1:{port}",
        "10.0.0.1:8888": pair.one.host,
        "10.0.0.2:8888": pair.other.host,
        "11111111": one,
        "22222222": other,
    }
    with started(haproxy(tmp_path, replaced("haproxy.cfg", changes)), tmp_path, port):
        yield f"127.0.0.1:{port}"


def _missing(gateway: GatewayProcess) -> int:
    """How many requests a gateway has answered with 404."""
    text = gateway.get("/metrics").body.decode()
    name = 'cellgate_http_responses_total{status="404"}'
    return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines() if line.startswith(name))


def test_only_the_first_request_of_a_session_can_hop(pair: Pair, proxy: str) -> None:
    nodes = [pair.node(pair.one), pair.node(pair.other)]
    # Each has its owner, and no kernel: all requests are answered 404, by the owner.
    keys = {f"learned-{uuid.uuid4().hex[:8]}": random.choice(nodes) for _ in range(SESSIONS)}
    for key, node in keys.items():
        pair.own(key, node)
    answered = _missing(pair.one) + _missing(pair.other)
    connection = http.client.HTTPConnection(proxy, timeout=60)
    wanted = [*keys, *random.choices([*keys], k=REQUESTS - SESSIONS)]
    hops = []
    for key in wanted:
        connection.request("GET", f"/v1/sessions/{key}", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.headers[OWNER]) == (404, keys[key])
        if len(hops) == 0 and key is wanted[SESSIONS - 1]:
            hops.append(_missing(pair.one) + _missing(pair.other) - answered - SESSIONS)
    connection.close()
    assert 0 < hops[0] < SESSIONS
    assert _missing(pair.one) + _missing(pair.other) - answered - REQUESTS == hops[0]


def test_ids_lead_to_the_gateway_that_made_them(pair: Pair, proxy: str) -> None:
    connection = http.client.HTTPConnection(proxy, timeout=60)
    answered = _missing(pair.one) + _missing(pair.other)
    for gateway in (pair.one, pair.other):
        digits = pair.node(gateway)[:8]
        kernel = f"{digits}{str(uuid.uuid4())[8:]}"
        paths = (f"/api/kernels/{kernel}", f"/api/sessions/{kernel}", f"/e2b/sandboxes/i{digits}{'a' * 16}")
        for path in paths:
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            answer.read()
            assert (answer.status, answer.headers[OWNER]) == (404, pair.node(gateway))
    connection.close()
    assert _missing(pair.one) + _missing(pair.other) - answered == 6


def test_a_new_session_is_learned_from_its_location(pair: Pair, proxy: str) -> None:
    connection = http.client.HTTPConnection(proxy, timeout=60)
    sent = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/sessions", "{}", sent)
    answer = connection.getresponse()
    answer.read()
    path, owner = answer.headers["Location"], answer.headers[OWNER]
    made_at = pair.one if owner == pair.node(pair.one) else pair.other
    before = _served(pair.other if made_at is pair.one else pair.one)
    for _ in range(4):
        connection.request("GET", path, headers=sent)
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.headers[OWNER]) == (200, owner)
    connection.close()
    made_at.delete(path)
    # Only the question itself, and the proxy's own about health.
    assert _served(pair.other if made_at is pair.one else pair.one) - before < 4


def _served(gateway: GatewayProcess) -> int:
    text = gateway.get("/metrics").body.decode()
    name = 'cellgate_http_responses_total{status="200"}'
    return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines() if line.startswith(name))
