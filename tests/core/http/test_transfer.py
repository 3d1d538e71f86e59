"""Large bodies on their way past tornado's buffers: by a server of the test's own, on real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler, stream_request_body

from cellgate.files.upload import PIECE
from cellgate.http.transfer import can_send, read_wide, send_file
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import Lane
from tests.support.listening import listening


class Server:
    """What the handler is to send, and what became of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = path.stat().st_size
        self.sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.received: list[bytes] = []
        self.kinds: set[type] = set()
        self.port = 0
        self.lane = Lane("test", 4)


@stream_request_body
class Handler(RequestHandler):
    """GET sends the file, PUT takes a body."""

    def initialize(self, services: Any) -> None:
        self.server: Server = services.server

    def prepare(self) -> None:
        if self.request.method == "PUT":
            read_wide(self.request.connection)

    async def data_received(self, chunk: bytes | memoryview) -> None:  # type: ignore[override]
        self.server.kinds.add(type(chunk))
        self.server.received.append(bytes(chunk))
        await asyncio.sleep(0)

    def put(self) -> None:
        self.finish()

    async def get(self) -> None:
        connection: Any = self.request.connection
        assert can_send(connection)
        assert isinstance(connection, HTTP1Connection)
        self.set_header("Content-Length", str(self.server.length))
        await self.flush()
        descriptor = os.open(self.server.path, os.O_RDONLY)
        try:
            whole = await send_file(connection, descriptor, 0, self.server.length, self.server.lane)
        except StreamClosedError as error:
            self.server.sent.set_exception(error)
        else:
            if not self.server.sent.done():
                self.server.sent.set_result(whole)
            if not whole:
                connection.stream.close()
        finally:
            os.close(descriptor)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(20 * MIB + 1))
    state = Server(path)
    async with listening({"/": Handler}, server=state) as (state.port, _):
        yield state
    state.lane.close()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


@contextmanager
def small_window(server: Server) -> Iterator[socket.socket]:
    """A client's socket that takes little before it is read."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        yield client


async def head(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


async def test_a_file_is_sent_whole_each_time_a_connection_asks(server: Server) -> None:
    async with connected(server) as (reader, writer):
        for _ in range(2):
            writer.write(GET)
            assert "200 OK" in await head(reader)
            assert await reader.readexactly(server.length) == server.path.read_bytes()
    assert await server.sent is True


async def test_a_client_that_leaves_is_noticed(server: Server) -> None:
    with small_window(server) as client:
        client.sendall(GET)
        assert await asyncio.to_thread(client.recv, 12) == b"HTTP/1.1 200"
    with pytest.raises(StreamClosedError):
        await server.sent


async def test_a_client_that_pauses_gets_all_of_it(server: Server) -> None:
    with small_window(server) as client:
        client.sendall(GET)
        received = bytearray()
        # Longer than a thread waits for it: the loop takes over.
        await asyncio.sleep(0.1)
        assert not server.sent.done()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        while b"\r\n\r\n" not in received:
            received += await asyncio.to_thread(client.recv, MIB)
        end = received.index(b"\r\n\r\n") + 4 + server.length
        while len(received) < end:
            piece = await asyncio.to_thread(client.recv, MIB)
            assert piece, "the answer ends early"
            received += piece
    assert received.endswith(server.path.read_bytes())
    assert await server.sent is True


async def test_a_file_that_is_cut_meanwhile_breaks_the_connection(server: Server) -> None:
    os.truncate(server.path, server.length // 2)
    async with connected(server) as (reader, writer):
        writer.write(GET)
        await head(reader)
        with pytest.raises(asyncio.IncompleteReadError):
            await reader.readexactly(server.length)
    assert await server.sent is False


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 7 * PIECE + 5])
async def test_a_body_comes_in_order_and_so_do_those_after_it(server: Server, size: int) -> None:
    body = os.urandom(size)
    async with connected(server) as (reader, writer):
        for _ in range(2):
            server.received.clear()
            writer.write(b"PUT / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size + body)
            assert "200 OK" in await head(reader)
            assert b"".join(server.received) == body
    assert server.kinds == {memoryview}
    assert [len(piece) for piece in server.received[:-1]] == [PIECE] * (len(server.received) - 1)


async def test_a_body_that_ends_early_ends_the_request(server: Server) -> None:
    async with connected(server) as (reader, writer):
        writer.write(b"PUT / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % (3 * PIECE))
        writer.write(bytes(2 * PIECE))
        writer.write_eof()
        assert await reader.read() == b""
