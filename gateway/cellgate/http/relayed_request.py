"""A request that another server answers, a program or a gateway: head, body and answer, both as they arrive.

Either side's disconnect ends the other's connection, and the slower side sets the pace. ``ports.exchange`` is
the other side's connection, as HTTP/1.1; ``programs`` and ``hop`` choose it and filter the heads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPOutputError, HTTPServerRequest
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import RequestHandler

from cellgate.errors import BadProgramAnswer
from cellgate.http.listener.streams import PART, ClientStream
from cellgate.ports.exchange import Exchange, ExchangeConnection, ProgramAnswer
from cellgate.ports.headers import Fields
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor

BROKEN: Final = (OSError, StreamClosedError)
FAILURES: Final = (CellgateError, *BROKEN)
"""Failures of the other side's answer, which are reported to the waiting client."""


class RelayedHandler(Protocol):
    """A handler, as far as a relay needs one; see ``message``."""

    request: HTTPServerRequest
    disconnected: bool

    @property
    def client_stream(self) -> ClientStream | None:
        """The client's connection; None once it was detached."""

    def check(self) -> None:
        """Raise the refusal of the request, if any."""

    def begin_answer_of_another(self, status: int, reason: str, fields: Iterable[tuple[str, str]]) -> None:
        """Put another server's head in the place of the handler's."""

    def write(self, chunk: bytes, /) -> None:
        """Add bytes to the answer."""

    def flush(self) -> Awaitable[None]:
        """Send the bytes that were added."""

    def finish(self) -> object:
        """Send the end of the answer."""

    def detach(self) -> IOStream:
        """Return the connection, which is the caller's from now on."""


class RelayingHandler(RequestHandler):
    """A handler whose request another server may answer."""

    relay: RelayedRequest | None = None
    """The exchange with another server that answers the request in the place of this handler's method."""
    is_expected = False
    """Whether an answer of 500 or above is no failure: the gateway is starting or ending."""

    def leave_relay(self) -> None:
        """Close the connection to the server that answers in this handler's place, if one does."""
        if self.relay is not None:
            self.relay.close()

    def begin_answer_of_another(self, status: int, reason: str, fields: Iterable[tuple[str, str]]) -> None:
        """Put another server's head in the place of this handler's, without any header of the gateway's.

        What the other server says is no failure of this gateway.
        """
        self._headers = HTTPHeaders()
        self.set_status(status, reason or None)
        for name, value in fields:
            self.add_header(name, value)
        self.is_expected = True


@dataclass(frozen=True, slots=True)
class RelayWay:
    """What differs between other servers.

    `fields`: filters those of an answer. `idle`: seconds after which a WebSocket without a byte either way is
    closed; None: never. `kept`: called once the connection can have another request; it is closed if not.
    `joined`: called with the client's connection when it becomes a WebSocket.
    """

    fields: Callable[[ProgramAnswer], Fields]
    idle: float | None = None
    kept: Callable[[], None] | None = None
    joined: Callable[[IOStream], None] | None = None


class RelayedRequest:
    """One request and its answer."""

    def __init__(
        self, handler: RelayedHandler, connection: ExchangeConnection, exchange: Exchange, way: RelayWay
    ) -> None:
        self._handler = handler
        self._connection = connection
        self._exchange = exchange
        self._way = way
        self._tasks = Supervisor()
        self._answering: asyncio.Task[None] | None = None
        self._closed = False

    async def begin(self, method: str, target: str, fields: Fields) -> None:
        """Send the head, and wait for the answer beside the body. Raises InvalidInput."""
        try:
            with suppress(*BROKEN):  # it may have answered all the same
                await self._exchange.begin(method, target, fields)
        except BaseException:
            self.close()
            raise
        self._ask_for_body()
        self._answering = self._tasks.share(self._answer(), "answer of another server", FAILURES)

    def _ask_for_body(self) -> None:
        """Ask a waiting client to send the body, unless an answer may have begun.

        Tornado would do so later, and write into the other server's answer.
        """
        request = self._handler.request
        expected = request.headers.pop("Expect", "").lower() == "100-continue"
        stream = self._handler.client_stream
        if expected and stream is not None and request.version == "HTTP/1.1":
            with suppress(*BROKEN):
                stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def pass_on(self, chunk: bytes | None) -> None:
        """Send a piece of the body, or for None its end, unless the other side has answered."""
        answering = self._answering
        if answering is None or answering.done():
            return
        work = self._exchange.finish() if chunk is None else self._exchange.send(chunk)
        sending = self._tasks.share(work, "body to another server", BROKEN)
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            with suppress(*BROKEN):
                sending.result()
        else:
            sending.cancel()

    async def finish(self) -> None:
        """Send the end of the body, and return when the answer is sent.

        Raises the refusal of the request's body, and the reason why there is no answer to a client that still
        listens.
        """
        try:
            self._handler.check()
            await self.pass_on(None)
            assert self._answering is not None
            await asyncio.wait({self._answering})
            error = self._answering.exception()
            if error is not None and not self._handler.disconnected and not isinstance(error, BROKEN):
                raise error
        finally:
            await self.leave()

    async def leave(self) -> None:
        """End what is left of the exchange."""
        if self._way.kept is not None and self._exchange.reusable and not self._closed:
            self._closed = True
            self._way.kept()
        self.close()
        await self._tasks.cancel()

    def close(self) -> None:
        """Close the connection to the other server, unless it has been kept. Idempotent."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    # The answer

    async def _answer(self) -> None:
        """Send the answer to the client. Raises the exchange's error, and StreamClosedError."""
        answer = await self._exchange.answer()
        try:
            fields = self._way.fields(answer)
            self._handler.begin_answer_of_another(answer.status, answer.reason, fields)
            if not answer.switches:
                await self._pass_back()
                return
            self._handler.finish()
        except (HTTPInputError, HTTPOutputError) as error:
            # Tornado's rules are stricter.
            raise BadProgramAnswer(f"The answer can't be passed on: {error}") from None
        await self._join()

    async def _pass_back(self) -> None:
        """Send the head and, as it arrives, the body."""
        handler = self._handler
        await handler.flush()
        async for data in self._exchange.body():
            handler.write(data)
            await handler.flush()
        handler.finish()

    async def _join(self) -> None:
        """Pass a WebSocket's bytes on in both directions, until either side ends it."""
        client = self._handler.detach()
        client.set_close_callback(self.close)
        if self._way.joined is not None:
            self._way.joined(client)
        try:
            with suppress(*BROKEN):  # a TimeoutError, too
                if rest := self._exchange.rest():
                    await client.write(rest)
                async with asyncio.timeout(self._way.idle) as idle:
                    await self._both_ways(client, idle)
        finally:
            client.close()

    async def _both_ways(self, client: IOStream, idle: asyncio.Timeout) -> None:
        clock = asyncio.get_running_loop().time

        def moves() -> None:
            if self._way.idle is not None:
                idle.reschedule(clock() + self._way.idle)

        async def to_other() -> None:
            while True:
                if isinstance(client, ClientStream):
                    client.begins_message()
                data = await client.read_bytes(PART, partial=True)
                if isinstance(client, ClientStream):
                    client.pace.ends_message()
                moves()
                await self._connection.write(data)

        async def to_client() -> None:
            while data := await self._connection.read():
                moves()
                await client.write(data)

        tasks = Supervisor()
        up = tasks.share(to_other(), "to another server", BROKEN)
        down = tasks.share(to_client(), "from another server", BROKEN)
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.cancel()
