"""Relays bytes between a kernel and a host, with back-pressure: reads only as fast as the other side accepts.

It moves bytes and counts them; ``proxy`` has decided before which sides may talk. Of a plain request, exactly
the body that its head announced is sent on. Chunks are read and framed anew, so that both sides agree on the
end of the body.
"""

from __future__ import annotations

import re
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from contextlib import suppress

CHUNK = 64 * 1024
MOST_CHUNK_LINE = 256
MOST_TRAILERS = 16 * 1024
MOST_TRAILER_FIELDS = 100

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t\x20-\x7e]*)?\r\n")

Count = Callable[[int], Awaitable[None]]
"""Called before each piece is sent on, with its bytes; may wait, or raise, and then they are not sent.

It must let others have their turns of the loop: a single read may bring thousands of pieces.
"""


class BadBody(ValueError):
    """The body is not what the head announced."""


async def pump(reader: StreamReader, writer: StreamWriter, count: Count) -> None:
    """Relay everything until the end, and then the end. Raises OSError when either side breaks."""
    while data := await reader.read(CHUNK):
        await count(len(data))
        writer.write(data)
        await writer.drain()
    end(writer)


def end(writer: StreamWriter) -> None:
    """Send the end of the stream."""
    with suppress(OSError):
        writer.write_eof()


async def send_body(reader: StreamReader, writer: StreamWriter, length: int | None, count: Count) -> None:
    """Relay the body of a plain request, and the client's end if that comes next.

    Anything else that the client sends is not read: a connection has one request. Raises OSError, BadBody.
    """
    if length is None:
        await _send_chunks(reader, writer, count)
    else:
        await _send_bytes(reader, writer, length, count)
    if not await reader.read(1):
        end(writer)


async def _send_bytes(reader: StreamReader, writer: StreamWriter, length: int, count: Count) -> None:
    while length > 0:
        data = await reader.read(min(CHUNK, length))
        if not data:
            raise BadBody("the body ended too early")
        length -= len(data)
        await count(len(data))
        writer.write(data)
        await writer.drain()


async def _send_chunks(reader: StreamReader, writer: StreamWriter, count: Count) -> None:
    try:
        while size := _chunk_size(await reader.readuntil(b"\r\n")):
            writer.write(b"%x\r\n" % size)
            await _send_bytes(reader, writer, size, count)
            if await reader.readexactly(2) != b"\r\n":
                raise BadBody("a chunk is longer than it said")
            writer.write(b"\r\n")
        await _skip_trailers(reader)
    except (IncompleteReadError, LimitOverrunError):
        raise BadBody("the chunks can't be read") from None
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _chunk_size(line: bytes) -> int:
    match = _CHUNK_LINE.fullmatch(line)
    if match is None or len(line) > MOST_CHUNK_LINE:
        raise BadBody("the chunks can't be read")
    return int(match[1], 16)


async def _skip_trailers(reader: StreamReader) -> None:
    """Read the fields after the last chunk, which are not sent on."""
    size = count = 0
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        size += len(line)
        count += 1
        if size > MOST_TRAILERS or count > MOST_TRAILER_FIELDS:
            raise BadBody("there are too many fields after the body")
