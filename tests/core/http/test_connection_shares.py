"""Whose connections go when there are too many: who has most gives way, and probes are always answered."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from cellgate.http.base import BaseHandler
from cellgate.http.health import HealthHandler
from cellgate.http.listener.server import Listener
from cellgate.http.listener.settings import ListenerSettings, for_principals
from cellgate.http.operation import requires
from cellgate.identity.principal import Login, Principal
from tests.support.listening import listening


class Waiting(BaseHandler):
    """An answer that never comes, for the principal whom the query names."""

    @requires()
    async def get(self) -> None:
        await asyncio.get_running_loop().create_future()

    def _authenticate(self) -> Login:
        return Login.of(Principal(self.get_query_argument("who")))


class Quick(Waiting):
    """One that comes at once."""

    @requires()
    async def get(self) -> None:
        self.finish("here")


@dataclass
class Served:
    """The handlers above, on a listener. `closed`: why it closed how many connections."""

    port: int
    listener: Listener
    closed: Counter[str]
    stack: ExitStack
    open: dict[str, list[socket.socket]] = field(default_factory=dict)

    def connect(self, words: bytes = b"") -> socket.socket:
        client = self.stack.enter_context(closing(socket.create_connection(("127.0.0.1", self.port))))
        client.settimeout(10)
        client.sendall(words)
        return client

    def ask(self, path: str) -> socket.socket:
        return self.connect(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    async def wait(self, who: str, count: int) -> list[socket.socket]:
        """So many connections more of somebody's that are being answered, one after the other."""
        before = self.taken(who)
        made = []
        for number in range(1, count + 1):
            made.append(self.ask(f"/waiting?who={who}"))
            while self.taken(who) < before + number:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
        return made

    def taken(self, who: str) -> int:
        return self.listener.shares.taken_by(who)


async def said(client: socket.socket) -> bytes:
    """The beginning of an answer; empty if there is none."""
    try:
        return await asyncio.to_thread(client.recv, 4096)
    except ConnectionResetError:
        return b""


def ended(clients: list[socket.socket]) -> list[bool]:
    """Which connections the listener has closed."""
    found = []
    for client in clients:
        client.setblocking(False)
        try:
            found.append(client.recv(1) == b"")
        except BlockingIOError:
            found.append(False)
        except ConnectionResetError:
            found.append(True)
        client.settimeout(10)
    return found


async def serve(stack: ExitStack, settings: ListenerSettings) -> AsyncIterator[Served]:
    closed = Counter[str]()
    handlers: Any = {"/waiting": Waiting, "/quick": Quick, "/healthz": HealthHandler}
    async with listening(
        handlers, settings=settings, closed_by_us=lambda reason: closed.update([reason]), base_url=""
    ) as (port, listener):
        yield Served(port, listener, closed, stack)
        await listener.close_all_connections()
        assert listener.shares.taken == 0


@pytest.fixture
async def served(stack: ExitStack) -> AsyncIterator[Served]:
    async for made in serve(stack, ListenerSettings(connections=16)):
        yield made


def test_some_connections_are_for_strangers_however_few_there_are() -> None:
    assert [for_principals(count) for count in (1, 2, 8, 16, 64, 4096)] == [1, 1, 7, 14, 56, 4032]


async def test_one_principal_has_three_quarters(served: Served) -> None:
    hers = await served.wait("ada", 12)
    refused = [await said(served.ask("/waiting?who=ada")) for _ in range(8)]
    assert {answer[:12] for answer in refused} == {b"HTTP/1.1 503"}
    assert b'"too_many_connections"' in refused[0]
    assert b"Retry-After: 5\r\n" in refused[0]
    assert (await said(served.ask("/quick?who=bea"))).endswith(b"here")
    assert (await said(served.ask("/healthz"))).startswith(b"HTTP/1.1 200")
    assert (ended(hers), served.taken("ada")) == ([False] * 12, 12)


async def test_who_has_most_gives_way_to_who_has_fewer(served: Served) -> None:
    """Until both have the same; then who asks is refused. Who has waited longest goes."""
    hers = await served.wait("ada", 12)
    his = await served.wait("bea", 2)
    assert served.closed == {}
    his += await served.wait("bea", 5)
    assert ended(hers) == [True] * 5 + [False] * 7
    assert (served.taken("ada"), served.taken("bea")) == (7, 7)
    for who in ("ada", "bea"):
        assert (await said(served.ask(f"/waiting?who={who}"))).startswith(b"HTTP/1.1 503")
    await served.wait("cyd", 1)
    assert served.taken("ada") + served.taken("bea") == 13
    assert (await said(served.ask("/healthz"))).startswith(b"HTTP/1.1 200")
    assert not any(ended(his)[1:])


async def test_strangers_give_way_to_everybody_and_nobody_to_them(served: Served) -> None:
    known = [*await served.wait("ada", 7), *await served.wait("bea", 7)]
    half = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n1"
    for words in [b"GET /waiting", half] * 25:
        served.connect(words)
        assert (await said(served.ask("/healthz"))).startswith(b"HTTP/1.1 200")
    assert ended(known) == [False] * 14
    assert set(served.closed) == {"evicted"}


async def test_an_answered_connection_is_a_stranger_s_until_the_next_request(served: Served) -> None:
    idle = [served.ask("/quick?who=ada") for _ in range(12)]
    assert all([(await said(client)).endswith(b"here") for client in idle])
    assert served.taken("ada") == 0
    await served.wait("bea", 12)
    assert sum(ended(idle)) >= 8


async def test_many_users_may_have_one_address(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one address may have by default is for strangers alone; and of them it goes first."""
    addresses = iter(["far"] * 14 + ["near"] + ["far"] * 20)
    monkeypatch.setattr("cellgate.http.listener.server.origin_of", lambda _: next(addresses))
    async for served in serve(stack, ListenerSettings(connections=16)):
        known = [*await served.wait("ada", 7), *await served.wait("bea", 7)]
        near = served.connect(b"GET /healthz")
        for _ in range(20):
            served.connect(b"GET /waiting")
        while served.closed["evicted"] < 19:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        assert ended(known) == [False] * 14
        near.sendall(b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await said(near)).startswith(b"HTTP/1.1 200")
        assert served.closed == {"evicted": 19}
