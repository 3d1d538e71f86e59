"""WS /v1/sessions/{s}/ws: a session's events out, commands in, over one WebSocket.

Each event is one text frame with the bytes of the record, read by a cursor like every other stream, so a slow
client costs nothing and one that reconnects with `after` resumes where it was. Frames without a `seq` are
answers to commands. It handles frames and close codes; commands do what their HTTP counterparts do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, nullcontext

from msgspec import UNSET, UnsetType
from tornado.iostream import StreamClosedError

from cellgate.channels.frames import frame
from cellgate.errors import TooLarge, stream_problem_of
from cellgate.execution.checks import check_text
from cellgate.http.base import BaseHandler
from cellgate.http.listener.frames import WatchedWebSocketHandler
from cellgate.http.listener.streams import ClientStream
from cellgate.http.message import decode, decode_heavy, encode
from cellgate.http.operation import HTML, READS, Answer, operation
from cellgate.http.streaming import event_position
from cellgate.http.v1.executions import checked_cell
from cellgate.identity.principal import Permission
from cellgate.record.events import EventLog
from cellgate.wire.answers import Accepted
from cellgate.wire.models import Command
from cellgate.wire.problems import StreamProblem
from cellgate.wire.queries import EventsQuery
from cellgate_kernels.base.errors import CellgateError, GatewayFault, InvalidInput
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.codec.structure import is_heavy

logger = logging.getLogger(__name__)

NORMAL, INTERNAL_ERROR = 1000, 1011
MAX_INPUT = 1024 * 1024
MOST_HELD = 1024


class EventSocketHandler(BaseHandler, WatchedWebSocketHandler):
    """One WebSocket."""

    _events: EventLog
    _sender: asyncio.Task[None] | None = None
    _bound_to_me: Sequence[str] = ()

    @operation(
        "open_event_socket",
        "Follow and control a session over a WebSocket",
        Answer(
            101,
            "A WebSocket: events from the gateway, commands from the client, each as JSON in a text frame.",
        ),
        Answer(426, "The client must upgrade to WebSocket version 13.", {HTML: None}),
        query=EventsQuery,
        headers={"Last-Event-ID": "Send events after this `seq`, if it is later than `after`."},
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise InvalidInput("This path takes WebSockets; /events beside it gives the same as a stream")
        self._key = key
        self._after = event_position(self)
        self._events = await self.services.sessions.archive.log(self.owner, key)
        await WatchedWebSocketHandler.get(self)

    def open(self, *_: str, **__: str) -> None:
        """Start sending events; `on_close` stops it."""
        self.close_with_login()
        self._sender = Supervisor().start(
            self._send_events(),
            f"events to {self.client_address}",
            lambda _: self.close(INTERNAL_ERROR, GatewayFault.reason),
            session=self._key,
        )

    async def _send_events(self) -> None:
        try:
            async with aclosing(self._events.follow(self._after)) as batches:
                async for rows in batches:
                    # The rows stay in memory until their frames, which may be a copy, are sent.
                    await self._send(
                        b"".join([frame(row.body, is_binary=False) for row in rows]),
                        sum(len(row.body) for row in rows),
                    )
            self.close(NORMAL, "The session has ended")
        except StreamClosedError:
            logger.debug("A client of events has gone")
        except CellgateError as error:
            await self._answer(stream_problem_of(error))
            self.close(INTERNAL_ERROR, error.reason)

    async def _send(self, frames: bytes, kept: int = 0) -> None:
        """Write and wait until sent; `kept` bytes stay in memory until then. Raises StreamClosedError."""
        stream = self.ws_connection.stream if self.ws_connection is not None else None
        if stream is None:
            raise StreamClosedError
        with stream.memory.owing(kept) if isinstance(stream, ClientStream) else nullcontext():
            await stream.write(frames)

    async def _answer(self, answer: Accepted | StreamProblem) -> None:
        try:
            await self._send(frame(encode(answer), is_binary=False))
        except StreamClosedError:
            logger.debug("A client has gone before its answer")

    async def on_data(self, data: bytes | bytearray, *, is_binary: bool) -> None:
        named: str | int | UnsetType = UNSET
        answer: Accepted | StreamProblem
        try:
            # Each command counts as a request.
            asking = self.services.people.usage.ask_for_more(self.principal.name, 0)
            if asking is not None:
                await asking
            self.services.people.usage.account(self.principal.name).begin_request()
            if len(data) > self.max_body:
                raise TooLarge(f"The command is larger than the {self.max_body} bytes that are accepted here")
            content = bytes(data)
            if is_heavy(content):
                command = await self.services.storage.lanes.texts.run(decode_heavy, content, Command)
            else:
                command = decode(content, Command)
            named = UNSET if command.id is None else command.id
            answer = Accepted(execution=self._obey(command), id=named)
        except CellgateError as error:
            self.note_refusal(error)
            answer = stream_problem_of(error, command=named)
        await self._answer(answer)

    def _obey(self, command: Command) -> str | UnsetType:
        """Carry out a command; return the id of its execution, if any."""
        given = [command.execute is not None, command.interrupt, command.input is not None]
        if given.count(True) != 1:
            raise InvalidInput("A command is one of execute, interrupt and input")
        self.login.check(frozenset({Permission.RUN}))
        session = self.services.sessions.manager.live(self.owner, self._key)
        if command.input is not None:
            session.runs.answer(command.input.execution, check_text(command.input.value, "value", MAX_INPUT))
            return command.input.execution
        if command.execute is None:
            session.interrupt(self.principal.name)
            return UNSET
        request = checked_cell(self, command.execute, interactive=True)
        request = self.services.sessions.terms.in_language(
            session.row.kernel, request, command.execute.language
        )
        run = session.submit(request)
        if command.execute.on_disconnect == "interrupt":
            self._bound_to_me = [*self._bound_to_me[-MOST_HELD:], run.id]
        return run.id

    def on_close(self) -> None:
        """Stop the sender, and the executions that should end with the socket."""
        self.disconnected = True
        if self._sender is not None:
            self._sender.cancel()
        # A client may leave before its handshake is done, or even checked: then there is no principal yet.
        if not self._bound_to_me:
            return
        session = self.services.sessions.manager.get(self.owner, self._key)
        if session is not None:
            for execution in self._bound_to_me:
                session.stop(execution, "client_disconnected")

    def on_connection_close(self) -> None:
        self.disconnected = True
        self.leave_relay()
        WatchedWebSocketHandler.on_connection_close(self)
