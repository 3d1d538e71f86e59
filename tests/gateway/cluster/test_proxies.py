"""The proxies of `deploy` in front of a cluster: they learn where sessions are, so that few requests hop."""

from __future__ import annotations

import csv
import http.client
import io
import json
import random
import re
import socket
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from tornado.httpclient import HTTPRequest

from cellgate.client import Gateway
from tests.conftest import StartGateway
from tests.support.certificates import Authority
from tests.support.free_ports import free_port
from tests.support.nodes import OWNER, Pair, pair, pair_of
from tests.support.proxies import envoy, haproxy, replaced, require_proxy, started
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until
from tests.support.websockets import websocket

__all__ = ["pair"]


class Answer(NamedTuple):
    """What the proxy answered."""

    status: int
    headers: Message
    told: bytes


SESSIONS, REQUESTS = 100, 1000
FORWARDED = {
    "X-Forwarded-For": "192.0.2.1",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "gateway.example.org",
}
"""What a proxy before HAProxy says, or a client that pretends to be one."""
GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "outgrow-one-machine.md"


@pytest.fixture(params=["haproxy", "envoy"])
def proxy(request: pytest.FixtureRequest, pair: Pair, tmp_path: Path) -> Iterator[str]:
    """A proxy before both gateways: its host and port."""
    require_proxy(request.param)
    port = free_port()
    if request.param == "envoy":
        command = envoy_before((pair.one.host, pair.other.host), tmp_path, port)
    else:
        command = haproxy_before(digits(pair), tmp_path, port)
    with started(command, tmp_path, port):
        yield f"127.0.0.1:{port}"


def digits(pair: Pair) -> dict[str, str]:
    """The hosts of both gateways, by the first digits of their ids."""
    return {pair.node(each)[:8]: each.host for each in (pair.one, pair.other)}


def haproxy_before(
    hosts: Mapping[str, str], folder: Path, port: int, more: Mapping[str, str] | None = None
) -> list[str]:
    """HAProxy's command, before these two, by the first digits of their ids; `more` words to replace."""
    one, other = hosts
    changes = {
        "bind :8888": f"bind 127.0.0.1:{port}",
        "gateway-1:8888": hosts[one],
        "gateway-2:8888": hosts[other],
        "11111111": one,
        "22222222": other,
        "    server 33333333 gateway-3:8888\n": "",
        "maxconn 4000": f"maxconn 4000\n    stats socket {folder}/haproxy.sock",
        **(more or {}),
    }
    return haproxy(folder, replaced("haproxy/haproxy.cfg", changes))


def envoy_before(hosts: Iterable[str], folder: Path, port: int) -> list[str]:
    """Envoy's command, before these two."""
    address = "address: {}, port_value: {}".format
    changes = {address("0.0.0.0", 8888): address("127.0.0.1", port)}
    for number, host in enumerate(hosts, 1):
        changes[address(f"10.0.0.{number}", 8888)] = address(*host.split(":"))
    return envoy(folder, replaced("envoy.yaml", changes))


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


def _states(folder: Path, backend: str) -> list[str]:
    """The states of the gateways in one of HAProxy's backends, as it sees them."""
    with closing(socket.socket(socket.AF_UNIX)) as asked:
        asked.connect(f"{folder}/haproxy.sock")
        asked.sendall(f"show stat {backend} 4 -1\n".encode())
        rows = csv.DictReader(io.StringIO(asked.makefile().read()))
        return sorted(row["status"] for row in rows)


