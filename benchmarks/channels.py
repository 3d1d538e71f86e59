"""A client of Jupyter's kernel WebSocket, ``/api/kernels/{id}/channels``: the peer has no other door.

It sends the default JSON text frames and reads until idle and the reply, as agents' clients do. It uses
Tornado's own WebSocket client, on a loop that runs only while a cell does.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from types import TracebackType
from typing import Any, Self

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from benchmarks.client import AnswerError
from benchmarks.raw import execute_content, request_header

TIMEOUT = 60.0
"""Seconds that connecting, or one cell, may take."""


class Channels:
    """One WebSocket to one kernel; blocking, one cell at a time."""

    def __init__(self, url: str, token: str, kernel_id: str) -> None:
        self._session = uuid.uuid4().hex
        address = f"{url.replace('http', 'ws', 1).rstrip('/')}/api/kernels/{kernel_id}/channels"
        self._request = HTTPRequest(address, headers={"Authorization": f"token {token}"})
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._socket = self._runner.run(self._connect())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _connect(self) -> WebSocketClientConnection:
        async with asyncio.timeout(TIMEOUT):
            return await websocket_connect(self._request)

    async def _close(self) -> None:
        self._socket.close()
        async with asyncio.timeout(TIMEOUT):
            while await self._socket.read_message() is not None:
                pass

    def execute(self, code: str) -> float:
        """Run one cell; returns seconds from before sending to after the idle status and the reply."""
        return self._runner.run(self._execute(code))

    async def _execute(self, code: str) -> float:
        begun = time.perf_counter()
        request = self._message(code)
        msg_id = request["header"]["msg_id"]
        await self._socket.write_message(json.dumps(request))
        idle, reply = False, None
        async with asyncio.timeout(TIMEOUT):
            while not idle or reply is None:
                message = await self._receive()
                if message["parent_header"].get("msg_id") != msg_id:
                    continue
                if message["msg_type"] == "execute_reply":
                    reply = message["content"]["status"]
                elif message["msg_type"] == "status":
                    idle = message["content"]["execution_state"] == "idle"
        elapsed = time.perf_counter() - begun
        if reply != "ok":
            raise AnswerError(f"the cell {code!r} ended with status {reply}")
        return elapsed

    async def _receive(self) -> dict[str, Any]:
        text = await self._socket.read_message()
        if not isinstance(text, str):
            raise AnswerError(f"the WebSocket gave {text!r} in the middle of a cell")
        message: dict[str, Any] = json.loads(text)
        return message

    def _message(self, code: str) -> dict[str, Any]:
        return {
            "header": request_header("execute_request", self._session),
            "parent_header": {},
            "metadata": {},
            "content": execute_content(code),
            "channel": "shell",
            "buffers": [],
        }
