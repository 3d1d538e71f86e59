"""Clients that begin and never end: half requests, slow bodies, slow frames, unread answers, and too many."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from cellgate.http.listener.server import LOOPBACK, MAX_HEADERS, origin_of
from cellgate.http.listener.settings import MOST_CONNECTIONS, connections_for, too_few
from cellgate_kernels.base.resources import MIB
from tests.conftest import StartGateway
from tests.support.channels import raw_socket
from tests.support.nightly import mostly_nightly
from tests.support.server import TOKEN, GatewayProcess, until

HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127"
AUTHORIZED = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """This process opens as many sockets as its clients would together."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Client:
    """Raw connections to a gateway; `ended` tells whether the gateway closed one."""

    def __init__(self, gateway: GatewayProcess, stack: ExitStack) -> None:
        self._gateway = gateway
        self._stack = stack

    def connect(self, first: bytes = b"", *, window: int = 0) -> socket.socket:
        host, _, port = self._gateway.host.rpartition(":")
        connection = self._stack.enter_context(closing(socket.socket()))
        connection.settimeout(60)
        if window:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        connection.connect((host, int(port)))
        connection.sendall(first)
        return connection

    def websocket(self, session: str) -> socket.socket:
        """A WebSocket of events, after its handshake."""
        connection = self.connect(
            f"GET /v1/sessions/{session}/ws HTTP/1.1\r\n".encode()
            + AUTHORIZED
            + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            + b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
        )  # fmt: skip
        assert b" 101 " in connection.recv(1024)
        return connection


@contextmanager
def clients(gateway: GatewayProcess) -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(gateway, stack)


def hear(connection: socket.socket, wanted: bytes) -> None:
    """Returns once the gateway has said this."""
    connection.settimeout(60)
    said = b""
    while wanted not in said:
        part = connection.recv(65536)
        assert part, "it was closed"
        said += part


def ended(connection: socket.socket, seconds: float = 60) -> bytes:
    """What the gateway still said before it closed the connection, which it must."""
    connection.settimeout(seconds)
    said = b""
    try:
        while part := connection.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def closed_for(gateway: GatewayProcess) -> dict[str, float]:
    lines = gateway.get("/metrics").body.decode().splitlines()
    name = 'cellgate_connections_closed_total{reason="'
    found = (line.removeprefix(name).split('"} ') for line in lines if line.startswith(name))
    return {reason: float(value) for reason, value in found if float(value)}


def serves(gateway: GatewayProcess, session: str = "other") -> None:
    assert gateway.get("/healthz", timeout=60).status == 200
    assert gateway.execute(session, "1 + 1")["text"] == "2"


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["reason"]


# ---- heads


def test_a_thousand_half_open_requests_end_nothing(start_gateway: StartGateway) -> None:
    gateway = start_gateway(head_timeout=3)
    gateway.execute("other", "1")
    with clients(gateway) as client:
        halves = [client.connect(HALF_HEAD) for _ in range(500)]
        halves += [client.connect() for _ in range(500)]
        for _ in range(5):
            serves(gateway)
        assert {ended(half)[:12] for half in halves[:500]} == {b"HTTP/1.1 408"}
        assert {ended(half) for half in halves[500:]} == {b""}
        serves(gateway)
    assert closed_for(gateway) == {"head_timeout": 1000}


def test_a_burst_while_the_gateway_is_busy_is_not_lost(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    with clients(gateway) as client:
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            burst = [client.connect(HALF_HEAD + b".0.0.1\r\n\r\n") for _ in range(500)]
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)
        for connection in burst:
            hear(connection, b"HTTP/1.1 200")


def test_a_head_that_begins_behind_a_request_has_its_own_time(start_gateway: StartGateway) -> None:
    """Its bytes came together with the request before it, and no more come."""
    gateway = start_gateway(head_timeout=1, connection_idle_timeout=60)
    with clients(gateway) as client:
        whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        said = ended(client.connect(whole + HALF_HEAD))
        assert said.startswith(b"HTTP/1.1 200 OK")
        assert b"HTTP/1.1 408 " in said
    assert closed_for(gateway) == {"head_timeout": 1}


