"""Many connections at once: what they cost a turn of the loop has a limit, so others' requests go on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from cellgate.http.listener import rounds
from cellgate.http.listener.client_pace import Late
from cellgate.http.listener.rounds import CHECKS_A_TURN
from cellgate.http.listener.settings import ListenerSettings
from cellgate.http.listener.streams import ClientStream
from tests.support.listening import Plain, listening

REQUEST = b"GET /count HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
MANY = 100


class Count(Plain):
    """How many connections there are when the request is answered."""

    count: Callable[[], float]

    def get(self) -> None:
        self.finish(str(int(self.count())))


@contextmanager
def connected(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections, made without a turn of the loop."""
    with ExitStack() as stack:
        made = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for connection in made:
            connection.connect(("127.0.0.1", port))
            connection.setblocking(False)
        yield made


async def answer(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    head = await loop.sock_recv(connection, 4096)
    return head.rpartition(b"\r\n\r\n")[2]


async def test_a_request_beside_a_burst_of_connections_does_not_wait_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening({"/count": Count}) as (port, listener):
        monkeypatch.setattr(Count, "count", lambda _: sum(listener.connections().values()), raising=False)
        with connected(port, 1) as (first,):
            first.sendall(REQUEST)
            assert await answer(first) == b"1"
            with connected(port, MANY):
                first.sendall(REQUEST)
                assert int(await answer(first)) < MANY / 4
                while sum(listener.connections().values()) <= MANY:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.001)


async def test_checks_of_many_connections_are_spread_over_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are checked, again and again, and never many in one turn."""
    checks: dict[ClientStream, int] = {}
    of_this_turn: list[ClientStream] = []
    most = 0

    def late(stream: ClientStream, now: float, settings: ListenerSettings) -> Late | None:
        nonlocal most
        if not of_this_turn:
            asyncio.get_running_loop().call_soon(of_this_turn.clear)
        of_this_turn.append(stream)
        most = max(most, len(of_this_turn))
        checks[stream] = checks.get(stream, 0) + 1
        return None

    monkeypatch.setattr(ClientStream, "late", late)
    monkeypatch.setattr(rounds, "ROUND_SECONDS", 0.1)
    async with listening({}) as (port, _):
        with connected(port, MANY):
            while len(checks) < MANY or min(checks.values()) < 3:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
    assert most == CHECKS_A_TURN


async def test_a_connection_that_waits_needs_no_timer_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_SECONDS", 3600.0)
    loop = asyncio.get_running_loop()
    timers: list[Callable[..., object]] = []
    call_at = loop.call_at

    def counted(
        when: float, callback: Callable[..., object], *words: Any, **more: Any
    ) -> asyncio.TimerHandle:
        timers.append(callback)
        return call_at(when, callback, *words, **more)

    async with listening({"/count": Count}) as (port, _):
        monkeypatch.setattr(Count, "count", lambda _: 0, raising=False)
        with connected(port, 1) as (connection,):
            monkeypatch.setattr(loop, "call_at", counted)
            connection.sendall(REQUEST)
            assert await answer(connection) == b"0"
    assert timers == []
