"""Three ways to run a cell and learn its outcome: a JSON answer, server-sent events, the WebSocket of events.

For the clients of ``load``. Each is blocking, one cell at a time, and gives the same ``script.Outcome``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from benchmarks.client import AnswerError, HttpClient
from benchmarks.script import Cell, Outcome

CELL_TIMEOUT = 300.0
"""Seconds for one cell over the WebSocket, its wait for others included."""
MAX_MESSAGE = 1 << 30


class Interface(Protocol):
    """One way to run cells in one session."""

    def execute(self, cell: Cell) -> Outcome:
        """Run the cell. Raises AnswerError if it was refused."""
        ...


class JsonAnswer:
    """`POST .../execute` with one JSON answer at the end."""

    def __init__(self, client: HttpClient, path: str) -> None:
        self._client = client
        self._path = f"{path}/execute"

    def execute(self, cell: Cell) -> Outcome:
        """Run the cell. Raises AnswerError if it was refused."""
        return Outcome.of_result(self._client.request("POST", self._path, cell.body).json(200))


class EventStream:
    """`POST .../execute` with the cell's events as server-sent events."""

    def __init__(self, client: HttpClient, path: str) -> None:
        self._client = client
        self._path = f"{path}/execute"

    def execute(self, cell: Cell) -> Outcome:
        """Run the cell. Raises AnswerError if it was refused."""
        outcome = Outcome()
        ended = False
        for line in self._client.stream("POST", self._path, cell.body, "text/event-stream"):
            if line.startswith(b"data:"):
                ended = outcome.add_event(json.loads(line[5:]))
        if not ended:
            raise AnswerError(f"the events of {cell.mark} ended without its end")
        return outcome


class EventSocket:
    """The session's WebSocket. Its events must come in order, without a gap and none twice. Close it."""

    def __init__(self, url: str, token: str, path: str) -> None:
        address = f"{url.replace('http', 'ws', 1)}{path}/ws"
        self._request = HTTPRequest(address, headers={"Authorization": f"Bearer {token}"})
        self._seq = 0
        self._runner = asyncio.Runner()
        self._socket = self._runner.run(self._connect())

    async def _connect(self) -> Any:
        return await websocket_connect(self._request, max_message_size=MAX_MESSAGE)

    def close(self) -> None:
        """Close it, and read what still comes."""
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        self._socket.close()
        async with asyncio.timeout(CELL_TIMEOUT):
            while await self._socket.read_message() is not None:
                pass

    def execute(self, cell: Cell) -> Outcome:
        """Run the cell. Raises AnswerError if it was refused."""
        return self._runner.run(self._execute(cell))

    async def _execute(self, cell: Cell) -> Outcome:
        await self._socket.write_message(json.dumps({"execute": cell.body, "id": cell.mark}))
        accepted = None
        # Events may come before the answer that says whose they are.
        outcomes: dict[str, Outcome] = {}
        ended = set()
        async with asyncio.timeout(CELL_TIMEOUT):
            while accepted is None or accepted not in ended:
                frame = await self._receive()
                if "seq" not in frame:
                    accepted = _accepted(frame, cell)
                    continue
                self._follow(frame["seq"])
                execution = frame["execution"]
                if execution is not None:
                    outcome = outcomes.setdefault(execution, Outcome())
                    if outcome.add_event(frame):
                        ended.add(execution)
        return outcomes[accepted]

    async def _receive(self) -> dict[str, Any]:
        text = await self._socket.read_message()
        if text is None:
            raise AnswerError("the WebSocket was closed in the middle of a cell")
        frame: dict[str, Any] = json.loads(text)
        return frame

    def _follow(self, seq: int) -> None:
        if seq != self._seq + 1:
            raise AnswerError(f"event {seq} came after event {self._seq}")
        self._seq = seq


def _accepted(frame: Mapping[str, Any], cell: Cell) -> str:
    if frame["type"] != "accepted" or frame.get("id") != cell.mark:
        raise AnswerError(f"the command of {cell.mark} was answered {frame}")
    return str(frame["execution"])
