"""Answers to requests that have not come as a whole: the client reads them, whatever it still sends."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from functools import partial

import pytest
from tornado.web import stream_request_body

from cellgate.http.listener import lingering
from cellgate.http.listener.server import Listener
from cellgate.http.listener.settings import ListenerSettings
from tests.support.listening import Plain, listening, sending

HALF = b"x" * 100_000
BODY = b"POST /refused HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200000\r\n\r\n"
NO_HOST = b"GET / HTTP/1.1\r\nHost: a@b\r\nContent-Length: 100000\r\n\r\n"
ALIKE = b"HTTP/1.1 400 Bad Request\r\n\r\n"
CHUNKED = b"POST /whole HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@stream_request_body
class Refused(Plain):
    """Answers as soon as the head has come."""

    def prepare(self) -> None:
        """Tornado's hook."""
        self.set_status(413)
        self.finish(b"too large")

    def data_received(self, chunk: bytes) -> None:
        """Tornado's hook."""


class Whole(Plain):
    """Answers when the whole request has come."""

    def get(self) -> None:
        """Answer."""
        self.finish(b"whole")


class Alike(Plain):
    """Answers with what tornado says to what it can't parse."""

    async def get(self) -> None:
        """Answer in two parts."""
        self.set_header("Content-Length", 2 * len(ALIKE))
        self.write(ALIKE)
        await self.flush()
        self.write(ALIKE)


NAMED = partial(listening, gateway="0a" * 16)
"""A listener of a gateway with an id."""


async def until_kept(listener: Listener, count: int) -> None:
    while len(listener.lingering._kept) != count:  # noqa: ASYNC110 - it tells nobody
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
    ("head", "status"),
    [
        pytest.param(NO_HOST, b"400", id="host"),
        pytest.param(b"nonsense\r\n\r\n", b"400", id="no request"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + HALF, b"431", id="head"),
        pytest.param(CHUNKED + b"zz\r\n", b"400", id="chunks"),
        pytest.param(BODY, b"413", id="body"),
    ],
)
async def test_an_answer_before_the_rest_of_a_request_is_read(head: bytes, status: bytes) -> None:
    """Those of the listener itself name the gateway."""
    async with NAMED({"/refused": Refused, "/whole": Whole}) as (port, listener):
        async with sending(port, head) as connection:
            await until_kept(listener, 1)
            # What comes now would reset a connection that is closed, and the answer would be lost.
            await asyncio.get_running_loop().sock_sendall(connection, HALF)
            await asyncio.sleep(0.05)
            answer = await whole(connection)
            assert answer.startswith(b"HTTP/1.1 " + status)
            if head != BODY:
                refused(answer, status)
        await until_kept(listener, 0)


async def test_a_client_that_goes_on_sending_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "SECONDS", 0.05)
    async with listening({"/refused": Refused}) as (port, listener), sending(port, BODY) as connection:
        await until_kept(listener, 1)
        await until_kept(listener, 0)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await send_for_ever(connection)


async def test_few_are_kept_and_those_that_came_first_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "MOST", 2)
    async with listening({"/refused": Refused}) as (port, listener):
        async with AsyncExitStack() as stack:
            connections = []
            for count in (1, 2, 2):
                connections.append(await stack.enter_async_context(sending(port, BODY)))
                assert (await whole(connections[-1])).endswith(b"too large")
                await until_kept(listener, count)
            kept = {each.getpeername()[1] for each in listener.lingering._kept}
            assert kept == {each.getsockname()[1] for each in connections[1:]}
        await until_kept(listener, 0)


async def test_a_whole_request_leaves_nothing_behind() -> None:
    head = b"GET /whole HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    async with listening({"/whole": Whole}) as (port, listener), sending(port, head) as connection:
        assert (await whole(connection)).endswith(b"whole")
        assert len(listener.lingering._kept) == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00", b"400", id="TLS"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"408", id="late head"),
    ],
)
async def test_refusals_of_the_listener_name_the_gateway(sent: bytes, status: bytes) -> None:
    """And are problems in the form of all others, also where tornado would say nothing but a status."""
    late = 0.1 if status == b"408" else 60.0
    settings = ListenerSettings(head_timeout=late)
    async with NAMED({"/whole": Whole}, settings=settings) as (port, _), sending(port, sent) as connection:
        refused(await whole(connection), status)


async def test_a_refusal_behind_the_wish_for_a_body_names_the_gateway() -> None:
    sent = CHUNKED[:-2] + b"Expect: 100-continue\r\n\r\n"
    async with NAMED({"/whole": Whole}) as (port, _), sending(port, sent) as connection:
        loop = asyncio.get_running_loop()
        assert (await loop.sock_recv(connection, 65536)).startswith(b"HTTP/1.1 100 ")
        await loop.sock_sendall(connection, b"zz\r\n")
        refused(await whole(connection), b"400")


async def test_a_refusal_for_want_of_a_place_names_the_gateway() -> None:
    settings = ListenerSettings(connections=1, per_address=0)
    async with NAMED({}, settings=settings) as (port, _), sending(port, b"") as connection:
        refused(await whole(connection), b"503")


async def test_an_answer_that_looks_like_a_refusal_is_left_as_it_is() -> None:
    head = b"GET /alike HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    async with NAMED({"/alike": Alike}) as (port, _), sending(port, head) as connection:
        assert (await whole(connection)).partition(b"\r\n\r\n")[2] == 2 * ALIKE


def refused(answer: bytes, status: bytes) -> None:
    """Check that it is a problem that names the gateway."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    assert first.startswith(b"HTTP/1.1 " + status)
    assert b"Cellgate-Owner: " + b"0a" * 16 in headers
    assert json.loads(body)["status"] == int(status)
