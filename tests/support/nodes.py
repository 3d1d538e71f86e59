"""Two gateways of a cluster, for tests of what passes between them, and servers in the place of a third."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from cellgate.identity.secrets import SecretKey
from cellgate.server.hop import HOP_PURPOSE
from tests.conftest import serving
from tests.support.free_ports import free_port
from tests.support.postgresql import postgresql
from tests.support.server import PATIENCE, GatewayProcess, until

OWNER = "Cellgate-Owner"
PRINCIPAL = "default"
CLUSTER_KEY = bytes(range(32))


@dataclass(frozen=True)
class Pair:
    """Two gateways with one record. `one` has what a test begins there, and `other` hands requests on."""

    one: GatewayProcess
    other: GatewayProcess
    database: str

    def node(self, gateway: GatewayProcess) -> str:
        """The id of a gateway."""
        return str(gateway.get("/healthz").headers[OWNER])

    def give(self, key: str, node: str, url: str) -> None:
        """Let a third node with this URL have a session's key, and be alive for good."""
        with psycopg.connect(self.database, autocommit=True) as db:
            db.execute(
                "INSERT INTO nodes SELECT (jsonb_populate_record(n, %s)).* FROM nodes AS n LIMIT 1",
                (Jsonb({"id": node, "url": url, "lease": 1e9}),),
            )
        self.own(key, node)

    def own(self, key: str, node: str, principal: str = PRINCIPAL) -> None:
        """Let a node have a session's key."""
        with psycopg.connect(self.database, autocommit=True) as db:
            db.execute(
                "INSERT INTO owners (principal, key, node, home) VALUES (%s, %s, %s, %s)",
                (principal, key, node, node),
            )

    def leave(self, key: str) -> None:
        """Let `one` be where a session is to be opened."""
        with psycopg.connect(self.database, autocommit=True) as db:
            db.execute(
                "INSERT INTO owners (principal, key, home) VALUES (%s, %s, %s)",
                (PRINCIPAL, key, self.node(self.one)),
            )

    def hop_key(self) -> bytes:
        """The key with which gateways sign what they hand on."""
        return SecretKey(CLUSTER_KEY).derived(HOP_PURPOSE)


def cluster_key(folder: Path) -> Path:
    """Make the key that all gateways of a cluster need; return its file, in `folder`."""
    file = folder / "cluster.key"
    file.touch(0o600)
    file.write_bytes(CLUSTER_KEY)
    return file


class AskedElsewhere(GatewayProcess):
    """A gateway whose sessions another one is asked for: the process, the log and the data are its own."""

    def __init__(self, pair: Pair) -> None:
        self.__dict__ = {**vars(pair.one), "pair": pair, "url": pair.other.url, "host": pair.other.host}
        self.users_at = ("--cluster", pair.database)


@contextmanager
def pair_of(
    folder: Path, backend: str = "process", *, scheme: str = "http", **options: object
) -> Iterator[Pair]:
    """Two gateways and their database; with https in `scheme`, `options` must have their certificate."""
    with ExitStack() as stack:
        server = stack.enter_context(postgresql())
        database = server.database()
        ports = free_port(), free_port()
        key = cluster_key(folder)
        one, other = (
            stack.enter_context(
                serving(
                    folder / f"data-{port}",
                    backend,
                    port=port,
                    cluster=database,
                    cluster_key=key,
                    advertise=f"{scheme}://127.0.0.1:{port}",
                    beat=0.5,
                    **options,
                )
            )
            for port in ports
        )
        yield Pair(one, other, database)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two gateways of a cluster."""
    with pair_of(tmp_path_factory.mktemp("cluster"), doors="e2b") as pair:
        yield pair


class Owner:
    """A server in the place of a gateway: `serve` gets each of its connections, in a thread."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve_one, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(PATIENCE)
            self._connections.append(connection)
            self._serve(connection)

    def close(self) -> None:
        """Take no more connections, and end all."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def read_head(connection: socket.socket) -> tuple[str, bytes]:
    """The next head, and what came after it; empty at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return "", b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head.decode("latin-1"), rest


__all__ = ["OWNER", "PRINCIPAL", "Owner", "Pair", "cluster_key", "pair", "pair_of", "read_head", "until"]
