"""Ports inside a kernel's sandbox: connected to by its keeper, with back-pressure, ends, and limits."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cellgate_kernels.base.errors import KernelDied, PortUnanswered
from cellgate_kernels.keeper.ports import PortStreams, connect_port
from cellgate_kernels.keeper.programs import Program, ProgramSpec, start_program
from cellgate_kernels.testing.backend import RunningKernel, StartKernel
from tests.support.kernels import FORKS_FIRST
from tests.support.nightly import at_night

Connect = Callable[[int], Awaitable[PortStreams]]
PATIENCE = 60.0
MOST_ON_THE_WAY = 64 * 1024 * 1024

ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=int(sys.argv[3]))
print("listening", flush=True)
while True:
    peer, _ = listener.accept()
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.sendall(b"(end)")
    peer.close()
"""
SILENT = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
kept = []
while True:
    kept.append(listener.accept())
"""


@pytest.fixture(params=[*FORKS_FIRST, "process"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param != "process":
        request.getfixturevalue("sandbox")
    return str(request.param)


@pytest.fixture
async def kernel(start_kernel: StartKernel) -> RunningKernel:
    return await start_kernel()


@pytest.fixture
def keeper(kernel: RunningKernel) -> str:
    path = kernel.provisioner.keeper_socket
    assert path is not None
    return path


@pytest.fixture
async def connect(keeper: str) -> AsyncIterator[Connect]:
    """Connects to ports, and leaves after the test."""
    opened: list[PortStreams] = []

    async def to(port: int) -> PortStreams:
        opened.append(await connect_port(keeper, port))
        return opened[-1]

    yield to
    for _, writer in opened:
        writer.transport.abort()


@pytest.fixture
async def listen(keeper: str) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Starts Python programs that say when they listen."""
    started: list[Program] = []

    async def begin(code: str, *arguments: str) -> None:
        program = await start_program(keeper, ProgramSpec(["python3", "-c", code, *arguments]))
        started.append(program)
        async with asyncio.timeout(PATIENCE):
            await program.next()

    yield begin
    for program in started:
        program.close()


@pytest.mark.parametrize(("address", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
async def test_bytes_and_ends_go_both_ways(
    connect: Connect,
    listen: Callable[..., Awaitable[None]],
    free_port: int,
    address: str,
    family: socket.AddressFamily,
) -> None:
    await listen(ECHO, address, str(free_port), str(int(family)))
    reader, writer = await connect(free_port)
    sent = bytes(range(256)) * 16384

    async def send() -> None:
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    async with asyncio.timeout(PATIENCE):
        _, received = await asyncio.gather(send(), reader.read(-1))
    # It heard our end, and answered after it.
    assert received == sent + b"(end)"


async def test_a_port_that_nobody_listens_on(connect: Connect, free_port: int) -> None:
    with pytest.raises(
        PortUnanswered, match=rf"refused\. Start a program that listens on 127\.0\.0\.1:{free_port}"
    ):
        await connect(free_port)


async def test_a_program_that_does_not_read_is_waited_for(
    connect: Connect, listen: Callable[..., Awaitable[None]], free_port: int
) -> None:
    await listen(SILENT, str(free_port))
    _, writer = await connect(free_port)
    sent = 0
    # All buffers on the way together are limited; then `drain` waits, and the keeper is not stuck.
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while sent < MOST_ON_THE_WAY:
                writer.write(bytes(65536))
                sent += 65536
                await writer.drain()
    assert sent < MOST_ON_THE_WAY
    with pytest.raises(PortUnanswered):
        await connect(1)


async def test_no_more_connections_than_the_keeper_takes(
    connect: Connect, listen: Callable[..., Awaitable[None]], free_port: int
) -> None:
    await listen(SILENT, str(free_port))
    streams = [await connect(free_port) for _ in range(64)]
    with pytest.raises(PortUnanswered, match="Too many"):
        await connect(free_port)
    streams[0][1].transport.abort()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await connect(free_port)
                break
            except PortUnanswered:
                await asyncio.sleep(0.02)


async def test_the_end_of_the_program_ends_the_connection(
    connect: Connect, keeper: str, free_port: int
) -> None:
    program = await start_program(keeper, ProgramSpec(["python3", "-c", SILENT, str(free_port)]))
    await program.next()
    reader, _ = await connect(free_port)
    program.close()
    async with asyncio.timeout(PATIENCE):
        assert await reader.read(-1) == b""


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x28",
        struct.pack(">BI", 40, 1) + b"x",
        struct.pack(">BI", 34, 2**31),
        struct.pack(">BI", 99, 0),
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_one_who_took_the_keepers_place(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "keeper"

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(9)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(answered, path):
        with pytest.raises(KernelDied):
            await connect_port(str(path), 80)


@pytest.mark.parametrize(
    "payload", [b"", at_night(b"\x00\x50"), at_night(bytes(64)), struct.pack(">I", 80) + b"more"]
)
async def test_a_keeper_cuts_what_is_no_port(keeper: str, payload: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(keeper)
    writer.write(struct.pack(">BI", 6, len(payload)) + payload)
    async with asyncio.timeout(PATIENCE):
        assert await reader.read(-1) == b""
    writer.close()
    with pytest.raises(PortUnanswered):
        await connect_port(keeper, 1)
