"""A machine that dies without a word is noticed: which of TCP's options a connection of the client has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpcore2
import pytest

from cellgate.client.silence import SILENCE
from cellgate.client.transport import RequestBody, Server

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NAMES = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
LARGE = 65 * 1024


async def chunks() -> AsyncGenerator[bytes]:
    yield b"x"


@pytest.mark.parametrize(
    ("body", "user_timeout"),
    [(None, SILENCE * 1000), (b"{}", SILENCE * 1000), (bytes(LARGE), 0), (RequestBody(1, chunks()), 0)],
)
async def test_a_gateway_is_asked_whether_it_is_there_and_may_read_slowly(
    body: bytes | RequestBody | None, user_timeout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, int] = {}
    connect = httpcore2.AnyIOBackend.connect_tcp

    async def connect_and_look(*arguments: Any) -> httpcore2.AsyncNetworkStream:
        stream = await connect(*arguments)
        connected = stream.get_extra_info("socket")
        options["SO_KEEPALIVE"] = connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name in NAMES:
            options[name] = connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        return stream

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if body is not None:
            await reader.readexactly(1 if isinstance(body, RequestBody) else len(body))
        writer.write(ANSWER)
        writer.close()

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect_and_look)
    listening = await asyncio.start_server(answer, "127.0.0.1", 0, limit=2 * LARGE)
    try:
        port = listening.sockets[0].getsockname()[1]
        server = Server(f"http://127.0.0.1:{port}", None)
        async with server.exchange("POST", "/v1/x", body=body) as answered:
            assert await answered.body() == b""
    finally:
        listening.close()
    assert options.pop("SO_KEEPALIVE") == 1
    assert options.pop("TCP_USER_TIMEOUT") == user_timeout
    assert options["TCP_KEEPIDLE"] + options["TCP_KEEPINTVL"] * options["TCP_KEEPCNT"] == SILENCE
