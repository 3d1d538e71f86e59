"""Clients that read nothing of an answer, or slowly: all others go on, and nothing is held for long."""

from __future__ import annotations

import base64
import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from cellgate.record.verify.notebooks import check_notebook
from cellgate_kernels.base.resources import MIB
from tests.conftest import StartGateway, serving
from tests.support.nightly import mostly_nightly
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, together, until

LARGE = "import base64, os\nfor _ in range(8): print(base64.b64encode(os.urandom(3 << 18)).decode())"
"""8 MB that can't be compressed: more than what systems keep of an answer that nobody reads."""
SILENCE = 3.0
END = b"\r\n0\r\n\r\n"
"""Of a chunked answer."""

Opened = Callable[[GatewayProcess], socket.socket]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that waits for its clients longer than any test takes, with a session that shows much."""
    with serving(tmp_path_factory.mktemp("patient") / "data", keep_alive=0.5) as process:
        assert process.execute("large", LARGE)["status"] == "ok"
        put = process.request(
            "PUT",
            "/v1/sessions/large/files/large.bin",
            os.urandom(16 * MIB),
            headers={"Content-Type": "application/octet-stream"},
        )
        assert put.status == 201, put.body
        yield process


@contextmanager
def unread(gateway: GatewayProcess, path: str, **headers: str) -> Iterator[socket.socket]:
    """A connection on which a request was sent, whose answer is there, and which takes little unless read."""
    host, _, port = gateway.host.partition(":")
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect((host, int(port)))
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        assert client.recv(12, socket.MSG_PEEK).startswith((b"HTTP/1.1 200", b"HTTP/1.1 101"))
        yield client


def body_of(client: socket.socket) -> bytes:
    """The rest of a chunked answer; fails unless it is whole."""
    received = bytearray()
    while not received.endswith(END):
        part = client.recv(MIB)
        assert part, "the answer was broken off"
        received += part
    _, _, chunks = received.partition(b"\r\n\r\n")
    body = bytearray()
    while (size := int(chunks[: (end := chunks.index(b"\r\n"))], 16)) != 0:
        body += chunks[end + 2 : end + 2 + size]
        del chunks[: end + 4 + size]
    return bytes(body)


def held(gateway: GatewayProcess, suffix: str) -> int:
    """How many files whose name ends so, or that have no name any more, the gateway has open."""
    count = 0
    for descriptor in Path(f"/proc/{gateway.process.pid}/fd").iterdir():
        try:
            count += str(descriptor.readlink()).endswith(suffix)
        except FileNotFoundError:
            continue
    return count


def readers(gateway: GatewayProcess) -> int:
    """Connections to the database: each has its log open. (SQLite keeps the file itself for the next one.)"""
    return held(gateway, "/record.sqlite3-wal")


def log_is_free(gateway: GatewayProcess) -> bool:
    """Whether nobody keeps the database's log from being written back as a whole, and emptied."""
    with closing(sqlite3.connect(gateway.data_dir / "record.sqlite3", isolation_level=None)) as db:
        busy, pages, written = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return (busy, pages, written) == (0, 0, 0)


def log_size(gateway: GatewayProcess) -> int:
    return (gateway.data_dir / "record.sqlite3-wal").stat().st_size


def used_by_others(gateway: GatewayProcess) -> None:
    """All that a client does in the time: sessions, cells, exports, pages, files; and it ends."""
    session = f"test-{uuid.uuid4().hex[:12]}"
    path = f"/v1/sessions/{session}"
    assert gateway.execute(session, "print('well')")["stdout"] == "well\n"
    octets = {"Content-Type": "application/octet-stream"}
    assert gateway.request("PUT", f"{path}/files/a.bin", b"\0\1", headers=octets).status == 201
    for more in (
        "/notebook",
        "/bundle",
        "/audit",
        "/audit/verify",
        "/events",
        "/executions",
        "/files",
        "/files/a.bin",
    ):
        assert gateway.get(path + more, timeout=60).status == 200, more
    assert gateway.delete(f"{path}?purge=true", timeout=60).status == 204


