"""Requests through a proxy: trusted ones say who their client is, from anybody else it changes nothing."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.conftest import serving
from tests.gateway.http.test_connections import ended
from tests.support.server import TOKEN, GatewayProcess, Response, until

PROXY, STRANGER = "127.0.0.2", "127.0.0.1"
NAME = "gate.example.org"
CLIENT = "198.51.100.1"
PER_ADDRESS = 4


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that trusts one address, and takes few connections of each client."""
    with serving(
        tmp_path_factory.mktemp("proxied") / "data",
        trusted_proxies=f"{PROXY},10.0.0.0/8",
        allowed_hosts=NAME,
        connections_per_address=PER_ADDRESS,
        log_json=True,
        log_level="INFO",
    ) as process:
        yield process


def ask(gateway: GatewayProcess, sender: str, path: str, **headers: str) -> Response:
    """A GET from this address of the loopback network; `_` in a header's name stands for `-`."""
    host, _, port = gateway.host.partition(":")
    with closing(http.client.HTTPConnection(host, int(port), source_address=(sender, 0), timeout=60)) as way:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        way.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"} | sent)
        with way.getresponse() as answer:
            return Response(answer.status, answer.headers, answer.read())


def logged_client(gateway: GatewayProcess, path: str) -> str:
    """The client's address in the log line of the request for this path."""

    def found() -> str | None:
        lines = [line for line in gateway.logged() if f"GET {path} " in line]
        return json.loads(lines[-1])["client"] if lines else None

    return until(found, "the request is not logged")


@pytest.mark.parametrize(
    ("sender", "forwarded_for", "client"),
    [
        (PROXY, CLIENT, CLIENT),
        (PROXY, f"127.0.0.1, {CLIENT}, 10.0.0.3", CLIENT),
        (PROXY, "nonsense", PROXY),
        (PROXY, "198.51.100.9," * 4500 + CLIENT, CLIENT),
        (STRANGER, CLIENT, STRANGER),
        (STRANGER, f"{CLIENT}, {PROXY}", STRANGER),
    ],
)
def test_only_a_trusted_proxy_names_its_client(
    proxied: GatewayProcess, sender: str, forwarded_for: str, client: str
) -> None:
    path = f"/v1/nothing-for-{hash((sender, forwarded_for))}"
    assert ask(proxied, sender, path, X_Forwarded_For=forwarded_for).status == 404
    assert logged_client(proxied, path) == client


def test_a_list_that_fits_no_head_is_refused(proxied: GatewayProcess) -> None:
    answer = ask(proxied, PROXY, "/v1/info", X_Forwarded_For="198.51.100.9," * 10_000)
    assert answer.status == 431


@pytest.mark.parametrize(
    ("sender", "forwarded", "status"),
    [
        (PROXY, NAME, 200),
        (PROXY, f"evil.example, {NAME}", 200),
        (PROXY, "evil.example", 403),
        (STRANGER, "evil.example", 200),
    ],
)
def test_a_proxy_s_host_is_checked_like_any_other(
    proxied: GatewayProcess, sender: str, forwarded: str, status: int
) -> None:
    assert ask(proxied, sender, "/v1/info", Host="localhost", X_Forwarded_Host=forwarded).status == status


def test_the_own_origin_is_what_the_proxy_s_client_asked_for(proxied: GatewayProcess) -> None:
    own = f"https://{NAME}"
    headers = {"Host": "localhost:1234", "Origin": own, "X_Forwarded_Host": NAME}
    assert ask(proxied, PROXY, "/v1/info", **headers).status == 200
    assert ask(proxied, STRANGER, "/v1/info", **headers).status == 403
    assert ask(proxied, PROXY, "/v1/info", **headers | {"Origin": "https://evil.example"}).status == 403


def open_websocket(gateway: GatewayProcess, stack: ExitStack, key: str, client: str | None) -> socket.socket:
    """The connection after the first line of the answer to an upgrade."""
    host, _, port = gateway.host.partition(":")
    connection = stack.enter_context(closing(socket.socket()))
    connection.settimeout(60)
    connection.bind((PROXY, 0))
    connection.connect((host, int(port)))
    connection.sendall(
        f"GET /v1/sessions/{key}/ws HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: {client}\r\n"
        f"Authorization: Bearer {TOKEN}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n".encode()
    )
    return connection


def status_of(connection: socket.socket) -> int:
    return int(connection.recv(4096).split()[1])


def test_connections_count_for_the_proxy_s_clients(proxied: GatewayProcess) -> None:
    """One client of a proxy can use up its own places only, and the proxy itself has no limit."""
    assert proxied.post("/v1/sessions", {"session": "counted"}).status == 201
    with ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            assert status_of(open_websocket(proxied, stack, "counted", CLIENT)) == 101
        refused = open_websocket(proxied, stack, "counted", CLIENT)
        assert ended(refused).startswith(b"HTTP/1.1 503 Too many connections\r\n")
        for other in ("198.51.100.2", "198.51.100.3", "2001:db8::1"):
            for _ in range(PER_ADDRESS):
                assert status_of(open_websocket(proxied, stack, "counted", other)) == 101

    def has_places_again() -> bool:
        with ExitStack() as stack:
            return status_of(open_websocket(proxied, stack, "counted", CLIENT)) == 101

    until(has_places_again, "the places of closed connections are not free")


def test_a_kept_connection_counts_for_one_client_after_another(proxied: GatewayProcess) -> None:
    """A proxy's connection is released by the end of a request, and its client's name with it."""
    host, _, port = proxied.host.partition(":")
    with ExitStack() as stack:
        ways = [
            stack.enter_context(
                closing(http.client.HTTPConnection(host, int(port), source_address=(PROXY, 0), timeout=60))
            )
            for _ in range(2 * PER_ADDRESS)
        ]
        for number, way in enumerate(ways * 2):
            path = f"/v1/nothing-{number}"
            address = {} if number % 3 == 0 else {"X-Forwarded-For": f"203.0.113.{number % 3}"}
            way.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"} | address)
            answer = way.getresponse()
            assert (answer.status, bool(answer.read())) == (404, True)
            assert logged_client(proxied, path) == address.get("X-Forwarded-For", PROXY)
