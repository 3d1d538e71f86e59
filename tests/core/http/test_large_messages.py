"""Messages on a WebSocket, in pieces and whole, behind the gateway's own listener."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from cellgate.http.listener.frames import PIECE, WatchedWebSocketHandler
from cellgate.http.listener.server import Listener
from cellgate.http.listener.streams import ClientStream
from cellgate_kernels.base.resources import MIB
from tests.core.kernels.test_pool import until
from tests.support.listening import listening

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
MASK = b"\x0f\xa3\x5c\x71"
MOST = 10 * MIB
"""Bytes of a message, by tornado's default."""
LONG = "a\u0301 \u20ac \U0001f600".encode() * (3 * PIECE // 11)
"""Text whose characters are cut anywhere."""


@dataclass
class Heard:
    """What handlers have. Until `goes_on` is set, they are busy with what is longer than a piece."""

    messages: list[tuple[bytes, bool]] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    closed: int = 0


class Keeping(WatchedWebSocketHandler):
    """Keeps what it hears."""

    def initialize(self, services: Any) -> None:
        """Tornado's hook."""
        self.heard: Heard = services.heard

    def on_data(self, data: bytes | bytearray, *, is_binary: bool) -> Awaitable[None] | None:
        self.heard.messages.append((bytes(data), is_binary))
        return self._wait() if len(data) > PIECE else None

    async def _wait(self) -> None:
        await self.heard.goes_on.wait()

    def on_close(self) -> None:
        self.heard.closed += 1


@dataclass
class Served:
    """The handlers above."""

    port: int
    listener: Listener
    heard: Heard
    closed: Counter[str]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    heard, closed = Heard(), Counter[str]()
    async with listening(
        {"/plain": Keeping}, closed_by_us=lambda reason: closed.update([reason]), heard=heard
    ) as (port, listener):
        yield Served(port, listener, heard, closed)
    assert listener.memory.held == 0


def frame(
    opcode: int, data: bytes = b"", *, final: bool = True, flags: int = 0, size: int | None = None
) -> bytes:
    """A client's frame; `size`: what it announces, if that is not what it has."""
    length = len(data) if size is None else size
    if length < 126:
        head = bytes([0x80 | length])
    elif length < 1 << 16:
        head = struct.pack("!BH", 0x80 | 126, length)
    else:
        head = struct.pack("!BQ", 0x80 | 127, length)
    key = (MASK * (len(data) // 4 + 1))[: len(data)]
    masked = (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(len(data))
    return bytes([(0x80 if final else 0) | flags | opcode]) + head + MASK + masked


def fragments(opcode: int, data: bytes, size: int, between: bytes = b"") -> bytes:
    """The message in frames of `size` bytes, with something between them."""
    starts = range(0, len(data), size)
    return between.join(
        frame(
            opcode if not start else CONTINUATION, data[start : start + size], final=start + size >= len(data)
        )
        for start in starts
    )


class Client:
    """A client that sends bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, served: Served) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"GET /plain HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head
        assert b"permessage-deflate" not in head
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        """Send all of it, unless the gateway closes the connection before."""
        self._writer.write(data)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def answer(self) -> tuple[int, bytes] | None:
        """The next frame from the gateway, of a few bytes; None once it has closed the connection."""
        try:
            first, size = await self._reader.readexactly(2)
            return first & 0x0F, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def code(self) -> int | None:
        """The code with which the gateway closes; None if it only closes the connection."""
        while (answer := await self.answer()) is not None:
            opcode, data = answer
            if opcode == CLOSE:
                await self.send(frame(CLOSE, data[:2]))
                assert await self.answer() is None
                return int.from_bytes(data[:2])
        return None

    async def told(self) -> None:
        """Return when the gateway has answered a ping: it has heard all before that."""
        await self.send(frame(PING, b"all"))
        while await self.answer() != (PONG, b"all"):
            pass

    def close(self) -> None:
        """Leave without a word."""
        self._writer.close()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    opened = await Client.open(served)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "sent", [frame(TEXT, LONG), fragments(TEXT, LONG, 2 * PIECE - 1), fragments(TEXT, LONG, 997)]
)
async def test_messages_are_heard_in_order_and_one_after_the_other(
    served: Served, client: Client, sent: bytes
) -> None:
    await client.send(sent + frame(TEXT, b"second") + frame(BINARY, b"\xff") + frame(TEXT))
    await until(lambda: served.heard.messages)
    assert served.heard.messages == [(LONG, False)]
    assert served.listener.memory.held >= len(LONG), "it counts until it is done"
    served.heard.goes_on.set()
    await client.told()
    assert served.heard.messages == [(LONG, False), (b"second", False), (b"\xff", True), (b"", False)]
    assert served.listener.memory.held == 0


async def test_no_more_than_a_piece_is_read_at_once(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has a turn until it is read, unmasked and known to be text."""
    read, sizes = ClientStream.read_bytes, []

    def read_bytes(stream: ClientStream, num_bytes: int, partial: bool = False) -> Awaitable[bytes]:
        sizes.append(num_bytes)
        return read(stream, num_bytes, partial)

    monkeypatch.setattr(ClientStream, "read_bytes", read_bytes)
    served.heard.goes_on.set()
    await client.send(frame(BINARY, bytes(MOST)))
    await client.told()
    assert served.heard.messages == [(bytes(MOST), True)]
    assert max(sizes) <= PIECE


async def test_a_ping_between_fragments_is_answered_at_once(served: Served, client: Client) -> None:
    served.heard.goes_on.set()
    await client.send(fragments(TEXT, LONG, PIECE + 1, frame(PING, b"now")))
    assert await client.answer() == (PONG, b"now")
    await client.told()
    assert served.heard.messages == [(LONG, False)]


WRONG = [
    frame(TEXT, b"abc\xff"),
    frame(TEXT, b"\xed\xa0\x80"),
    frame(TEXT, LONG + b"\xff" + LONG),
    frame(TEXT, LONG + "\u20ac".encode()[:2]),
    fragments(TEXT, b"abc\xe2\x82", 2),
    fragments(TEXT, LONG[: 2 * PIECE] + b"\xff" + bytes(PIECE), PIECE // 2),
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_no_utf8_is_refused_and_nothing_after_it_is_heard(
    served: Served, client: Client, wrong: bytes
) -> None:
    await client.send(frame(TEXT, b"first") + wrong + frame(TEXT, b"more") + wrong)
    assert await client.code() == 1007
    assert served.heard.messages == [(b"first", False)]
    await until(lambda: served.heard.closed == 1)


async def test_binary_messages_need_be_no_text(served: Served, client: Client) -> None:
    served.heard.goes_on.set()
    sent = b"\xff" * (PIECE + 3)
    await client.send(frame(BINARY, sent) + fragments(BINARY, sent, 50_000))
    await client.told()
    assert served.heard.messages == [(sent, True)] * 2


@pytest.mark.parametrize(
    "start", [b"", frame(TEXT, b"a" * MIB, final=False), frame(TEXT, b"\xff" * MIB, final=False)]
)
async def test_a_message_that_is_too_big_is_refused_before_it_comes(
    served: Served, client: Client, start: bytes
) -> None:
    size = MOST - MIB + 1 if start else MOST + 1
    await client.send(start + frame(CONTINUATION if start else TEXT, b"", size=size))
    assert await client.answer() == (CLOSE, struct.pack(">H", 1009) + b"message too big")
    await until(lambda: served.heard.closed == 1)
    assert not served.heard.messages


@pytest.mark.parametrize(
    "sent",
    [
        frame(CONTINUATION, b"a"),
        frame(TEXT, b"a", final=False) + frame(TEXT, b"b"),
        frame(PING, b"a", final=False),
        frame(PING, bytes(126)),
        frame(TEXT, b"a", flags=0x40),
        frame(TEXT, b"a", flags=0x10),
        frame(0x3, b"a"),
        frame(0xB, b"a"),
    ],
)
async def test_frames_that_no_client_may_send_end_the_connection(
    served: Served, client: Client, sent: bytes
) -> None:
    await client.send(sent)
    assert await client.code() is None
    await until(lambda: served.heard.closed == 1)
    assert not served.heard.messages


@pytest.mark.parametrize("sent", [frame(TEXT, LONG), fragments(TEXT, LONG, PIECE + 1)])
async def test_half_a_message_counts_and_leaves_nothing(served: Served, client: Client, sent: bytes) -> None:
    await client.send(sent[: len(sent) // 2])
    await until(lambda: served.listener.memory.held >= len(sent) // 2)
    client.close()
    await until(lambda: served.heard.closed == 1)
    await until(lambda: served.listener.memory.held == 0)
    assert not served.heard.messages


async def test_a_client_that_leaves_while_its_message_is_read_leaves_nothing(
    served: Served, client: Client
) -> None:
    await client.send(frame(TEXT, LONG) + frame(TEXT, b"more"))
    await until(lambda: served.heard.messages)
    client.close()
    served.heard.goes_on.set()
    await until(lambda: served.heard.closed == 1)
    await until(lambda: served.listener.memory.held == 0)
