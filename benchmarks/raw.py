"""The baseline that the gateway is measured against: pyzmq, HMAC and nothing else, blocking.

It does only what any client of a Jupyter kernel must do for a cell: sign and send one execute_request, then
read until the kernel is idle again and has replied. It does not check signatures of messages received and
decodes no content but the reply's, so it is faster than jupyter_client.
Source: jupyter-client, "Messaging in Jupyter", sections "The wire protocol" and "Execute".
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

DELIMITER = b"<IDS|MSG>"
RECEIVE_TIMEOUT = 60_000
"""Milliseconds without a message after which a kernel counts as lost."""

SUBSCRIPTION_ATTEMPTS = 100
SUBSCRIPTION_INTERVAL = 50
"""Milliseconds to wait for iopub after each request."""


def execute_content(code: str) -> dict[str, object]:
    """The content of an execute_request as a notebook sends it; all clients here use the same."""
    return {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }


def request_header(msg_type: str, session: str) -> dict[str, str]:
    """A new request's header; `session` is the client's session id in the protocol."""
    return {
        "msg_id": uuid.uuid4().hex,
        "msg_type": msg_type,
        "username": "benchmark",
        "session": session,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "version": "5.4",
    }


class RawKernel:
    """A second client of a running kernel, by its connection file. Close it: it receives all output."""

    def __init__(self, connection_file: Path) -> None:
        info = json.loads(connection_file.read_text())
        self._hmac = hmac.new(info["key"].encode(), digestmod=hashlib.sha256)
        self._session = uuid.uuid4().hex
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._iopub = self._connect(info, "iopub", zmq.SUB)
        self._iopub.subscribe(b"")
        self._shell = self._connect(info, "shell", zmq.DEALER)
        self._await_subscription()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    def _connect(self, info: Mapping[str, Any], channel: str, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.rcvtimeo = RECEIVE_TIMEOUT
        separator = "-" if info["transport"] == "ipc" else ":"
        socket.connect(f"{info['transport']}://{info['ip']}{separator}{info[f'{channel}_port']}")
        return socket

    def _await_subscription(self) -> None:
        """Send requests until a message arrives on iopub: otherwise the first cell's outputs could be lost.

        The iopub_welcome of JEP 65 is no help: ipykernel sends it to the first client only, because its XPUB
        socket reports only the first subscription to a topic.
        """
        for _ in range(SUBSCRIPTION_ATTEMPTS):
            msg_id = self._send("kernel_info_request", {})
            self._reply(msg_id)
            if self._iopub.poll(SUBSCRIPTION_INTERVAL):
                return
        raise TimeoutError("the kernel's iopub messages do not arrive")

    def _receive(self, socket: zmq.Socket[bytes]) -> tuple[dict[str, Any], str, bytes]:
        """A message's header, its parent's msg_id and its undecoded content."""
        frames = socket.recv_multipart()
        start = frames.index(DELIMITER)
        parent = json.loads(frames[start + 3])
        return json.loads(frames[start + 2]), parent.get("msg_id", ""), frames[start + 5]

    def execute(self, code: str) -> float:
        """Run one cell; returns seconds from before signing to after the idle status and the reply.

        Raises RuntimeError if the cell fails, zmq.Again if the kernel stops answering.
        """
        begun = time.perf_counter()
        msg_id = self._send("execute_request", execute_content(code))
        while True:
            header, parent, content = self._receive(self._iopub)
            if parent == msg_id and header["msg_type"] == "status" and b'"idle"' in content:
                break
        reply = self._reply(msg_id)
        elapsed = time.perf_counter() - begun
        if reply["status"] != "ok":
            raise RuntimeError(f"the cell {code!r} failed: {reply}")
        return elapsed

    def _reply(self, msg_id: str) -> dict[str, Any]:
        """The content of the reply to one request, from the shell channel."""
        parent = ""
        while parent != msg_id:
            _, parent, content = self._receive(self._shell)
        reply: dict[str, Any] = json.loads(content)
        return reply

    def _send(self, msg_type: str, content: Mapping[str, Any]) -> str:
        """Sign a request and send it on the shell channel; returns its msg_id."""
        header = request_header(msg_type, self._session)
        parts = [json.dumps(header).encode(), b"{}", b"{}", json.dumps(content).encode()]
        signature = self._hmac.copy()
        for part in parts:
            signature.update(part)
        self._shell.send_multipart([DELIMITER, signature.hexdigest().encode(), *parts])
        return header["msg_id"]
