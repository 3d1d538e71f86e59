"""The program in a kernel that relays to the gateway's socket, run as the kernel's start-up runs it."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cellgate_kernels.specs.environments import INSIDE
from tests.core.egress.world import PATIENCE, echo


@asynccontextmanager
async def forwarder(path: Path) -> AsyncIterator[int]:
    """The port of a forwarder to the socket `path`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(INSIDE / "forwarder.py"), str(path), stdin=listener
        )
    try:
        yield port
    finally:
        process.kill()
        await process.wait()


async def test_bytes_and_ends_pass_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "proxy"
    server = await asyncio.start_unix_server(echo, str(path))
    async with server, forwarder(path) as port:
        streams = await asyncio.gather(*[asyncio.open_connection("127.0.0.1", port) for _ in range(5)])
        await asyncio.gather(*[_sends(*each) for each in streams])


async def _sends(reader: StreamReader, writer: StreamWriter) -> None:
    async with asyncio.timeout(PATIENCE):
        received = asyncio.gather(reader.read())
        writer.write(b"x" * 500_000)
        await writer.drain()
        writer.write_eof()
        assert (await received)[0] == b"x" * 500_000
    writer.close()
    await writer.wait_closed()


async def test_without_a_gateway_a_client_is_told(tmp_path: Path) -> None:
    async with forwarder(tmp_path / "nobody") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE):
            assert (await reader.readline()).startswith(b"HTTP/1.1 502 ")
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_is_refused_can_send_its_whole_request(tmp_path: Path) -> None:
    async with forwarder(tmp_path / "nobody") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE):
            writer.write(b"POST http://host.example.com/ HTTP/1.1\r\n\r\n")
            # The refusal has been sent, and must still be there after what the client sends now.
            assert await reader.readexactly(1) == b"H"
            writer.write(b"x" * 100_000)
            await writer.drain()
            writer.write_eof()
            assert (await reader.read()).startswith(b"TTP/1.1 502 ")
        writer.close()
        await writer.wait_closed()
