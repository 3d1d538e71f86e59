"""A plain Jupyter WebSocket client for tests: all three framings, and nothing done behind the test's back."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import os
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection

from cellgate.client import Gateway
from cellgate.client.kernel import KernelQuestions
from tests.support.server import GatewayProcess
from tests.support.websockets import websocket

V1 = "v1.kernel.websocket.jupyter.org"
PATIENCE = 120.0

Sent = dict[str, Any]


class Channels:
    """One WebSocket. Received messages are dicts with `channel`, whatever their framing was."""

    def __init__(self, socket: WebSocketClientConnection, *, v1: bool) -> None:
        self.socket = socket
        self.v1 = v1
        self.over = False

    async def frame(self) -> str | bytes | None:
        """The next frame; None once the socket is closed."""
        if self.over:
            return None
        async with asyncio.timeout(PATIENCE):
            frame = await self.socket.read_message()
        self.over = frame is None
        return frame

    async def send(
        self,
        msg_type: str,
        content: Sent,
        *,
        channel: str | None = "shell",
        buffers: list[bytes] | None = None,
        parent: Sent | None = None,
        **changes: Any,
    ) -> str:
        """Send a message, by a binary frame where it needs one; its msg_id."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": msg_type,
            "username": "",
            "session": "a",
            "version": "5.3",
        }
        message: Sent = {
            "header": header | changes.pop("header", {}),
            "parent_header": parent or {},
            "metadata": changes.pop("metadata", {}),
            "content": content,
            **changes,
        }
        if channel is not None:
            message["channel"] = channel
        if self.v1:
            await self.socket.write_message(pack_v1(message, buffers or []), binary=True)
        elif buffers:
            await self.socket.write_message(pack_legacy(message, buffers), binary=True)
        else:
            await self.socket.write_message(json.dumps(message))
        return str(message["header"]["msg_id"])

    async def execute(self, code: str, **fields: Any) -> str:
        """Send an execute_request as most clients do; its msg_id."""
        metadata = fields.pop("metadata", {})
        header = fields.pop("header", {})
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        return await self.send("execute_request", content | fields, metadata=metadata, header=header)

    async def receive(self) -> Sent:
        """The next message. Fails when the socket is closed or nothing comes."""
        frame = await self.frame()
        assert frame is not None, f"closed: {self.socket.close_code} {self.socket.close_reason}"
        return unpack(frame, v1=self.v1)

    async def until(self, condition: Callable[[Sent], object]) -> list[Sent]:
        """All messages up to the first for which the condition holds."""
        messages = [await self.receive()]
        while not condition(messages[-1]):
            messages.append(await self.receive())
        return messages

    async def ended(self, msg_id: str) -> list[Sent]:
        """All messages up to the idle status of this request."""
        return await self.until(lambda message: is_idle(message, msg_id))

    async def run(self, code: str, **fields: Any) -> list[Sent]:
        """Execute, and all messages of it up to idle."""
        msg_id = await self.execute(code, **fields)
        return of(await self.ended(msg_id), msg_id)

    async def closed(self) -> tuple[int | None, str | None]:
        """Code and reason, once the gateway has closed the socket."""
        while await self.frame() is not None:
            pass
        return self.socket.close_code, self.socket.close_reason


@asynccontextmanager
async def channels(
    gateway: GatewayProcess,
    kernel: str,
    *,
    session_id: str | None = None,
    v1: bool = False,
    headers: dict[str, str] | None = None,
) -> AsyncIterator[Channels]:
    """An open WebSocket to a kernel."""
    query = f"?session_id={session_id}" if session_id else ""
    request = HTTPRequest(
        f"ws://{gateway.host}/api/kernels/{kernel}/channels{query}",
        headers={"Authorization": f"token {gateway.token}", **(headers or {})},
    )
    async with websocket(request, subprotocols=[V1] if v1 else None, max_message_size=1 << 30) as opened:
        assert opened.selected_subprotocol == (V1 if v1 else None)
        yield Channels(opened, v1=v1)


async def kernel_info(gateway: Gateway, session: str) -> dict[str, Any]:
    """What the kernel of a session answers to the Python client over its WebSocket."""
    questions = KernelQuestions(gateway._calls, session)
    reply = await questions.ask("kernel_info_request", {}, timeout=PATIENCE)
    assert reply is not None
    protocol = questions._socket and questions._socket.protocol
    assert protocol is not None
    await questions.close()
    async with asyncio.timeout(PATIENCE):
        while not protocol.stream.closed():  # noqa: ASYNC110 - tornado closes it after the last frame
            await asyncio.sleep(0.005)
    return reply