def test_an_idle_connection_is_closed(start_gateway: StartGateway) -> None:
    gateway = start_gateway(connection_idle_timeout=1)
    with clients(gateway) as client:
        connection = client.connect(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert ended(connection).startswith(b"HTTP/1.1 200 OK")
    assert closed_for(gateway) == {"idle_timeout": 1}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * MAX_HEADERS + b"\r\n", 400),
        (b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 2, 3\r\n\r\n{}", 400),
        (b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: -1\r\n\r\n", 400),
        (
            b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED
            + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
        ),
        (b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (
            b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n1;"
            + b"x" * 1000 + b"\r\n{\r\n", 400,
        ),
        (b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (
            b"POST /v1/sessions HTTP/1.1\r\n" + AUTHORIZED + b"Content-Type: text/plain\r\nConnection: close"
            + b'\r\nTransfer-Encoding: chunked\r\n\r\nD\r\n{"nope": "1"}\r\n0\r\n\r\n', 415,
        ),
        (b"POST /v1/sessions HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 200000000\r\n\r\n{", 413),
        (b"POST /v1/sessions HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 1000000000000000\r\n\r\n{", 413),
        (b"GET /healthz HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nnonsense\r\n\r\n", 400),
        (b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: x\r\n\r\n", 400),
        (b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Idempotency-Key: \x01\r\n\r\n", 400),
    ],
)  # fmt: skip
def test_a_head_that_is_none_is_told_so(gateway: GatewayProcess, request_bytes: bytes, status: int) -> None:
    with clients(gateway) as client:
        said = ended(client.connect(request_bytes))
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nContent-Type: application/problem+json\r\n" in said
    # Sent again, it would be refused again.
    assert b"Retry-After" not in said
    assert gateway.get("/healthz").status == 200


def test_a_thousand_requests_at_once_on_one_connection_are_answered_in_order(gateway: GatewayProcess) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with clients(gateway) as client:
        connection = client.connect(one * 999 + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert gateway.get("/healthz").status == 200
        assert ended(connection).count(b"HTTP/1.1 200 OK") == 1000


# ---- bodies


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_without_progress_is_cut_off(start_gateway: StartGateway, *, chunked: bool) -> None:
    gateway = start_gateway(body_timeout=4, body_rate=100)
    gateway.execute("other", "1")
    kind = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: 1000\r\n\r\n"
    piece = b"1\r\n \r\n" if chunked else b" "
    with clients(gateway) as client:
        paths = [b"POST /v1/execute", b"PUT /v1/sessions/other/files/f"] * 50
        slow = [client.connect(path + b" HTTP/1.1\r\n" + AUTHORIZED + kind + piece) for path in paths]
        serves(gateway)
        time.sleep(0.2)
        for connection in slow:
            with suppress(OSError):  # on a slow machine its time may be over already
                connection.sendall(piece)
        assert {problem(ended(connection)) for connection in slow} == {(408, "request_timeout")}
        serves(gateway)
    assert closed_for(gateway) == {"body_timeout": 100}
    uploads = gateway.data_dir / "uploads"
    until(lambda: not list(uploads.iterdir()), "an upload is left")


def test_a_refused_body_is_not_asked_for(gateway: GatewayProcess) -> None:
    """`Expect: 100-continue` with a body that is too large: the answer comes instead of the 100."""
    head = b"POST /v1/execute HTTP/1.1\r\n" + AUTHORIZED + b"Expect: 100-continue\r\n"
    with clients(gateway) as client:
        connection = client.connect(head + b"Content-Length: 500000000\r\n\r\n")
        assert ended(connection).startswith(b"HTTP/1.1 413 ")


# ---- WebSockets


def frame(payload: bytes, *, opcode: int = 1, final: bool = True, length: int | None = None) -> bytes:
    """A masked frame, or the begin of one that says it is longer."""
    size = len(payload) if length is None else length
    return struct.pack("!BBQ4s", opcode | (0x80 if final else 0), 0xFF, size, bytes(4)) + payload


HALF_FRAMES = {
    "one byte": frame(b"")[:1],
    "half a head": frame(b"", length=1000)[:7],
    "half a message": frame(b"{", length=1000),
    "a fragment": frame(b"{", final=False),
    "a fragment and a ping": frame(b"{", final=False) + struct.pack("!BB4s", 0x89, 0x80, bytes(4)),
}


@pytest.mark.parametrize("name", mostly_nightly(HALF_FRAMES, {"half a message", "a fragment and a ping"}))
def test_half_a_message_on_a_websocket_is_cut_off(start_gateway: StartGateway, name: str) -> None:
    gateway = start_gateway(body_timeout=1, body_rate=100)
    gateway.execute("other", "1")
    with clients(gateway) as client:
        idle = client.websocket("other")
        slow = [client.websocket("other") for _ in range(50)]
        for connection in slow:
            connection.sendall(HALF_FRAMES[name])
        serves(gateway)
        for connection in slow:
            ended(connection)
        # One that waits between two messages may do so as long as it likes.
        idle.sendall(frame(json.dumps({"execute": {"code": "6 * 7"}, "id": 1}).encode()))
        hear(idle, b"42")
    assert closed_for(gateway) == {"frame_timeout": 50}


def test_a_client_that_leaves_in_its_handshake_leaves_no_traceback(start_gateway: StartGateway) -> None:
    """In a body that a handshake should not have, with a token or without; `stop` looks into the log."""
    gateway = start_gateway()
    gateway.execute("other", "1")
    for path in (b"/v1/sessions/other/ws", b"/api/kernels/x/channels"):
        for head in (AUTHORIZED, b"Host: 127.0.0.1\r\n"):
            with clients(gateway) as client:
                connection = client.connect(
                    b"GET " + path + b" HTTP/1.1\r\n" + head + b"Content-Length: 10\r\n\r\n1"
                )
                connection.shutdown(socket.SHUT_WR)
                ended(connection)
    serves(gateway)


def test_unfinished_messages_have_a_limit_together(start_gateway: StartGateway) -> None:
    # A principal has three quarters of it.
    gateway = start_gateway(client_memory="28m")
    gateway.execute("other", "1")
    with clients(gateway) as client:
        small = client.websocket("other")
        small.sendall(frame(b" " * 1000, final=False))
        large = [client.websocket("other") for _ in range(4)]
        for number, connection in enumerate(large):
            try:
                connection.sendall(frame(bytes(8 * MIB - number), length=60 * MIB))
            except OSError:
                continue
        until(lambda: closed_for(gateway) == {"unfinished": 2}, "they are not closed")
        serves(gateway)
        small.sendall(frame(b" ", opcode=0))
        hear(small, b"problem")
    assert closed_for(gateway) == {"unfinished": 2}


# ---- answers


def test_a_jupyter_client_may_read_as_late_as_it_likes(start_gateway: StartGateway) -> None:
    """What waits for it has limits of its own: it is not cut off, as others are."""
    gateway = start_gateway(answer_timeout=1)
    gateway.execute("a", "1")
    with raw_socket(gateway, "a") as client:
        gateway.execute("a", "print('x' * 9_000_000)")
        time.sleep(5)
        assert closed_for(gateway) == {}
        client.settimeout(60)
        received = 0
        while received < 9_000_000:
            part = client.recv(MIB)
            assert part, "it was cut off"
            received += len(part)


# ---- their number


def test_one_address_may_have_its_part(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_connections=100, connections_per_address=5)
    gateway.execute("other", "1")
    with clients(gateway) as client:
        for _ in range(5):
            client.websocket("other")
        assert problem(ended(client.connect())) == (503, "too_many_connections")


def test_without_open_files_the_log_stays_short_and_service_comes_back(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_connections=4000)
    gateway.execute("other", "1")
    used = len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))
    _, hard = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (used + 60, hard))
    with clients(gateway) as client:
        for _ in range(400):
            client.connect(HALF_HEAD)
        time.sleep(2)
        assert gateway.get("/healthz", timeout=60).status == 200
    resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    serves(gateway)
    assert gateway.log.read_text().count("Can't accept connections") == 1
    assert len(gateway.log.read_text().splitlines()) < 500


def test_limits_follow_from_the_open_files_that_are_allowed() -> None:
    assert connections_for(65_536, 64) == MOST_CONNECTIONS
    assert connections_for(4096, 64) == (4096 - 128 - 24 * 64) // 2
    assert connections_for(1024, 64) == 256
    assert connections_for(16, 64) == 16


def test_limits_beyond_the_open_files_that_are_allowed_are_told() -> None:
    """Those that follow from the number of files are told only where kernels alone may need them all."""
    assert too_few(4096, 64, connections_for(4096, 64)) is None
    assert too_few(4096, 64, 4096 - 128 - 24 * 64) is None
    for files, kernels, connections, left in ((4096, 64, 2433, 2432), (1024, 64, 256, 0), (256, 2, 81, 80)):
        told = too_few(files, kernels, connections)
        assert told is not None
        assert f"may open {files} files" in told
        assert f"{kernels} kernels (max_kernels) need up to {24 * kernels}" in told
        assert f"leaves {left} for {connections} connections (max_connections)" in told


def test_a_gateway_tells_of_connections_that_it_can_t_have(start_gateway: StartGateway) -> None:
    """They are not lowered: most connections need no second file."""
    gateway = start_gateway(max_connections=100_000)
    files, _ = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
    log = gateway.log.read_text()
    assert log.count("may open") == 1
    assert f"may open {files} files" in log
    assert "for 100000 connections (max_connections)" in log


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        (("127.0.0.1", 1), LOOPBACK),
        (("::1", 1, 0, 0), LOOPBACK),
        (("::ffff:127.0.0.1", 1, 0, 0), LOOPBACK),
        ("", LOOPBACK),
        (("192.0.2.1", 1), "192.0.2.1"),
        (("::ffff:192.0.2.1", 1, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 1, 0, 0), "20010db800000000"),
        (("2001:db8::2:3%eth0", 1, 0, 0), "20010db800000000"),
    ],
)
def test_an_address_is_a_network_where_one_has_many(address: object, origin: str) -> None:
    assert origin_of(address) == origin
