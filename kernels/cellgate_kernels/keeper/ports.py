"""A connection to a program that listens on a port inside a kernel's sandbox, relayed by the kernel's keeper.

The keeper's half is ``inside/ports.py``. In a sandbox, user code may have taken the keeper's place. So the
other side gets only a port's number and the caller's bytes, and its answers are passed on as bytes.
"""

from __future__ import annotations

import asyncio
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from typing import Final

from cellgate_kernels.base.errors import KernelDied, PortUnanswered
from cellgate_kernels.base.local_stream import open_stream
from cellgate_kernels.keeper.frames import HEAD, MOST_REASON, NUMBER, FromKeeper, ToKeeper, frame

CONNECT_SECONDS: Final = 10.0
"""The deadline of a connection; the keeper's own is earlier."""
BUFFER: Final = 64 * 1024
"""The most bytes that wait in each direction: reading from the program pauses, or `drain` waits."""

PortStreams = tuple[StreamReader, StreamWriter]


async def connect_port(path: str, port: int) -> PortStreams:
    """Connect to a port by the keeper at `path`. Raises PortUnanswered, or KernelDied without a keeper."""
    try:
        reader, writer = await open_stream(path, BUFFER)
    except OSError:
        raise _no_keeper() from None
    try:
        writer.transport.set_write_buffer_limits(high=BUFFER)
        writer.write(frame(ToKeeper.CONNECT, NUMBER.pack(port)))
        async with asyncio.timeout(CONNECT_SECONDS):
            await _receive_answer(reader, port)
    except (OSError, IncompleteReadError):  # a TimeoutError, too
        writer.transport.abort()
        raise _no_keeper() from None
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _receive_answer(reader: StreamReader, port: int) -> None:
    kind, size = HEAD.unpack(await reader.readexactly(HEAD.size))
    if (kind, size) == (FromKeeper.CONNECTED, 0):
        return
    if kind == FromKeeper.FAILED and size <= MOST_REASON:
        reason = (await reader.readexactly(size)).decode(errors="replace")
        raise PortUnanswered(
            f"Nothing answers on port {port} inside this session: {reason}. Start a program that listens on"
            f" 127.0.0.1:{port}"
        )
    raise _no_keeper()


def _no_keeper() -> KernelDied:
    return KernelDied(
        "The kernel's sandbox takes no connections: it has ended, or its image is older than this gateway."
    )
