"""WebSockets of tornado's client that leave no socket behind.

Tornado closes a connection some time after its last frame, and never if the loop ends first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.support.server import PATIENCE


@asynccontextmanager
async def websocket(request: HTTPRequest, **options: Any) -> AsyncIterator[WebSocketClientConnection]:
    """An open WebSocket; afterwards it is closed, its socket too. Raises HTTPClientError if it is refused."""
    opened = await websocket_connect(request, **options)
    protocol = opened.protocol
    assert protocol is not None
    try:
        yield opened
    finally:
        opened.close()
        async with asyncio.timeout(PATIENCE):
            while not protocol.stream.closed():
                # Nothing tells of it, and what was said before keeps tornado from reading on.
                with suppress(TimeoutError):
                    await asyncio.wait_for(opened.read_message(), 0.005)