def _waiting(gateway: GatewayProcess) -> int:
    """How many sessions wait for a kernel."""
    text = gateway.get("/metrics").body.decode()
    (line,) = (each for each in text.splitlines() if each.startswith("cellgate_pool_waiting_claims "))
    return int(float(line.split()[1]))


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str | bytes | None = None,
    token: str = TOKEN,
) -> Answer:
    """The answer to a request."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return Answer(answer.status, answer.headers, answer.read())


def test_ids_lead_to_the_gateway_that_made_them(pair: Pair, proxy: str) -> None:
    with closing(http.client.HTTPConnection(proxy, timeout=60)) as connection:
        # HAProxy is configured to know the gateways' digits; Envoy learns them from any answer of each.
        for node in (pair.node(pair.one), pair.node(pair.other)):
            key = f"known-{uuid.uuid4().hex[:8]}"
            pair.own(key, node)
            assert _ask(connection, "GET", f"/v1/sessions/{key}").headers[OWNER] == node
        before = _missing(pair.one) + _missing(pair.other)
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
    require_proxy("haproxy")
    with pair_of(tmp_path, max_kernels=1, pool_size=0, claim_timeout=PATIENCE) as pair:
        both = (pair.one, pair.other)
        port = free_port()
        proxy = f"127.0.0.1:{port}"
        with (
            started(haproxy_before(digits(pair), tmp_path, port), tmp_path, port),
            ThreadPoolExecutor(1) as thread,
        ):

            def execute(session: str) -> Answer:
                with closing(http.client.HTTPConnection(proxy, timeout=PATIENCE)) as connection:
                    return _ask(connection, "POST", f"/v1/sessions/{session}/execute", '{"code": "1"}')

            first = execute("first")
            until(
                lambda: _states(tmp_path, "openers") == ["DOWN", "UP"],
                "HAProxy does not see that a gateway is full",
            )
            second = execute("second")
            assert (first.status, second.status) == (200, 200)
            assert {first.headers[OWNER], second.headers[OWNER]} == set(map(pair.node, both))
            until(
                lambda: _states(tmp_path, "openers") == ["DOWN", "DOWN"],
                "HAProxy does not see that all are full",
            )
            waiting = thread.submit(execute, "third")
            until(lambda: sum(_waiting(each) for each in both) == 1, "no session waits")
            for session in ("first", "second"):
                assert pair.one.delete(f"/v1/sessions/{session}").status == 204
            assert waiting.result(PATIENCE).status == 200


@pytest.mark.parametrize("proxy", ["haproxy"], indirect=True)
def test_a_token_finds_all_kernels_that_it_has_started(proxy: str) -> None:
    """Jupyter's clients list them by requests that no gateway is named in."""
    with closing(http.client.HTTPConnection(proxy, timeout=60)) as connection:
        started = [json.loads(_ask(connection, "POST", "/api/kernels", "{}").told)["id"] for _ in range(3)]
        for _ in range(3):
            listed = json.loads(_ask(connection, "GET", "/api/kernels").told)
            assert {*started} <= {each["id"] for each in listed}
        for kernel in started:
            assert _ask(connection, "DELETE", f"/api/kernels/{kernel}").status == 204


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


async def test_events_pass_as_they_happen_and_a_websocket_passes(pair: Pair, proxy: str) -> None:
    key = f"passes-{uuid.uuid4().hex[:8]}"
    async with Gateway(f"http://{proxy}", TOKEN).session(key) as session:
        async with aclosing(session.stream("import time\nprint(1)\ntime.sleep(100)")) as events:
            async for event in events:
                if event.type == "stream":
                    break
        url = f"ws://{proxy}/v1/sessions/{key}/ws"
        async with websocket(HTTPRequest(url, headers={"Authorization": f"Bearer {TOKEN}"})) as opened:
            await opened.write_message(json.dumps({"id": 1, "execute": {"code": "20 + 2"}}))
            while '"22"' not in (message := await opened.read_message()):
                assert isinstance(message, str)


