"""Connections over which another gateway hands requests on: each counts for the client of its request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tornado.httputil import HTTPHeaders

from cellgate.errors import HopRefused
from cellgate.http.listener.forwarded import Forwarded
from cellgate.http.listener.recent_gateways import KNOWN_SECONDS, RecentGateways
from cellgate.http.listener.settings import ListenerSettings
from tests.support.listening import Plain, listening, sending

PER_ADDRESS = 2
STRANGER = "127.0.0.1"


def client_of(method: str, target: str, headers: HTTPHeaders) -> Forwarded | None:
    """What a header of the test says, in the place of a signed one."""
    given = headers.get("Cellgate-Hop")
    if given == "bad":
        raise HopRefused("")
    return None if given is None else Forwarded(given, "http")


class Held(Plain):
    """An answer that is not over before the client leaves."""

    async def get(self) -> None:
        """Say from where the request comes, and wait."""
        self.write(f"{self.request.remote_ip} ")
        await self.flush()
        await asyncio.Event().wait()


class Short(Plain):
    """An answer that is over at once."""

    def get(self) -> None:
        """Say from where the request comes."""
        self.write(f"{self.request.remote_ip} ")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    settings = ListenerSettings(per_address=PER_ADDRESS, handed_on=client_of)
    async with listening({"/held": Held, "/short": Short}, settings=settings) as (port, _):
        yield port


def head(path: str, client: str | None) -> bytes:
    hop = "" if client is None else f"Cellgate-Hop: {client}\r\n"
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{hop}\r\n".encode()


async def told(connection: socket.socket) -> tuple[int, str]:
    """The status of the next answer, and the first word of its body."""
    data = b""
    while b" " not in data.partition(b"\r\n\r\n")[2]:
        more = await asyncio.get_running_loop().sock_recv(connection, 65536)
        if not more:
            break
        data += more
    body = data.partition(b"\r\n\r\n")[2].splitlines()
    return int(data.split()[1]), body[-1].decode().strip() if body else ""


def is_over(connection: socket.socket) -> bool:
    """Whether the listener has closed a connection."""
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    return True


async def test_each_client_of_another_gateway_has_its_own_places(port: int) -> None:
    async with AsyncExitStack() as stack:
        ways = []
        for client in ("198.51.100.1", "198.51.100.2", "198.51.100.3"):
            for _ in range(PER_ADDRESS):
                ways.append(await stack.enter_async_context(sending(port, head("/held", client))))
                assert await told(ways[-1]) == (200, client)
        assert not any(map(is_over, ways))
        more = await stack.enter_async_context(sending(port, head("/held", "198.51.100.1")))
        assert (await told(more))[0] == 200
        over = [is_over(way) for way in ways]
        assert over == [True] * PER_ADDRESS + [False] * 4, "only places of the same client are taken"


async def test_many_that_come_at_once_are_not_taken_for_one_client(port: int) -> None:
    """Before their heads are read nothing but the gateway's address is known of them."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(sending(port, head("/held", "198.51.100.9")))
        assert await told(first) == (200, "198.51.100.9")
        silent = [await stack.enter_async_context(sending(port, b"")) for _ in range(4 * PER_ADDRESS)]
        for number, way in enumerate(silent):
            await asyncio.get_running_loop().sock_sendall(way, head("/held", f"203.0.113.{number}"))
            assert await told(way) == (200, f"203.0.113.{number}")


async def test_an_address_from_which_nothing_is_handed_on_any_more_is_a_strangers_again() -> None:
    """It may be that of a router, with strangers behind it, or another machine's by now."""
    now = 0.0
    settings = ListenerSettings(per_address=PER_ADDRESS, handed_on=client_of)
    async with listening({"/short": Short}, settings=settings) as (port, listener), AsyncExitStack() as stack:
        listener.gateways = RecentGateways(clock=lambda: now)
        async with sending(port, head("/short", "198.51.100.9")) as way:
            assert await told(way) == (200, "198.51.100.9")
        now = KNOWN_SECONDS
        silent = [await stack.enter_async_context(sending(port, b"")) for _ in range(PER_ADDRESS)]
        asking = await stack.enter_async_context(sending(port, head("/short", None)))
        assert await told(asking) == (200, STRANGER)
        assert [is_over(way) for way in silent] == [True] * PER_ADDRESS


async def test_a_kept_connection_counts_for_nobody_and_then_for_its_next_client(port: int) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        kept = []
        for number in range(2 * PER_ADDRESS):
            kept.append(await stack.enter_async_context(sending(port, head("/short", f"203.0.113.{number}"))))
            assert await told(kept[-1]) == (200, f"203.0.113.{number}")
        for way in kept:
            await loop.sock_sendall(way, head("/held", None))
            assert await told(way) == (200, STRANGER)
        over = [is_over(way) for way in kept]
        assert over == [True] * PER_ADDRESS + [False] * PER_ADDRESS, "without a header it is its own client"


async def test_what_is_not_signed_is_refused_before_it_is_read(port: int) -> None:
    async with sending(port, head("/held", "bad")) as way:
        status, body = await told(way)
    assert status == 400
    assert "hop_refused" in body