EXPORTS = ["notebook", "bundle", "audit", "notebook?format=markdown"]


@pytest.mark.nightly
def test_unread_downloads_hold_nothing_of_the_record(patient: GatewayProcess) -> None:
    """More than are made at once; and what a client reads after a purge is what it asked for before."""
    assert patient.execute("purged", LARGE)["status"] == "ok"
    before, size = readers(patient), log_size(patient)
    with ExitStack() as stack:
        for path in [*EXPORTS, *EXPORTS]:
            stack.enter_context(unread(patient, f"/v1/sessions/large/{path}"))
        late = stack.enter_context(unread(patient, "/v1/sessions/purged/notebook"))
        until(lambda: readers(patient) <= before, "the database is open for a client that does not read")
        used_by_others(patient)
        for _ in range(10):
            patient.execute("busy", "print('x' * 900_000)")
        until(lambda: log_is_free(patient), "the database's log is held")
        assert log_size(patient) <= max(size, 24 * MIB)
        assert patient.delete("/v1/sessions/purged?purge=true", timeout=60).status == 204
        notebook = body_of(late)
    found = check_notebook(notebook, "purged")
    assert found.valid, found.problem
    assert len(notebook) > 8_000_000
    assert patient.get("/v1/sessions/purged/notebook").status == 404
    until(lambda: held(patient, "(deleted)") == 0, "files are left")


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": base64.b64encode(bytes(16)).decode(),
}
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "page": ("/v1/sessions/large/events?after=4", {"Accept": "application/json"}),
    "lines": ("/v1/sessions/large/events", {"Accept": "application/x-ndjson"}),
    "sse": ("/v1/sessions/large/events", {"Accept": "text/event-stream"}),
    "events": ("/v1/sessions/large/ws", UPGRADE),
    "file": ("/v1/sessions/large/files/large.bin", {}),
    "notebook": ("/v1/sessions/large/notebook", {}),
    "html": ("/v1/sessions/large/notebook?format=markdown", {}),
}


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ("events", "file")))
def test_others_go_on_beside_many_unread_answers(patient: GatewayProcess, kind: str) -> None:
    path, headers = KINDS[kind]
    with ExitStack() as stack:
        # More than are made at once, or than there are threads; conversions are slow.
        for _ in range(3 if "format" in path else 8):
            stack.enter_context(unread(patient, path, **headers))
        together(2, lambda _: used_by_others(patient))


