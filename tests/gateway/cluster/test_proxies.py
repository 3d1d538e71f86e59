"""The proxies of `deploy` in front of a cluster: they learn where sessions are, so that few requests hop."""

from __future__ import annotations

import csv
import http.client
import io
import random
import re
import socket
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.support.free_ports import free_port
from tests.support.nodes import OWNER, Pair, pair, pair_of
from tests.support.proxies import haproxy, replaced, require_proxy, started
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until

__all__ = ["pair"]

SESSIONS, REQUESTS = 100, 1000
GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "outgrow-one-machine.md"


@pytest.fixture
def proxy(pair: Pair, tmp_path: Path) -> Iterator[str]:
    """HAProxy before both gateways: its host and port."""
    with before(pair, tmp_path) as address:
        yield address


@contextmanager
def before(pair: Pair, tmp_path: Path) -> Iterator[str]:
    """HAProxy before both gateways: its host and port."""
    require_proxy("haproxy")
    port = free_port()
    one, other = pair.node(pair.one)[:8], pair.node(pair.other)[:8]
    changes = {
        "bind :8888": f"bind 127.0.0.1:{port}",
        "gateway-1:8888": pair.one.host,
        "gateway-2:8888": pair.other.host,
        "11111111": one,
        "22222222": other,
        "    server 33333333 gateway-3:8888\n": "",
        "maxconn 4000": f"maxconn 4000\n    stats socket {tmp_path}/haproxy.sock",
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

    def ask(wanted: list[str]) -> int:
        """Ask for sessions; how many of the requests hopped."""
        before = _missing(pair.one) + _missing(pair.other)
        with closing(http.client.HTTPConnection(proxy, timeout=60)) as connection:
            for key in wanted:
                answer = _ask(connection, "GET", f"/v1/sessions/{key}")
                assert (answer.status, answer.headers[OWNER]) == (404, keys[key])
        return _missing(pair.one) + _missing(pair.other) - before - len(wanted)

    assert 0 < ask([*keys]) < SESSIONS
    assert ask(random.choices([*keys], k=REQUESTS - SESSIONS)) == 0


def _rooms(folder: Path) -> list[str]:
    """The states of the gateways for new sessions, as HAProxy sees them."""
    with closing(socket.socket(socket.AF_UNIX)) as asked:
        asked.connect(f"{folder}/haproxy.sock")
        asked.sendall(b"show stat openers 4 -1\n")
        rows = csv.DictReader(io.StringIO(asked.makefile().read()))
        return sorted(row["status"] for row in rows)


def _waiting(gateway: GatewayProcess) -> int:
    """How many sessions wait for a kernel."""
    text = gateway.get("/metrics").body.decode()
    (line,) = (each for each in text.splitlines() if each.startswith("cellgate_pool_waiting_claims "))
    return int(float(line.split()[1]))


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
) -> http.client.HTTPResponse:
    """The answer to a request, whose body was read."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer


def test_ids_lead_to_the_gateway_that_made_them(pair: Pair, proxy: str) -> None:
    before = _missing(pair.one) + _missing(pair.other)
    with closing(http.client.HTTPConnection(proxy, timeout=60)) as connection:
        for gateway in (pair.one, pair.other):
            digits = pair.node(gateway)[:8]
            made = f"{digits}{str(uuid.uuid4())[8:]}"
            sandbox = f"i{digits}{'a' * 16}"
            for path in (f"/api/kernels/{made}", f"/api/sessions/{made}", f"/e2b/sandboxes/{sandbox}"):
                answer = _ask(connection, "GET", path)
                assert (answer.status, answer.headers[OWNER]) == (404, pair.node(gateway))
    assert _missing(pair.one) + _missing(pair.other) - before == 6


def test_new_sessions_go_where_there_is_room(tmp_path: Path) -> None:
    """And once there is none anywhere, they wait in line."""
    with pair_of(tmp_path, max_kernels=1, pool_size=0, claim_timeout=PATIENCE) as pair:
        both = (pair.one, pair.other)
        with before(pair, tmp_path) as proxy, ThreadPoolExecutor(1) as thread:

            def execute(session: str) -> http.client.HTTPResponse:
                with closing(http.client.HTTPConnection(proxy, timeout=PATIENCE)) as connection:
                    return _ask(connection, "POST", f"/v1/sessions/{session}/execute", '{"code": "1"}')

            first = execute("first")
            until(lambda: _rooms(tmp_path) == ["DOWN", "UP"], "HAProxy does not see that a gateway is full")
            second = execute("second")
            assert (first.status, second.status) == (200, 200)
            assert {first.headers[OWNER], second.headers[OWNER]} == set(map(pair.node, both))
            until(lambda: _rooms(tmp_path) == ["DOWN", "DOWN"], "HAProxy does not see that all are full")
            waiting = thread.submit(execute, "third")
            until(lambda: sum(_waiting(each) for each in both) == 1, "no session waits")
            for session in ("first", "second"):
                assert pair.one.delete(f"/v1/sessions/{session}").status == 204
            assert waiting.result(PATIENCE).status == 200


def test_names_of_sessions_choose_among_gateways_that_share_nothing(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    """By the example of the guide: all requests of a session come to one gateway, and each has some."""
    require_proxy("haproxy")
    (example,) = re.findall(r"^```haproxy\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    gateways, port = (start_gateway(), start_gateway()), free_port()
    changes = {":8888\n    http": f"127.0.0.1:{port}\n    http"} | dict(
        zip(("10.0.0.1:8888", "10.0.0.2:8888"), (each.host for each in gateways), strict=True)
    )
    for old, new in changes.items():
        assert old in example
        example = example.replace(old, new)
    owners: defaultdict[str, set[str | None]] = defaultdict(set)
    with started(haproxy(tmp_path, example), tmp_path, port):
        for number in [*range(SESSIONS)] * 2:
            key = f"named-{number}"
            for path in (f"/v1/sessions/{key}", f"/v1/sessions/{key}/files"):
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
                    owners[key].add(_ask(connection, "GET", path).headers[OWNER])
    assert {len(found) for found in owners.values()} == {1}
    assert {owner for found in owners.values() for owner in found} == {
        each.get("/healthz").headers[OWNER] for each in gateways
    }


def test_a_new_session_is_learned_from_its_location(pair: Pair, proxy: str) -> None:
    with closing(http.client.HTTPConnection(proxy, timeout=60)) as connection:
        made = _ask(connection, "POST", "/v1/sessions", "{}")
        path = made.headers["Location"]
        assert _ask(connection, "DELETE", path).status == 204
        nodes = {made.headers[OWNER]}
        for _ in range(10):
            answer = _ask(connection, "GET", path)
            assert answer.status == 200
            nodes.add(answer.headers[OWNER])
    assert nodes == {made.headers[OWNER]}
