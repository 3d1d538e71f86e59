"""Requests to a session's kernel other than cells: completions, whether code is complete, its language.

They go over the session's Jupyter WebSocket, one or several at a time, each with a timeout. Cells do not:
they belong to ``api.Session``. As a helper for prompts, it returns None, not an error, without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any
from urllib.parse import quote

import msgspec
from tornado.httpclient import HTTPError
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError

from cellgate.client.calls import Calls, session_path

_CONNECT_TIMEOUT = 5.0
_ANSWER_TIMEOUT = 5.0


class _Header(msgspec.Struct):
    msg_type: str = ""


class _Parent(msgspec.Struct):
    msg_id: str = ""


class _Message(msgspec.Struct):
    header: _Header
    parent_header: _Parent
    content: dict[str, Any] = {}


class KernelQuestions:
    """One WebSocket to a session, opened for the first request and again after it was lost."""

    def __init__(self, calls: Calls, session: str) -> None:
        self._calls = calls
        self._target = f"/api/kernels/{quote(session, safe='~')}/channels?session_id={uuid.uuid4().hex}"
        self._key = session
        self._session = uuid.uuid4().hex
        self._socket: WebSocketClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any] | None]] = {}

    async def ask(
        self, kind: str, content: dict[str, Any], *, timeout: float = _ANSWER_TIMEOUT
    ) -> dict[str, Any] | None:
        """Return the content of the reply to a request on the shell channel; None if it is late."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": self._session}
        message = {
            "header": {**header, "username": "", "version": "5.3", "date": ""},
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
        }
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting[header["msg_id"]] = answer
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                socket = await self._connected()
                await socket.write_message(msgspec.json.encode(message).decode())
            async with asyncio.timeout(timeout):
                return await answer
        except (TimeoutError, OSError, HTTPError, StreamClosedError, WebSocketClosedError):
            return None
        finally:
            del self._waiting[header["msg_id"]]

    async def _connected(self) -> WebSocketClientConnection:
        if self._socket is None:
            await self.close()
            self._socket = await self._calls.websocket(self._target, session_path(self._key))
            self._reader = asyncio.create_task(self._read(self._socket))
        return self._socket

    async def _read(self, socket: WebSocketClientConnection) -> None:
        """Pass on replies. Everything else, such as the outputs of cells, is dropped."""
        while (frame := await socket.read_message()) is not None:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                message = msgspec.json.decode(frame, type=_Message)
                answer = self._waiting.get(message.parent_header.msg_id)
                if answer is not None and message.header.msg_type.endswith("_reply") and not answer.done():
                    answer.set_result(message.content)
        self._socket = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(None)

    async def close(self) -> None:
        """Close the WebSocket; a further request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