class Stub:
    """A server in the place of a gateway: it is alive, and answers each POST with a status, or as full."""

    def __init__(self, status: int, *, digit: str = "0", is_ready: bool = True) -> None:
        self.asked: list[bytes] = []
        self.told: dict[str, str | None] = {}
        self.id = digit * 32
        self.is_ready = is_ready
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(200 if stub.is_ready or self.path == "/healthz" else 500)

            def do_POST(self) -> None:
                stub.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
                stub.told = {name: self.headers[name] for name in FORWARDED}
                self._answer(status)

            def _answer(self, status: int) -> None:
                self.send_response(status)
                if status == 503:
                    self.send_header("Cellgate-Full", "1")
                self.send_header(OWNER, stub.id)
                self.send_header(f"{OWNER}-Address", f"http://{stub.host}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def behind_envoy(folder: Path, *stubs: Stub) -> Iterator[http.client.HTTPConnection]:
    """A connection to Envoy before these stubs."""
    require_proxy("envoy")
    port = free_port()
    command = envoy_before([each.host for each in stubs], folder, port)
    with (
        started(command, folder, port),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection,
    ):
        yield connection


def test_a_gateway_that_opens_no_more_sessions_or_is_gone_is_passed_over(tmp_path: Path) -> None:
    """Only then a request is repeated: a gateway may have acted before any other failure."""
    with (
        closing(Stub(200)) as ready,
        closing(Stub(503)) as full,
        behind_envoy(tmp_path, ready, full) as connection,
    ):
        asked = [str(number).encode() * 1000 for number in range(40)]
        assert {_ask(connection, "POST", "/v1/execute", each).status for each in asked} == {200}
        assert ready.asked == asked
        assert set(full.asked) < set(asked), "it was asked for some"
        assert full.asked
        full.close()
        assert {_ask(connection, "POST", "/v1/execute", each).status for each in asked} == {200}
        assert ready.asked == asked * 2


@pytest.mark.parametrize("name", ["haproxy", "envoy"])
def test_gateways_that_take_no_new_work_are_asked_if_no_other_does(name: str, tmp_path: Path) -> None:
    """As while the database is away: what is known of goes to its gateway, and Jupyter's stays together."""
    require_proxy(name)
    port = free_port()
    with closing(Stub(200, digit="1")) as ready, closing(Stub(200, digit="2", is_ready=False)) as other:
        if name == "haproxy":
            command = haproxy_before({each.id[:8]: each.host for each in (ready, other)}, tmp_path, port)
        else:
            command = envoy_before((ready.host, other.host), tmp_path, port)
        with (
            started(command, tmp_path, port),
            closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection,
        ):

            def ask(path: str, token: str = TOKEN) -> str | None:
                """The gateway that answers a request."""
                answer = _ask(connection, "POST", path, b"{}", token)
                assert answer.status == 200
                return answer.headers[OWNER]

            if name == "haproxy":
                # Envoy has looked at all of them before it listens.
                for backend in ("openers", "jupyter", "gateways"):
                    until(
                        lambda backend=backend: _states(tmp_path, backend) == ["DOWN", "UP"],  # type: ignore[misc]
                        "HAProxy does not see that a gateway is not ready",
                    )
            assert {ask("/v1/execute") for _ in range(20)} == {ready.id}
            assert {ask("/api/kernels") for _ in range(20)} == {ready.id}
            ready.is_ready = False
            if name == "haproxy":
                until(
                    lambda: _states(tmp_path, "gateways") == _states(tmp_path, "openers") == ["DOWN", "DOWN"],
                    "HAProxy does not see that no gateway is ready",
                )
            found: dict[str | None, str] = {}

            def both_are_asked() -> bool:
                somebody = uuid.uuid4().hex
                path = f"/v1/sessions/{somebody}/execute"
                found.setdefault(ask(path, somebody), path)
                return len(found) == 2

            until(both_are_asked, "the other gateway is not asked")
            for node, path in found.items():
                assert {ask(path) for _ in range(20)} == {node}
            if name == "haproxy":
                assert len({ask("/api/kernels") for _ in range(20)}) == 1


@pytest.mark.parametrize("tls", ["nowhere", "here", "before"])
def test_gateways_learn_who_asks_and_whether_by_tls(tls: str, tmp_path: Path) -> None:
    """HAProxy says what it sees itself; what comes from elsewhere counts if that proxy's address is named."""
    require_proxy("haproxy")
    port, secure_port = free_port(), free_port()
    authority = Authority(tmp_path)
    pem = tmp_path / "cellgate.pem"
    pem.write_bytes(b"".join(file.read_bytes() for file in authority.issue("proxy")))
    changes: dict[str, dict[str, str]] = {
        "nowhere": {},
        "here": {
            "# bind :8443 ssl": f"bind 127.0.0.1:{secure_port} ssl",
            "/usr/local/etc/haproxy/cellgate.pem": str(pem),
        },
        "before": {"acl before always_false": "acl before src 127.0.0.1"},
    }
    with closing(Stub(200, digit="1")) as one, closing(Stub(200, digit="2")) as other:
        hosts = {each.id[:8]: each.host for each in (one, other)}
        command = haproxy_before(hosts, tmp_path, port, changes[tls])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if tls == "here":
            context = authority.context()
            connection = http.client.HTTPSConnection("127.0.0.1", secure_port, timeout=60, context=context)
        with started(command, tmp_path, port), closing(connection):
            connection.request("POST", "/v1/execute", b"{}", FORWARDED)
            assert connection.getresponse().status == 200
    (told,) = (each.told for each in (one, other) if each.asked)
    scheme = "https" if tls == "here" else "http"
    own = {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": scheme, "X-Forwarded-Host": None}
    assert told == (FORWARDED if tls == "before" else own)


def test_a_request_that_may_have_been_carried_out_is_not_repeated(tmp_path: Path) -> None:
    with (
        closing(Stub(500)) as one,
        closing(Stub(500)) as other,
        behind_envoy(tmp_path, one, other) as connection,
    ):
        assert _ask(connection, "POST", "/v1/execute", b"{}").status == 500
        assert one.asked + other.asked == [b"{}"]
