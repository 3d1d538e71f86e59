"""Connections between gateways, and of clients behind them: who is gone is noticed, who is slow stays."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from cellgate.http.hop import silence_watch
from cellgate.http.hop.peers import Peers
from cellgate.http.hop.silence_watch import SilenceWatch

MOST = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both sides of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
        with one, other:
            yield one, other


@pytest.fixture
async def watch() -> AsyncIterator[SilenceWatch]:
    watch = SilenceWatch()
    yield watch
    await watch.close()


async def test_who_acknowledges_nothing_at_two_looks_is_gone(
    watch: SilenceWatch, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    silences = iter([MOST + 1, MOST, MOST + 1, MOST + 2])
    monkeypatch.setattr(silence_watch, "silence", lambda _: next(silences))
    ended = []
    watch.add(pair[0], MOST, lambda: ended.append(len(ended)))
    for expected in ([], [], [], [0], [0]):
        await watch._look()
        assert ended == expected


async def test_a_connection_that_is_over_is_looked_at_no_more(
    watch: SilenceWatch, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence_watch, "silence", lambda _: pytest.fail("it is closed"))
    watch.add(pair[0], MOST, lambda: None)
    pair[0].close()
    await watch._look()
    assert watch._watched == []


async def test_a_slow_reader_whose_system_answers_is_not_silent(
    watch: SilenceWatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    """Its window is closed: nothing more is taken, and each probe is acknowledged."""
    sender, reader = pair
    sender.setblocking(False)
    with suppress(BlockingIOError):
        while sender.send(bytes(65536)):
            pass
    ended = []
    watch.add(sender, 0.1, lambda: ended.append(True))
    for _ in range(3):
        await asyncio.sleep(0.2)
        await watch._look()
    assert ended == []
    assert reader.recv(1) == bytes(1)


async def test_no_connection_to_a_gateway_has_a_limit_for_slow_readers(watch: SilenceWatch) -> None:
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    peers = Peers(watch)
    try:
        host, port = listening.sockets[0].getsockname()
        connection = await peers.connect(f"http://{host}:{port}")
        (watched,) = watch._watched
        assert watched.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        assert watched.connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, between, count = (
            watched.connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + between * count == 15
        watched.end()
        assert await connection.read() == b""
        connection.close()
    finally:
        listening.close()
        await peers.close()
