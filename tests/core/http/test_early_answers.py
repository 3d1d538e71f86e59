"""Answers to requests that have not come as a whole: the client reads them, whatever it still sends."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from tornado.web import RequestHandler, stream_request_body

from cellgate.http.listener import lingering
from cellgate.http.listener.server import Listener
from tests.support.listening import listening

HALF = b"x" * 100_000
BODY = b"POST /refused HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200000\r\n\r\n"
NO_HOST = b"GET / HTTP/1.1\r\nHost: a@b\r\nContent-Length: 100000\r\n\r\n"
CHUNKED = b"POST /whole HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@stream_request_body
class Refused(RequestHandler):
    """Answers as soon as the head has come."""

    def initialize(self, services: Any) -> None:
        """Services are of no use here."""

    def prepare(self) -> None:
        """Tornado's hook."""
        self.set_status(413)
        self.finish(b"too large")

    def data_received(self, chunk: bytes) -> None:
        """Tornado's hook."""


class Whole(RequestHandler):
    """Answers when the whole request has come."""

    def initialize(self, services: Any) -> None:
        """Services are of no use here."""

    def get(self) -> None:
        """Answer."""
        self.finish(b"whole")


async def until_kept(listener: Listener, count: int) -> None:
    while len(listener._lingering) != count:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.001)


async def send_for_ever(connection: socket.socket) -> None:
    while True:
        await asyncio.get_running_loop().sock_sendall(connection, HALF)


async def whole(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    parts = []
    while part := await loop.sock_recv(connection, 65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("head", "rest", "status"),
    [
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: a@b\r\nContent-Length: 100000\r\n\r\n", HALF, b"400", id="host"
        ),
        pytest.param(b"nonsense\r\n\r\n", HALF, b"400", id="no request"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + HALF, HALF, b"431", id="head"),
        pytest.param(CHUNKED + b"zz\r\n", HALF, b"400", id="chunks"),
        pytest.param(BODY, HALF, b"413", id="body"),
    ],
)
async def test_an_answer_before_the_rest_of_a_request_is_read(
    head: bytes, rest: bytes, status: bytes
) -> None:
    async with listening({"/refused": Refused, "/whole": Whole}) as (port, listener):
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            await loop.sock_sendall(connection, head)
            await until_kept(listener, 1)
            # What comes now would reset a connection that is closed, and the answer would be lost.
            await loop.sock_sendall(connection, rest)
            await asyncio.sleep(0.05)
            answer = await whole(connection)
            assert answer.startswith(b"HTTP/1.1 " + status)
        await until_kept(listener, 0)


async def test_a_client_that_goes_on_sending_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "SECONDS", 0.05)
    async with listening({"/refused": Refused}) as (port, listener):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(connection, BODY)
            await until_kept(listener, 1)
            await until_kept(listener, 0)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await send_for_ever(connection)


async def test_few_are_kept_and_those_that_came_first_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "MOST", 2)
    async with listening({"/refused": Refused}) as (port, listener):
        connections = []
        try:
            for count in (1, 2, 2):
                connections.append(socket.create_connection(("127.0.0.1", port)))
                connections[-1].setblocking(False)
                await asyncio.get_running_loop().sock_sendall(connections[-1], BODY)
                assert (await whole(connections[-1])).endswith(b"too large")
                await until_kept(listener, count)
            kept = {each.getpeername()[1] for each in listener._lingering._kept}
            assert kept == {each.getsockname()[1] for each in connections[1:]}
        finally:
            for each in connections:
                each.close()
        await until_kept(listener, 0)


async def test_a_whole_request_leaves_nothing_behind() -> None:
    async with listening({"/whole": Whole}) as (port, listener):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            head = b"GET /whole HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(connection, head)
            assert (await whole(connection)).endswith(b"whole")
            assert len(listener._lingering) == 0
