"""Relays a kernel's connections to the gateway's proxy: ``forwarder.py SOCKET``; stdin is a listening socket.

Programs reach a proxy by TCP, and a kernel without a network has only the gateway's Unix socket, so
``bootstrap`` starts this beside the kernel. It needs nothing but the standard library. It decides nothing:
code in the kernel may end it or talk to the socket itself, and gets no further.
"""

import asyncio
import os
import socket
import sys
from contextlib import suppress

CHUNK = 64 * 1024
MOST_READ_ON = 16
PATIENCE = 5.0  # seconds for a client to leave when it was refused
ABSENT = b"HTTP/1.1 502 Bad Gateway (the gateway's proxy does not answer)\r\nConnection: close\r\n\r\n"


async def serve(listener, path):
    """Relay each connection until the kernel ends."""

    async def relay(reader, writer):
        with suppress(OSError):
            try:
                from_proxy, to_proxy = await asyncio.open_unix_connection(path)
            except OSError:
                await refuse(reader, writer)
                return
            try:
                await asyncio.gather(pump(reader, to_proxy), pump(from_proxy, writer))
                await flush(to_proxy, writer)
            finally:
                to_proxy.transport.abort()
                writer.transport.abort()

    server = await asyncio.start_server(relay, sock=listener)
    async with server:
        await server.serve_forever()


async def refuse(reader, writer):
    """Say that no gateway is there, and read on: closing a socket with unread bytes takes the answer back."""
    try:
        writer.write(ABSENT)
        writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                for _ in range(MOST_READ_ON):
                    if not await reader.read(CHUNK):
                        break
    finally:
        writer.transport.abort()


async def pump(reader, writer):
    """Relay everything until the end, and then the end."""
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


async def flush(*writers):
    """Close when everything is sent."""
    for writer in writers:
        writer.close()
    for writer in writers:
        await writer.wait_closed()


if __name__ == "__main__":
    # Not the kernel's folder: that would keep it in use.
    os.chdir("/")
    asyncio.run(serve(socket.socket(fileno=0), sys.argv[1]))