def test_others_go_on_beside_unread_channels(patient: GatewayProcess) -> None:
    patient.execute("channels", "1")
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(unread(patient, "/api/kernels/channels/channels", **UPGRADE))
        for _ in range(2):
            assert patient.execute("channels", LARGE)["status"] == "ok"
        together(2, lambda _: used_by_others(patient))
    patient.delete("/v1/sessions/channels")


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that gives its clients little time, with the same session."""
    folder = tmp_path_factory.mktemp("impatient") / "data"
    with serving(folder, keep_alive=0.5, answer_timeout=SILENCE) as process:
        assert process.execute("large", LARGE)["status"] == "ok"
        octets = {"Content-Type": "application/octet-stream"}
        path = "/v1/sessions/large/files/large.bin"
        assert process.request("PUT", path, os.urandom(16 * MIB), headers=octets).status == 201
        yield process


def connections(gateway: GatewayProcess) -> int:
    return sum(
        found.status == "ESTABLISHED" for found in psutil.Process(gateway.process.pid).net_connections("tcp")
    )


def broken_off(client: socket.socket) -> bool:
    """Whether it has been reset; reads nothing of what is there."""
    return bool(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def is_all(received: bytearray) -> bool:
    """Whether an answer in chunks has ended, or the large file is there."""
    return received.endswith(END) or len(received) > 16 * MIB


def test_what_nobody_reads_is_closed_and_leaves_nothing(impatient: GatewayProcess) -> None:
    """Of every kind; a reader that is slow but steady is served to the end in the same time."""
    begun, before = time.monotonic(), readers(impatient)
    # The system takes a page as a whole, and then the gateway holds nothing of it.
    endless = {kind: request for kind, request in KINDS.items() if kind != "page"}
    cell = impatient.get("/v1/sessions/large/executions").json()["executions"][0]["execution"]
    endless["result"] = (f"/v1/sessions/large/executions/{cell}?max_text=0", {})
    with ExitStack() as stack:
        clients = [
            stack.enter_context(unread(impatient, path, **headers)) for path, headers in endless.values()
        ]
        paths = [f"/v1/sessions/large/{path}" for path in ("notebook", "files/large.bin")]
        steady = [(stack.enter_context(unread(impatient, path)), bytearray()) for path in paths]
        still_open = dict(zip(endless, clients, strict=True))
        while still_open or time.monotonic() - begun < 3 * SILENCE:
            assert time.monotonic() - begun < PATIENCE, f"still open: {list(still_open)}"
            # Also while it waits for the others: a reader that pauses would be one of them.
            for reader, received in steady:
                if not is_all(received):
                    received.extend(reader.recv(64 * 1024))
            time.sleep(0.25)
            still_open = {kind: each for kind, each in still_open.items() if not broken_off(each)}
        for reader, received in steady:
            while not is_all(received):
                part = reader.recv(MIB)
                assert part, "the steady reader was cut off"
                received.extend(part)
            assert len(received) > 8_000_000
    until(lambda: connections(impatient) == 0, "connections are left")
    until(lambda: held(impatient, "(deleted)") == 0, "files are left")
    until(lambda: readers(impatient) <= before, "the database is still open")
    metric = f'cellgate_connections_closed_total{{reason="answer_timeout"}} {len(endless)}.0'
    assert metric in impatient.get("/metrics").body.decode().splitlines()
    used_by_others(impatient)


def test_a_client_that_leaves_ends_what_is_made_for_it(start_gateway: StartGateway) -> None:
    """Also a conversion that runs in a process of its own."""
    gateway = start_gateway()
    gateway.execute("large", LARGE)
    process = psutil.Process(gateway.process.pid)

    def converters() -> int:
        count = 0
        for child in process.children():
            with suppress(psutil.NoSuchProcess):  # or a zombie: it has ended
                count += "cellgate.jobs.convert" in " ".join(child.cmdline())
        return count

    with closing(gateway.connect()) as connection:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        connection.request("GET", "/v1/sessions/large/notebook?format=html", headers=headers)
        until(lambda: converters() == 1, "no conversion begins")
    until(lambda: converters() == 0, "the conversion goes on for nobody", seconds=10)
    until(lambda: held(gateway, "(deleted)") == 0, "files are left")


def test_a_stop_does_not_wait_for_exports(start_gateway: StartGateway) -> None:
    """Neither for those that are being made nor for those that nobody reads; none of them looks whole."""
    gateway = start_gateway()
    for _ in range(3):
        gateway.execute("large", LARGE)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(unread(gateway, f"/v1/sessions/large/{path}"))
            for path in ("notebook", "audit")
        ]
        waiting = stack.enter_context(closing(gateway.connect()))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        waiting.request("GET", "/v1/sessions/large/notebook?format=html", headers=headers)
        assert gateway.stop() == 0
        for client in clients:
            assert not whole(client)


def test_a_stop_ends_what_clients_leave_unread_without_a_word(start_gateway: StartGateway) -> None:
    """A WebSocket and a download: their requests end with their connections, not with the process."""
    gateway = start_gateway()
    gateway.execute("large", LARGE + "\nopen('large.bin', 'wb').write(bytes(64 << 20))")
    with (
        unread(gateway, "/v1/sessions/large/files/large.bin"),
        unread(gateway, "/v1/sessions/large/ws?after=0", **UPGRADE),
    ):
        assert gateway.stop() == 0
    _, _, after = gateway.log.read_text().partition("Stopping:")
    assert len(after.strip().splitlines()) == 2, after


def whole(client: socket.socket) -> bool:
    """Whether what comes has the end of a chunked answer."""
    received = bytearray()
    try:
        while part := client.recv(MIB):
            received += part
    except ConnectionResetError:
        return False
    return received.endswith(END)
