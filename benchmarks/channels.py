"""A client of Jupyter's kernel WebSocket, ``/api/kernels/{id}/channels``, for Cellgate and the peer.

It sends the default JSON text frames and reads until idle and the reply, as agents' clients do. It uses
tornado's WebSocket client, on a loop that runs only while a cell does.
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

from benchmarks.client import AnswerError, HttpClient
from benchmarks.raw import execute_content, request_header

TIMEOUT = 60.0
"""Seconds that connecting, or one cell, may take."""

"""Seconds that an answer to a message may take that means nothing."""

MAX_MESSAGE = 1 << 30
"""Bytes of a message at most."""


def start_kernel(rest: HttpClient) -> str:
    """The id of a new kernel."""
    return str(rest.request("POST", "/api/kernels", {"name": "python3"}).json(201)["id"])


class Channels:
    """One WebSocket to one kernel; blocking, one cell at a time."""

    def __init__(self, url: str, token: str, kernel_id: str) -> None:
        self._session = uuid.uuid4().hex
        address = f"{url.replace('http', 'ws', 1).rstrip('/')}/api/kernels/{kernel_id}/channels"
        self._request = HTTPRequest(
            address, connect_timeout=TIMEOUT, headers={"Authorization": f"token {token}"}
        )
        self._runner = asyncio.Runner()
        self._has_ended = False

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
            return await websocket_connect(self._request, max_message_size=MAX_MESSAGE)

    async def _close(self) -> None:
        if self._has_ended:
            return
        self._socket.close()
        async with asyncio.timeout(TIMEOUT):
            while await self._socket.read_message() is not None:
                pass

    def execute(self, code: str) -> float:
        """Run one cell; returns seconds from before sending to after the idle status and the reply."""
        return self._runner.run(self._execute(code))

    async def _execute(self, code: str) -> float:
        begun = time.perf_counter()
        request = self._message("execute_request", execute_content(code))
        msg_id = request["header"]["msg_id"]
        await self._socket.write_message(json.dumps(request))
        idle = False
        reply = None
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

    def printed(self, code: str) -> str:
        """The text that one cell prints."""
        frames = self._runner.run(self._frames(code))
        messages = [json.loads(frame) for frame in frames]
        return "".join(message["content"]["text"] for message in messages if message["msg_type"] == "stream")

    async def _frames(self, code: str) -> list[str]:
        request = self._message("execute_request", execute_content(code))
        await self._socket.write_message(json.dumps(request))
        frames = []
        async with asyncio.timeout(TIMEOUT):
            while True:
                frame = await self._socket.read_message()
                assert isinstance(frame, str)
                frames.append(frame)
                # Decode short frames only: a long one is output, and decoding it would take time.
                if len(frame) < 2000 and _ends(frame, request["header"]["msg_id"]):
                    return frames

    async def _receive(self) -> dict[str, Any]:
        text = await self._socket.read_message()
        if not isinstance(text, str):
            self._has_ended = True
            raise AnswerError(f"the WebSocket gave {text!r} in the middle of a cell")
        message: dict[str, Any] = json.loads(text)
        return message

    def _message(self, msg_type: str, content: dict[str, object]) -> dict[str, Any]:
        return {
            "header": request_header(msg_type, self._session),
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
            "buffers": [],
        }


def _ends(frame: str, msg_id: str) -> bool:
    message = json.loads(frame)
    return bool(
        message["msg_type"] == "status"
        and message["content"]["execution_state"] == "idle"
        and message["parent_header"].get("msg_id") == msg_id
    )
