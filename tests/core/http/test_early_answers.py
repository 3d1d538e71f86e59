"""Answers to requests that have not come as a whole: the client reads them, whatever it still sends."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from tornado.web import RequestHandler, stream_request_body

from cellgate.http.listener import lingering
from cellgate.http.listener.server import Listener
from cellgate.http.listener.settings import ListenerSettings
from tests.support.listening import listening

HALF = b"x" * 100_000
BODY = b"POST /refused HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200000\r\n\r\n"
NO_HOST = b"GET / HTTP/1.1\r\nHost: a@b\r\nContent-Length: 100000\r\n\r\n"
ALIKE = b"HTTP/1.1 400 Bad Request\r\n\r\n"
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


class Alike(RequestHandler):
    """Answers with what tornado says to what it can't parse."""

    def initialize(self, services: Any) -> None:
        """Services are of no use here."""

    async def get(self) -> None:
        """Answer in two parts."""
        self.set_header("Content-Length", 2 * len(ALIKE))
        self.write(ALIKE)
        await self.flush()
        self.write(ALIKE)


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


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(NO_HOST, b"400", id="host"),
        pytest.param(b"nonsense\r\n\r\n", b"400", id="no request"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + HALF, b"431", id="head"),
        pytest.param(CHUNKED + b"zz\r\n", b"400", id="chunks"),
        pytest.param(b"\x16\x03\x01\x02\x00", b"400", id="TLS"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"408", id="late head"),
    ],
)
async def test_refusals_of_the_listener_name_the_gateway(sent: bytes, status: bytes) -> None:
    """And are problems in the form of all others, also where tornado would say nothing but a status."""
    late = 0.1 if status == b"408" else 60.0
    settings = ListenerSettings(head_timeout=late)
    async with listening({"/whole": Whole}, settings=settings, gateway="0a" * 16) as (port, _):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(connection, sent)
            refused(await whole(connection), status)


async def test_a_refusal_behind_the_wish_for_a_body_names_the_gateway() -> None:
    async with listening({"/whole": Whole}, gateway="0a" * 16) as (port, _):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, CHUNKED[:-2] + b"Expect: 100-continue\r\n\r\n")
            assert (await loop.sock_recv(connection, 65536)).startswith(b"HTTP/1.1 100 ")
            await loop.sock_sendall(connection, b"zz\r\n")
            refused(await whole(connection), b"400")


async def test_a_refusal_for_want_of_a_place_names_the_gateway() -> None:
    settings = ListenerSettings(connections=1, per_address=0)
    async with listening({}, settings=settings, gateway="0a" * 16) as (port, _):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            refused(await whole(connection), b"503")


async def test_an_answer_that_looks_like_a_refusal_is_left_as_it_is() -> None:
    async with listening({"/alike": Alike}, gateway="0a" * 16) as (port, _):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setblocking(False)
            head = b"GET /alike HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(connection, head)
            assert (await whole(connection)).partition(b"\r\n\r\n")[2] == 2 * ALIKE


def refused(answer: bytes, status: bytes) -> None:
    """Check that it is a problem that names the gateway."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    assert first.startswith(b"HTTP/1.1 " + status)
    assert b"Cellgate-Owner: " + b"0a" * 16 in headers
    assert json.loads(body)["status"] == int(status)
