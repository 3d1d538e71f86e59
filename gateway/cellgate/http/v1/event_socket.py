"""WS /v1/sessions/{s}/ws: a session's events out, commands in, over one WebSocket.

Each event is one text frame with the event's own bytes, read by a cursor as every other stream is, so a
slow client costs nothing and one that comes back with `after` goes on where it was. Frames without a
`seq` are answers to commands. It does frames and close codes; commands do what their HTTP counterparts do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from typing import Any

import msgspec
from tornado.iostream import StreamClosedError

from cellgate.channels.frames import frame
from cellgate.execution.request import check_execute
from cellgate.http.base import BaseHandler, encode, problem
from cellgate.http.listener.frames import WatchedWebSocketHandler
from cellgate.http.listener.streams import ClientStream
from cellgate.http.v1.executions import check_packages, in_language
from cellgate.record.events import EventLog
from cellgate.wire.errors import TooLarge, status_of
from cellgate.wire.models import ExecuteBody, InputBody, check_text, decode, decode_heavy
from cellgate_kernels.errors import CellgateError, GatewayFault, InvalidInput
from cellgate_kernels.structure import is_heavy
from cellgate_kernels.tasks import Supervisor

logger = logging.getLogger(__name__)

NORMAL, INTERNAL_ERROR = 1000, 1011
MAX_INPUT = 1024 * 1024
MOST_HELD = 1024


class SocketInput(InputBody, forbid_unknown_fields=True, frozen=True):
    """The answer to an execution's input_request."""

    execution: str


class Command(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One frame of a client: exactly one of the three; `id` comes back in the answer."""

    execute: ExecuteBody | None = None
    interrupt: bool = False
    input: SocketInput | None = None
    id: str | int | None = None


class EventSocketHandler(BaseHandler, WatchedWebSocketHandler):
    """One WebSocket."""

    _events: EventLog
    _sender: asyncio.Task[None] | None = None
    _bound_to_me: Sequence[str] = ()

    def check_origin(self, origin: str) -> bool:
        """Origin was checked with all else, before the upgrade."""
        return True

    def get_compression_options(self) -> None:
        """No compression, as on the Jupyter WebSocket."""
        return

    async def get(self, key: str) -> None:
        """The upgrade; a refusal is a plain answer before it."""
        self.check()
        self._key = key
        self._after = self.event_position()
        self._events = await self.services.archive.log(self.principal.name, key)
        await WatchedWebSocketHandler.get(self)

    def open(self, *_: str, **__: str) -> None:
        """Begin to send events; `on_close` ends it."""
        self.set_nodelay(True)
        self._sender = Supervisor().start(
            self._send_events(),
            f"events to {self.request.remote_ip}",
            lambda _: self.close(INTERNAL_ERROR, GatewayFault.reason),
            session=self._key,
        )

    async def _send_events(self) -> None:
        try:
            async with aclosing(self._events.follow(self._after)) as batches:
                async for rows in batches:
                    # What was read of the record stays as long as its frames, which may be a copy of it.
                    await self._send(
                        b"".join([frame(row.body, is_binary=False) for row in rows]),
                        sum(len(row.body) for row in rows),
                    )
            self.close(NORMAL, "The session has ended")
        except StreamClosedError:
            logger.debug("A client of events has gone")
        except CellgateError as error:
            await self._answer(self._problem(error))
            self.close(INTERNAL_ERROR, error.reason)

    async def _send(self, frames: bytes, kept: int = 0) -> None:
        """Write and wait until it is taken; `kept` bytes stay until then. Raises StreamClosedError."""
        stream = self.ws_connection.stream if self.ws_connection is not None else None
        if stream is None:
            raise StreamClosedError
        with stream.owing(kept) if isinstance(stream, ClientStream) else nullcontext():
            await stream.write(frames)

    async def _answer(self, content: dict[str, Any]) -> None:
        try:
            await self._send(frame(encode(content), is_binary=False))
        except StreamClosedError:
            logger.debug("A client has gone before its answer")

    def _problem(self, error: CellgateError) -> dict[str, Any]:
        return {**problem(error, status_of(error)), "type": "problem"}

    async def on_message(self, message: str | bytes) -> None:
        """Obey a command and answer it; tornado reads the next one when this is done."""
        named: dict[str, Any] = {}
        try:
            content = message.encode() if isinstance(message, str) else message
            if len(content) > self.max_body:
                raise TooLarge(f"The command is larger than the {self.max_body} bytes that are taken here")
            if is_heavy(content):
                command = await self.services.lanes.texts.run(decode_heavy, content, Command)
            else:
                command = decode(content, Command)
            named = {} if command.id is None else {"id": command.id}
            answer = {"type": "accepted", **self._obey(command)}
        except CellgateError as error:
            answer = self._problem(error)
        await self._answer(answer | named)

    def _obey(self, command: Command) -> dict[str, Any]:
        given = [command.execute is not None, command.interrupt, command.input is not None]
        if sum(given) != 1:
            raise InvalidInput("A command is one of execute, interrupt and input")
        session = self.services.manager.live(self.principal.name, self._key)
        if command.input is not None:
            session.answer(command.input.execution, check_text(command.input.value, "value", MAX_INPUT))
            return {"execution": command.input.execution}
        if command.execute is None:
            session.interrupt()
            return {}
        request = check_execute(command.execute, self.services.manager.ceilings, interactive=True)
        check_packages(self.services, request)
        request = in_language(self.services, session, request, command.execute.language)
        run = session.submit(request)
        if command.execute.on_disconnect == "interrupt":
            self._bound_to_me = [*self._bound_to_me[-MOST_HELD:], run.id]
        return {"execution": run.id}

    def on_close(self) -> None:
        """The socket is gone: end the sender, and the executions that were to end with it."""
        self.disconnected = True
        if self._sender is not None:
            self._sender.cancel()
        # A client may also leave before its handshake is done, or checked: then nothing is bound to it.
        if not self._bound_to_me:
            return
        session = self.services.manager.get(self.principal.name, self._key)
        if session is not None:
            for execution in self._bound_to_me:
                session.stop(execution, "client_disconnected")

    def on_connection_close(self) -> None:
        """Tornado's hook, of both bases."""
        self.disconnected = True
        WatchedWebSocketHandler.on_connection_close(self)
