"""Large bodies without tornado's buffers: a file sent by the system itself, and uploads read in wide pieces.

Through `write` each megabyte would be copied three times and sent in eight parts. It knows sockets and one
detail of tornado's connection, and no sessions; ``handlers.files`` uses it.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import os

from tornado.http1connection import HTTP1Connection
from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

WIDE = 512 * 1024
"""Bytes that are read at once of a large upload, and below which a file is sent as any other answer."""

_TURN = 8 * 1024 * 1024  # bytes that one turn of a thread sends at most: others wait for threads too
_REMAINING = "_expected_content_remaining"


def read_wide(connection: object) -> None:
    """Read what is left of this connection's bodies in pieces of up to `WIDE` bytes, not of 64 KiB."""
    if isinstance(connection, HTTP1Connection) and connection.params.chunk_size < WIDE:
        connection.params = copy.copy(connection.params)
        connection.params.chunk_size = WIDE
        connection.stream.read_chunk_size = WIDE


def can_send(connection: object) -> bool:
    """Whether `send_file` works on this connection: no TLS, and a tornado whose detail is as we know it."""
    return (
        isinstance(connection, HTTP1Connection)
        and isinstance(connection.stream, IOStream)
        and not isinstance(connection.stream, SSLIOStream)
        and getattr(connection, _REMAINING, None) is not None
    )


async def send_file(connection: HTTP1Connection, descriptor: int, start: int, end: int) -> bool:
    """Send a file's bytes `start` to `end` as the whole body, behind headers that are written out.

    Threads send what the socket takes and never wait for it. False: the file has become shorter. Raises
    StreamClosedError when the client leaves.
    """
    stream = connection.stream
    if stream.closed():
        raise StreamClosedError
    assert isinstance(stream, IOStream)
    # A descriptor of its own: tornado may close the stream's while a thread sends.
    target = os.dup(stream.socket.fileno())
    try:
        while start < end:
            sent = await asyncio.to_thread(_send_turn, target, descriptor, start, min(end, start + _TURN))
            if sent is None:
                return False
            if not sent:
                await _writable(target)
            start += sent
    except OSError as error:
        raise StreamClosedError(real_error=error) from error
    finally:
        os.close(target)
    setattr(connection, _REMAINING, 0)
    return True


def _send_turn(target: int, source: int, start: int, end: int) -> int | None:
    """The bytes that the socket took; None at the end of the file."""
    done = start
    while done < end:
        try:
            count = os.sendfile(target, source, done, end - done)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            break
        if not count:
            return None
        done += count
    return done - start


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)
