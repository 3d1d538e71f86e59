"""Many idle kernels with a WebSocket each: the memory and processor time that one more costs the gateway.

The kernels are ``cheap_kernel``: they speak the protocol and do nothing, so that two hundred fit on a small
machine. Everything on the gateway's side is real: processes, zmq sockets, sessions, records, WebSockets.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from benchmarks.channels import start_kernel
from benchmarks.cheap_kernel import write_kernelspec
from benchmarks.figures import MB, Figure
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate

UNCOUNTED = 20
COUNTED = 200
SECONDS = 60.0


def measure(options: Options) -> Sequence[Figure]:
    """Memory per kernel and connection, and processor time per connection and hour."""
    uncounted = options.count(UNCOUNTED, 2)
    counted = options.count(COUNTED, 8)
    with tempfile.TemporaryDirectory(prefix="cheap-") as folder:
        write_kernelspec(Path(folder))
        arguments = (f"--ServeApp.kernel_dirs={folder}", "--ServeApp.max_kernels=500", "--pool-size", "0")
        with cellgate("process", *arguments) as server:
            return asyncio.run(_measure(server, uncounted, counted, options.count(int(SECONDS), 5)))


async def _measure(server: Server, uncounted: int, counted: int, seconds: float) -> Sequence[Figure]:
    with server.client() as rest:
        sockets = [await _connect(server, start_kernel(rest)) for _ in range(uncounted)]
        await asyncio.sleep(2)
        before = server.resident()
        for number in range(counted):
            sockets.append(await _connect(server, start_kernel(rest)))
            if number % 25 == 24:
                say(f"sockets: {number + 1} of {counted} kernels, {server.resident() / MB:.1f} MB")
        await asyncio.sleep(2)
        memory = (server.resident() - before) / counted
        used = server.cpu()
        begun = time.monotonic()
        say(f"sockets: {seconds:g} s of idleness")
        await asyncio.sleep(seconds)
        spent = (server.cpu() - used) / (time.monotonic() - begun) / len(sockets)
        for socket in sockets:
            socket.close()
    return [
        Figure(f"{counted} idle kernels, a WebSocket each: memory of one", memory / MB, "MB"),
        Figure("  processor time of one", spent * 1000, "ms/s"),
    ]


async def _connect(server: Server, kernel: str) -> WebSocketClientConnection:
    url = f"{server.url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels"
    return await websocket_connect(HTTPRequest(url, headers={"Authorization": f"token {server.token}"}))
