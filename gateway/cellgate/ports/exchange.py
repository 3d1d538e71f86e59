"""One request to a program inside a session, or to another gateway, and its answer, as HTTP/1.1.

h11 writes and parses; the other side's bytes are limited here, in size and in time, before they are believed.
A connection to a program has one request: a bad answer affects no other. After a switch to WebSocket the
bytes are both sides' own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, Protocol

import h11

from cellgate.errors import BadProgramAnswer
from cellgate.ports.headers import Fields
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.places import Places

MOST_HEAD: Final = 64 * 1024
MOST_FIELDS: Final = 100
MOST_EARLY: Final = 16
"""Most interim answers (100, 103) before the final one."""
PIECES_AT_ONCE: Final = 32
"""Pieces of a body that are parsed before others have their turn: a program may send each byte as one, and
parsing it costs as much as parsing a large one. All answers together have a limit in a turn, too; see
`PortCounts`.
"""
ANSWER_SECONDS: Final = 300.0
"""Seconds to the first byte of an answer, and between any two of its body."""
HEAD_SECONDS: Final = 30.0
"""Seconds for a whole head, from its first byte."""
SWITCHING: Final = 101
NO_CONTENT: Final = 204
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""The value of a field; h11 accepts further control characters."""


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """The head of an answer. `switches`: the bytes after it are not a body, but the agreed protocol's."""

    status: int
    reason: str
    fields: Fields
    switches: bool = False


class ExchangeConnection(Protocol):
    """The connection of an exchange. `places`: one is taken before each piece of read bytes is handled."""

    places: Places

    async def read(self) -> bytes:
        """Read the next bytes; empty at the end. Raises OSError."""

    async def write(self, data: bytes) -> None:
        """Send bytes, and return when more may be sent. Raises OSError."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class Exchange:
    """A request and its answer over a connection, which the caller closes.

    `peer`: the other side, as messages name it. `limited`: whether it has only so many seconds to the first
    byte of an answer, and between any two of its body. `failure`: raised in the place of BadProgramAnswer.
    """

    def __init__(
        self,
        connection: ExchangeConnection,
        peer: str = "The program",
        *,
        limited: bool = True,
        failure: type[CellgateError] = BadProgramAnswer,
    ) -> None:
        self._connection = connection
        self._peer = peer
        self._limited = limited
        self._failure = failure
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        self._head_until: float | None = None

    # The request

    async def begin(self, method: str, target: str, fields: Fields) -> None:
        """Send the head. Raises InvalidInput if it is not HTTP/1.1, OSError if the other side has left."""
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
        try:
            head = h11.Request(method=method, target=target.encode("latin-1"), headers=encoded)
            data = self._http.send(head)
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            raise InvalidInput(f"The request can't be passed on: {error}") from None
        await self._write(data)

    async def send(self, data: bytes) -> None:
        """Send a piece of the body. Raises OSError when the other side has left."""
        await self._write(self._http.send(h11.Data(data=data)))

    async def finish(self) -> None:
        """Send the end of the body. Raises OSError when the other side has left."""
        await self._write(self._http.send(h11.EndOfMessage()))

    async def _write(self, data: bytes | None) -> None:
        if data:
            await self._connection.write(data)

    # The answer

    async def answer(self) -> ProgramAnswer:
        """Return the head of the answer. Raises BadProgramAnswer."""
        for _ in range(MOST_EARLY):
            event = await self._next()
            if isinstance(event, h11.Response):
                return self._head(event)
            if isinstance(event, h11.InformationalResponse) and event.status_code == SWITCHING:
                return self._head(event, switches=True)
        raise self._failure(f"{self._peer} sends interim answers only")

    async def body(self) -> AsyncGenerator[bytes]:
        """Yield the answer's body as it arrives, with joined pieces, at most one in a turn of the loop.

        Raises BadProgramAnswer when the body is incomplete.
        """
        event = await self._next()
        while isinstance(event, h11.Data):
            pieces: list[bytes] = []
            while isinstance(event, h11.Data) and len(pieces) < PIECES_AT_ONCE:
                if (place := self._connection.places.take()) is not None:
                    await place
                pieces.append(bytes(event.data))
                event = self._parsed()
            yield b"".join(pieces)
            await asyncio.sleep(0)
            if event is h11.NEED_DATA:
                event = await self._next()
        if not isinstance(event, h11.EndOfMessage):
            raise self._failure(f"{self._peer} sent an answer that is not whole")

    def rest(self) -> bytes:
        """Return the bytes received after the head of an answer that switches protocols."""
        return bytes(self._http.trailing_data[0])

    @property
    def reusable(self) -> bool:
        """Whether request and answer are complete, and the other side takes one more request."""
        states = {self._http.our_state, self._http.their_state}
        return states == {h11.DONE} and self._http.trailing_data == (b"", False)

    async def _next(self) -> object:
        """Return the next event. Raises BadProgramAnswer."""
        try:
            while True:
                event = self._parsed()
                if event is not h11.NEED_DATA:
                    return event
                data = await self._read()
                if not data and self._in_head:
                    raise self._failure(f"{self._peer} closed the connection without an answer")
                self._http.receive_data(data)
        except TimeoutError:
            raise self._failure(f"{self._peer} does not answer in time") from None
        except OSError:
            raise self._failure(f"{self._peer} closed the connection") from None

    def _parsed(self) -> object:
        """Return the next event in the bytes read, or h11's NEED_DATA. Raises BadProgramAnswer."""
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise self._failure(f"{self._peer} answers what is not HTTP/1.1: {error}") from None

    @property
    def _in_head(self) -> bool:
        return self._http.their_state is h11.SEND_RESPONSE

    async def _read(self) -> bytes:
        if self._in_head and self._head_until is not None:
            async with asyncio.timeout_at(self._head_until):
                return await self._connection.read()
        async with asyncio.timeout(ANSWER_SECONDS if self._limited else None):
            data = await self._connection.read()
        if self._head_until is None:
            self._head_until = asyncio.get_running_loop().time() + HEAD_SECONDS
        return data

    def _head(
        self, event: h11.Response | h11.InformationalResponse, *, switches: bool = False
    ) -> ProgramAnswer:
        """Return a head's values. Raises BadProgramAnswer if two readers might understand it differently."""
        fields = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()
        ]
        if len(fields) > MOST_FIELDS:
            raise self._failure(f"{self._peer} sent more than {MOST_FIELDS} header fields")
        if not all(_VALUE.fullmatch(value) for _, value in fields):
            raise self._failure(f"{self._peer} sent control characters in a header field")
        names = {name.lower() for name, _ in fields}
        if {"content-length", "transfer-encoding"} <= names:
            raise self._failure(f"{self._peer} sent both Content-Length and Transfer-Encoding")
        if switches or event.status_code == NO_CONTENT:
            # There is no body, so only readers that don't know that would believe its length.
            fields = [(name, value) for name, value in fields if name.lower() != "content-length"]
        reason = event.reason.decode("latin-1")
        return ProgramAnswer(
            event.status_code, reason if reason.isascii() and reason.isprintable() else "", fields, switches
        )
