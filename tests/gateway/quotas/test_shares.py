"""What one user takes of what all share: the others are served meanwhile, and the gateway stays ready."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gateway.http.test_connections import clients, ended, hear, is_open, problem
from tests.support.channels import channels, raw_socket, text
from tests.support.server import GatewayProcess
from tests.support.small_disk import small_disk
from tests.support.users import add_user, create_token

MIB = 1 << 20
RESERVE = 16 * MIB


@dataclass
class Disk:
    """A disk, and the least that was free on it while it was `watched`."""

    folder: Path
    least: int = 1 << 62

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    @contextmanager
    def watched(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.002):
                self.least = min(self.least, self.free)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


@pytest.fixture
def disk() -> Iterator[Disk]:
    with small_disk("size=96m,mode=0700") as folder:
        yield Disk(folder)


@contextmanager
def serving(folder: Path, **options: object) -> Iterator[tuple[GatewayProcess, str, str]]:
    """A gateway with its data there, and the tokens of two users."""
    gateway = GatewayProcess(folder / "data", "process", pool_size=2, **options)
    try:
        for name in ("ada", "bea"):
            add_user(gateway, name)
        yield gateway, create_token(gateway, "ada")[1], create_token(gateway, "bea")[1]
        gateway.stop()
    finally:
        gateway.kill()


def is_served(gateway: GatewayProcess, token: str) -> None:
    """A cell, a file, an export, and the probes."""
    path = "/v1/sessions/s"
    ran = gateway.post(f"{path}/execute", {"code": "print(6 * 7)"}, token=token)
    assert (ran.status, ran.json()["text"]) == (200, "42\n")
    assert gateway.request("PUT", f"{path}/files/five", b"five\n", token=token).status in {200, 201}
    assert gateway.get(f"{path}/files/five", token=token).body == b"five\n"
    assert gateway.get(f"{path}/notebook", token=token).status == 200
    assert gateway.get("/healthz").status == gateway.get("/readyz").status == 200


async def test_clients_that_read_nothing_leave_the_others_the_disk(disk: Disk) -> None:
    """Frames are kept once for all of them; beyond ada's share hers are closed, and nobody else's."""
    options = {"storage_reserve": RESERVE, "slow_client_memory": "1m", "text_cap": "1m"}
    with serving(disk.folder, **options) as (gateway, ada, bea), ExitStack() as stack:
        kernel = gateway.post("/api/kernels", token=ada).json()["id"]
        idle = [stack.enter_context(raw_socket(gateway, kernel, token=ada)) for _ in range(4)]
        before = disk.free
        async with channels(gateway, kernel, headers={"Authorization": f"Bearer {ada}"}) as reader:
            with disk.watched():
                code = "for n in range(10): print('y' * 1_000_000, end='', flush=True)"
                assert len(text(await reader.run(code))) == 10_000_000
                is_served(gateway, bea)
                assert before - disk.least < 20 * MIB, "kept once, not by each"
                # Not in one cell: it prints for a third of a second, and she may have no turn in that time.
                for _ in range(5):
                    assert len(text(await reader.run(code))) == 10_000_000
                is_served(gateway, bea)
            assert before - disk.least < (before - RESERVE) // 2
            assert text(await reader.run("print('on')")) == "on\n"
        for connection in idle:
            ended(connection)
        assert gateway.log.read_text().count("others need the space on disk") == len(idle)
    assert disk.least > RESERVE


def test_open_streams_leave_the_others_their_connections(tmp_path: Path) -> None:
    """Three quarters are one user's at most; what is more is refused, and no probe."""
    with serving(tmp_path, max_connections=16) as (gateway, ada, bea), clients(gateway) as client:
        assert gateway.post("/v1/sessions/s/execute", {"code": "1"}, token=ada).status == 200
        head = (
            f"GET /v1/sessions/s/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ada}\r\n"
            "Accept: text/event-stream\r\n"
        )
        streams = [client.connect(f"{head}\r\n".encode()) for _ in range(12)]
        for stream in streams:
            hear(stream, b"session")
        for _ in range(20):
            refused = ended(client.connect(f"{head}Connection: close\r\n\r\n".encode()))
            assert problem(refused) == (503, "too_many_connections")
            client.connect(b"GET /healthz HTTP/1.1\r\n")
        is_served(gateway, bea)
        assert [is_open(stream) for stream in streams] == [True] * 12
