"""Large bodies without tornado's buffers: a file sent by the system itself, and uploads read in wide pieces.

Through `write` each megabyte would be copied three times and sent in eight parts, and on its way in copied
twice. It knows sockets and one detail of tornado's connection, no sessions; ``v1.files`` uses it.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import select
import time
from contextlib import suppress
from itertools import cycle

from tornado.http1connection import HTTP1Connection
from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from cellgate.files.upload import PIECE
from cellgate.http.listener.streams import ClientStream
from cellgate_kernels.threads import Lane

WIDE = 512 * 1024
"""Bytes from which on a body is worth it."""

_TURN = 8 * 1024 * 1024  # bytes that one turn of a thread sends at most: others wait for threads too
_PATIENCE = 5  # milliseconds for which a thread waits for a socket that is full; then the loop does
_TURN_SECONDS = 0.05  # that one turn takes at most, however often the socket takes a little
_LOOK_SECONDS = 1.0  # between looks at a stream whose client takes nothing for now
_REMAINING = "_expected_content_remaining"


def read_wide(connection: object) -> None:
    """Read this connection's body straight into an upload's pieces, which are three buffers in turn.

    The handler gets memoryviews of them, and may use one until it has taken the next.
    """
    stream = getattr(connection, "stream", None)
    if isinstance(stream, ClientStream):
        stream.pieces = cycle([_whole_pages(PIECE) for _ in range(3)])


def _whole_pages(size: int) -> memoryview:
    """Memory from the beginning of a page: just behind it, some processors copy many times as slowly."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def can_send(connection: object) -> bool:
    """Whether `send_file` works on this connection: no TLS, and a tornado whose detail is as we know it."""
    return (
        isinstance(connection, HTTP1Connection)
        and isinstance(connection.stream, IOStream)
        and not isinstance(connection.stream, SSLIOStream)
        and hasattr(connection, _REMAINING)
    )


async def send_file(connection: HTTP1Connection, descriptor: int, start: int, end: int, lane: Lane) -> bool:
    """Send a file's bytes `start` to `end` as the whole body, behind headers that are written out.

    Threads send what the socket takes, and wait for it no longer than `_PATIENCE`: a client that reads at
    once is not kept waiting for the loop, a slow one keeps no thread. False: the file has become shorter.
    Raises StreamClosedError when the client leaves.
    """
    stream = connection.stream
    if stream.closed():
        raise StreamClosedError
    assert isinstance(stream, IOStream)
    # A descriptor of its own: tornado may close the stream's while a thread sends.
    target = os.dup(stream.socket.fileno())
    watched = stream if isinstance(stream, ClientStream) else None
    try:
        if watched is not None:
            watched.sending = True
        while start < end:
            sent = await lane.run(_send_turn, target, descriptor, start, min(end, start + _TURN))
            if sent is None:
                return False
            if not sent:
                await _writable(target, stream)
            start += sent
            if watched is not None:
                watched.sent += sent
    except OSError as error:
        raise StreamClosedError(real_error=error) from error
    finally:
        if watched is not None:
            watched.sending = False
        os.close(target)
    setattr(connection, _REMAINING, 0)
    return True


def _send_turn(target: int, source: int, start: int, end: int) -> int | None:
    """The bytes that the socket took; None at the end of the file."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    done, over = start, time.monotonic() + _TURN_SECONDS
    while done < end and time.monotonic() < over:
        try:
            count = os.sendfile(target, source, done, end - done)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            if not poll.poll(_PATIENCE):
                break
            continue
        if not count:
            return None
        done += count
    return done - start


async def _writable(descriptor: int, stream: IOStream) -> None:
    """Raises StreamClosedError once we have closed the stream: its duplicate does not tell of that."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        while not ready.is_set():
            if stream.closed():
                raise StreamClosedError
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await ready.wait()
    finally:
        loop.remove_writer(descriptor)