@contextmanager
def raw_socket(gateway: GatewayProcess, kernel: str, *, token: str | None = None) -> Iterator[socket.socket]:
    """A WebSocket right after its handshake: what is read and written is the test's."""
    host, port = gateway.host.split(":")
    connection = socket.socket()
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(
            f"GET /api/kernels/{kernel}/channels HTTP/1.1\r\nHost: {gateway.host}\r\n"
            f"Authorization: token {token or gateway.token}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 101"
        yield connection
    finally:
        connection.close()


@contextmanager
def vanished(connection: socket.socket) -> Iterator[None]:
    """As if the cable were cut: the socket takes nothing that comes, so its system acknowledges nothing.

    A socket filter that keeps no byte of any packet (socket(7), SO_ATTACH_FILTER); no rights are needed.
    """
    attach, detach = 26, 27
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # return 0
    connection.setsockopt(socket.SOL_SOCKET, attach, struct.pack("@HP", 1, ctypes.addressof(program)))
    try:
        yield
    finally:
        connection.setsockopt(socket.SOL_SOCKET, detach, 0)


def text_frame(text: str) -> bytes:
    """A text frame of less than 64 KiB, masked by zeros, as a client may send it (RFC 6455, section 5.3)."""
    data = text.encode()
    return struct.pack(">BBH4x", 0x81, 0x80 | 126, len(data)) + data


def pack_legacy(message: Sent, buffers: list[bytes]) -> bytes:
    """A binary frame without a subprotocol."""
    parts = [json.dumps(message).encode(), *buffers]
    offsets, at = [], 4 * (len(parts) + 1)
    for part in parts:
        offsets.append(at)
        at += len(part)
    return struct.pack(f">{len(parts) + 1}I", len(parts), *offsets) + b"".join(parts)


def pack_v1(message: Sent, buffers: list[bytes]) -> bytes:
    """A frame of the v1 subprotocol."""
    names = ("header", "parent_header", "metadata", "content")
    parts = [message["channel"].encode(), *(json.dumps(message[name]).encode() for name in names), *buffers]
    offsets = [8 * (len(parts) + 2)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)


def unpack(frame: str | bytes, *, v1: bool) -> Sent:
    """The message in a frame."""
    if v1:
        assert isinstance(frame, bytes)
        count = struct.unpack_from("<Q", frame)[0]
        offsets = struct.unpack_from(f"<{count}Q", frame, 8)
        parts = [frame[a:b] for a, b in pairwise(offsets)]
        header, parent, metadata, content = map(json.loads, parts[1:5])
        return {
            "channel": parts[0].decode(),
            "header": header,
            "msg_type": header["msg_type"],
            "parent_header": parent,
            "metadata": metadata,
            "content": content,
            "buffers": parts[5:],
        }
    if isinstance(frame, str):
        message = json.loads(frame)
    else:
        count = struct.unpack_from(">I", frame)[0]
        offsets = (*struct.unpack_from(f">{count}I", frame, 4), len(frame))
        parts = [frame[a:b] for a, b in pairwise(offsets)]
        message = {**json.loads(parts[0]), "buffers": parts[1:]}
    assert isinstance(message, dict)
    return message


def is_idle(message: Sent, msg_id: str) -> bool:
    """Whether it is the idle status of this request."""
    return (
        message["msg_type"] == "status"
        and message["content"]["execution_state"] == "idle"
        and message["parent_header"].get("msg_id") == msg_id
    )


def of(messages: list[Sent], msg_id: str) -> list[Sent]:
    """Those whose parent is this request."""
    return [message for message in messages if message["parent_header"].get("msg_id") == msg_id]


def kinds(messages: list[Sent]) -> list[str]:
    """What they are, statuses by their state."""
    return [
        message["content"]["execution_state"] if message["msg_type"] == "status" else message["msg_type"]
        for message in messages
    ]


def text(messages: list[Sent]) -> str:
    """What they printed."""
    return "".join(message["content"]["text"] for message in messages if message["msg_type"] == "stream")
