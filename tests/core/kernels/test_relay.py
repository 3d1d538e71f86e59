"""The way between libzmq and a kernel's TCP port, with both ends real: who sends without end is cut off, who
is read late is waited for, and no byte is lost.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from cellgate_kernels import relay
from cellgate_kernels.messages import Channel
from cellgate_kernels.relay import Relay, bytes_of
from cellgate_kernels.sockets import ZmqSocket
from cellgate_kernels.zmtp import encode, hello
from tests.core.kernels.test_connection import DEADLINE, until

MIB = 1024 * 1024
MOST = 2 * MIB
"""Of a message, here."""
PART = bytes((1 | 2,)) + struct.pack(">Q", 64 * 1024) + bytes(64 * 1024)
"""A frame after which its message goes on."""


class Publisher:
    """A kernel's iopub port that speaks ZMTP by hand; each connection is a pair of streams."""

    def __init__(self) -> None:
        self.connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen on a free port."""
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", 0)

    @property
    def info(self) -> dict[str, Any]:
        """The connection info of a kernel that has this port for all its channels."""
        assert self.server is not None
        port = self.server.sockets[0].getsockname()[1]
        return {"transport": "tcp", "ip": "127.0.0.1", "key": b"", "iopub_port": port}

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(hello(b"PUB"))
            # Greeting, READY and the subscription.
            await reader.readexactly(len(hello(b"SUB")))
            await reader.read(64)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        self.connections.append((reader, writer))

    async def connected(self, number: int) -> asyncio.StreamWriter:
        """The writer of the connection of this number, once it is there."""
        await until(lambda: len(self.connections) > number)
        return self.connections[number][1]

    async def close(self) -> None:
        """Close all connections."""
        assert self.server is not None
        self.server.close()
        for _, writer in self.connections:
            writer.close()
        await self.server.wait_closed()


@pytest.fixture
async def publisher(no_leaks: Path) -> AsyncIterator[Publisher]:
    made = Publisher()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def context(no_leaks: Path) -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def reading(
    publisher: Publisher, context: zmq.Context[zmq.Socket[bytes]]
) -> AsyncIterator[tuple[ZmqSocket, list[list[bytes]]]]:
    """Our side of the port, and the messages that it has received."""
    received: list[list[bytes]] = []
    made = ZmqSocket(
        context.socket(zmq.SUB),
        publisher.info,
        Channel.IOPUB,
        b"",
        lambda frames, _: received.append(frames),
        MOST,
    )
    yield made, received
    made.close()


async def send_until_cut(writer: asyncio.StreamWriter, most: int) -> int:
    """Send parts of a message that never ends; returns how many bytes were taken before the end."""
    taken = 0
    try:
        while taken < most:
            writer.write(PART)
            await writer.drain()
            taken += len(PART)
    except ConnectionError:
        pass
    return taken


async def test_a_message_that_never_ends_is_cut_off_and_others_follow(
    publisher: Publisher,
    reading: tuple[ZmqSocket, list[list[bytes]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(relay, "_STALL_SECONDS", 0.1)
    _, received = reading
    first = await publisher.connected(0)
    async with asyncio.timeout(DEADLINE):
        taken = await send_until_cut(first, 100 * MIB)
    # What is passed on, and what lies in the system's buffers.
    assert taken < 32 * MIB
    second = await publisher.connected(1)
    second.write(encode([b"topic", b"content"]))
    await until(lambda: received)
    assert received == [[b"topic", b"content"]]
    async with asyncio.timeout(DEADLINE):
        await send_until_cut(second, 100 * MIB)
    await publisher.connected(2)
    assert len([line for line in caplog.messages if "a message that does not end" in line]) == 1


async def test_a_port_that_is_bound_late_is_reached_by_the_connection_that_waits(no_leaks: Path) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as client:
        port.setblocking(False)
        client.setblocking(False)
        port.bind(("127.0.0.1", 0))
        way = Relay("127.0.0.1", port.getsockname()[1], MOST, lambda: False)
        try:
            await loop.sock_connect(client, way.endpoint.replace("ipc://@", "\0"))
            # Nothing listens yet: attempts are refused.
            await asyncio.sleep(0.1)
            port.listen()
            async with asyncio.timeout(DEADLINE):
                reached, _ = await loop.sock_accept(port)
                with reached:
                    await loop.sock_sendall(reached, b"ready")
                    assert await loop.sock_recv(client, 100) == b"ready"
        finally:
            way.close()
            await until(lambda: way._way is None or way._way.done())


async def test_a_reader_who_stops_is_waited_for(
    publisher: Publisher, reading: tuple[ZmqSocket, list[list[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_STALL_SECONDS", 0.05)
    ours, received = reading
    writer = await publisher.connected(0)
    ours.pause()
    messages = [[b"topic", number.to_bytes(4, "big") * (256 * 1024)] for number in range(40)]
    written = 0

    async def send() -> None:
        nonlocal written
        for message in messages:
            writer.write(encode(message))
            await writer.drain()
            written += 1

    sending = asyncio.create_task(send())
    # Long enough for a cut, if there were one.
    await asyncio.sleep(0.5)
    assert received == []
    assert written < len(messages)
    ours.resume()
    await until(lambda: len(received) == len(messages))
    await sending
    assert received == messages
    assert len(publisher.connections) == 1


async def test_what_is_read_in_time_may_be_as_much_as_it_likes(
    publisher: Publisher, reading: tuple[ZmqSocket, list[list[bytes]]]
) -> None:
    _, received = reading
    writer = await publisher.connected(0)
    count = 30
    for number in range(count):
        writer.write(encode([b"topic", number.to_bytes(1, "big") * MIB, b"", b"x"]))
        await writer.drain()
    await until(lambda: len(received) == count)
    assert [frames[1][0] for frames in received] == list(range(count))
    assert len(publisher.connections) == 1


async def test_nobody_else_may_connect(publisher: Publisher) -> None:
    made = Relay("127.0.0.1", publisher.info["iopub_port"], MOST, lambda: False)
    name = made.endpoint.removeprefix("ipc://@")
    program = (
        "import socket, sys\n"
        "with socket.socket(socket.AF_UNIX) as s:\n"
        "  s.connect('\\0' + sys.argv[1]); s.settimeout(30); print(s.recv(1))\n"
    )
    other = await asyncio.create_subprocess_exec(
        "python3", "-c", program, name, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await asyncio.wait_for(other.communicate(), DEADLINE)
        assert said == b"b''\n"
        assert publisher.connections == []
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(f"\0{name}")
            own.sendall(hello(b"SUB") + b"\0\x01\x01")
            await publisher.connected(0)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("length", "encrypted", "size"),
    [(0, False, 2), (255, False, 257), (256, False, 265), (0, True, 35), (222, True, 257), (223, True, 265)],
)
def test_a_frames_bytes_on_the_wire(length: int, encrypted: bool, size: int) -> None:
    assert bytes_of(length, encrypted=encrypted) == size
