"""A session's proxy in this process: its socket, names that say what a test wants, and hosts on loopback.

Addresses look public; `dial` leads them to servers of the test. What the proxy records and whom it called is
kept.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cellgate.egress.policy import Address, EgressPolicy
from cellgate.egress.proxy import SessionProxy
from cellgate.egress.shared import Egress, EgressLimits, Ways
from cellgate.errors import StorageError
from cellgate.identity.host_patterns import parse_host_pattern
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.launch.base import EGRESS_SOCKET

PUBLIC = "9.9.9.9"
PATIENCE = 60.0

Serve = Callable[[StreamReader, StreamWriter], Awaitable[None]]


def policy(*patterns: str, allow_private: bool = False) -> EgressPolicy:
    """A policy of these patterns."""
    return EgressPolicy(tuple(map(parse_host_pattern, patterns)), allow_private)


class World:
    """A proxy and all that is around it."""

    def __init__(self, limits: EgressLimits, given: EgressPolicy | None) -> None:
        self.policy = given
        self.names: dict[str, list[str]] = {"h.example": [PUBLIC], "in.example": ["10.0.0.1"]}
        self.asked: list[str] = []
        self.dialed: list[tuple[list[str], int]] = []
        self.own: set[str] = set()
        self.events: list[dict[str, Any]] = []
        self.carried_bytes = {True: 0, False: 0}
        """The bytes so far; True: sent to hosts."""
        self._noted = asyncio.Event()
        self.running: str | None = "cell-1"
        self.writable = True
        self.port = 0
        ways = Ways(self._ask, self._dial, lambda address, _: str(address) in self.own)
        self.lane = Lane("lookups", 2)
        self.egress = Egress(self.lane, lambda _: self.policy, limits, ways=ways)
        self.proxy = SessionProxy(self.egress, "ada", self)

    def _ask(self, name: str) -> list[str]:
        self.asked.append(name)
        if name not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return self.names[name]

    async def _dial(self, addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address] | None:
        self.dialed.append(([str(each) for each in addresses], port))
        if not self.port:
            return None
        connected = socket.socket()
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", self.port))
        return connected, addresses[0]

    # The session

    def check_writable(self) -> None:
        """As a session's record."""
        if not self.writable:
            raise StorageError("the disk is gone")

    def carried(self, number: int, *, sent: bool) -> None:
        """Count bytes."""
        self.carried_bytes[sent] += number

    def note(self, event_type: str, fields: dict[str, Any]) -> None:
        """Keep an event."""
        self.events.append({"type": event_type, **fields})
        self._noted.set()

    async def recorded(self, number: int = 1) -> list[dict[str, Any]]:
        """The events, once there are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(self.events) < number:
                self._noted.clear()
                await self._noted.wait()
        return self.events

    # The kernel

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """A connection to the proxy."""
        return await asyncio.open_unix_connection(str(self.path))

    async def ask(self, data: bytes) -> bytes:
        """All that the proxy answers to this."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            async with asyncio.timeout(PATIENCE):
                return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()

    async def tunnel(self, where: str = "h.example:443") -> tuple[StreamReader, StreamWriter]:
        """An open tunnel."""
        reader, writer = await self.connect()
        writer.write(f"CONNECT {where} HTTP/1.1\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return reader, writer

    path: Path


@asynccontextmanager
async def world(
    serve: Serve | None = None, *, limits: EgressLimits | None = None, given: EgressPolicy | None = None
) -> AsyncIterator[World]:
    """A proxy that may reach h.example at 80 and 443, where `serve` answers."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cg-")))
        made = World(
            limits or EgressLimits(), given or policy("h.example:443", "h.example:80", "in.example:80")
        )
        stack.callback(made.lane.close)
        stack.push_async_callback(made.egress.close)
        if serve is not None:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            made.port = server.sockets[0].getsockname()[1]
        made.path = folder / EGRESS_SOCKET
        made.proxy.listen(folder)
        stack.push_async_callback(made.proxy.close)
        yield made


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    """A host that sends everything back, and ends when the other side has."""
    try:
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
