"""Large bodies without tornado's buffers: downloads by sendfile(2), uploads read in large pieces.

Through tornado each megabyte would be copied three times and sent in eight parts on its way out, and copied
twice on its way in. It knows sockets and one detail of tornado's connection, no sessions.
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
from cellgate_kernels.base.threads import Lane

WIDE = 512 * 1024
"""Bytes above which a body is sent this way."""

_TURN = 8 * 1024 * 1024  # bytes a thread sends in one turn at most: others need the threads too
_PATIENCE = 5  # milliseconds for which a thread waits for a full socket; then the loop waits
_TURN_SECONDS = 0.05  # length of a turn at most, however often the socket takes a little
_LOOK_SECONDS = 1.0  # between checks of a stream whose client takes nothing for now
_REMAINING = "_expected_content_remaining"


def read_wide(connection: object) -> None:
    """Read this connection's body straight into an upload's pieces: three buffers, used in turn.

    The handler gets memoryviews of them, and may use each until it has taken the next.
    """
    stream = getattr(connection, "stream", None)
    if isinstance(stream, ClientStream):
        stream.pieces = cycle([_whole_pages(PIECE) for _ in range(3)])


def _whole_pages(size: int) -> memoryview:
    """Page-aligned memory: just past the start of a page, some processors copy many times slower."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def can_send(connection: object) -> bool:
    """Return whether `send_file` works on this connection: no TLS, and tornado's detail is as expected."""
    stream = getattr(connection, "stream", None)
    plain = isinstance(stream, ClientStream) and not isinstance(stream, SSLIOStream)
    return plain and hasattr(connection, _REMAINING)


async def send_file(connection: HTTP1Connection, descriptor: int, start: int, end: int, lane: Lane) -> bool:
    """Send a file's bytes from `start` to `end` as the whole body, after the headers have been flushed.

    Threads send as much as the socket accepts, and wait for it no longer than `_PATIENCE`: a fast client need
    not wait for the loop, and a slow one occupies no thread. Returns False if the file has become shorter.
    Raises StreamClosedError when the client leaves.
    """
    stream = connection.stream
    if stream.closed():
        raise StreamClosedError
    assert isinstance(stream, ClientStream)
    # Duplicated, because tornado may close the stream's descriptor while a thread sends.
    target = os.dup(stream.socket.fileno())
    try:
        stream.pace.sending = True
        while start < end:
            sent = await lane.run(_send_turn, target, descriptor, start, min(end, start + _TURN))
            if sent is None:
                return False
            if not sent:
                await _writable(target, stream)
            start += sent
            stream.has_sent(sent)
    except OSError as error:
        raise StreamClosedError(real_error=error) from error
    finally:
        stream.pace.sending = False
        os.close(target)
    setattr(connection, _REMAINING, 0)
    return True


def _send_turn(target: int, source: int, start: int, end: int) -> int | None:
    """Return the number of bytes that the socket took; None at the end of the file."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    done = start
    deadline = time.monotonic() + _TURN_SECONDS
    while done < end and time.monotonic() < deadline:
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
    """Wait until writable. Raises StreamClosedError if we close the stream: the duplicate stays open."""
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
