"""Events to a client as they happen: NDJSON or Server-Sent Events, with keep-alives while it is quiet.

The Accept header chooses the format (``base``). A stream reads from a cursor over the event log, so a slow
client costs the gateway no memory; a client that leaves ends it. Source of the SSE format: WHATWG HTML,
"Server-sent events".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import Finish

from cellgate.errors import quota_of, stream_problem_of
from cellgate.http.base import BaseHandler
from cellgate.http.message import encode
from cellgate.http.operation import Format
from cellgate.http.services import Services
from cellgate.record.rows import EventRow
from cellgate.wire.answers import KeepAlive
from cellgate.wire.queries import EventsQuery
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.tasks import Supervisor

Batches = AsyncGenerator[list[EventRow], None]

KEEP_ALIVE = {Format.NDJSON: b'{"type":"keepalive"}\n', Format.SSE: b": keep-alive\n\n"}
_WRITERS: dict[Format, Callable[[EventRow], tuple[bytes, ...]]] = {
    Format.NDJSON: lambda row: (row.body, b"\n"),
    Format.SSE: lambda row: (b"id: %d\nevent: %s\ndata: " % (row.seq, row.type.encode()), row.body, b"\n\n"),
}


def _seen(flushed: asyncio.Future[None]) -> None:
    """Retrieve a failed write's error, so that it is not reported as unretrieved."""
    if not flushed.cancelled():
        flushed.exception()


async def _next(batches: Batches) -> list[EventRow] | None:
    return await anext(batches, None)


def event_position(handler: BaseHandler) -> int:
    """Return the seq after which to send events: `after` or Last-Event-ID, or 0. Raises InvalidInput.

    The later of both: when a browser's EventSource reconnects, it repeats its first address.
    """
    after = handler.query(EventsQuery).after or 0
    last = handler.request.headers.get("Last-Event-ID")
    if last is None:
        return after
    if not (last.isascii() and last.isdecimal() and len(last) < 17):
        raise InvalidInput("Last-Event-ID must be the seq of an event")
    return max(after, int(last))


class StreamingHandler(BaseHandler):
    """A handler that can answer with a stream of events."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Sends keep-alives once a position in line was sent.
        self._heart: asyncio.Task[None] | None = None

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if not self._gone.done():
            self._gone.set_result(None)

    def set_head(self, form: Format) -> None:
        """Set the header fields of an answer that is a stream."""
        self.set_header("Content-Type", f"{form}; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")

    @asynccontextmanager
    async def waiting(self, form: Format) -> AsyncIterator[Callable[[int], None] | None]:
        """Within it, a session may be opened; a streaming client learns its position in line.

        It yields a function that sends the position; the first call begins the answer. From then on there are
        keep-alives, and a refusal is the answer's last line. In all other cases nothing has been answered.
        """
        try:
            yield None if form is Format.JSON else partial(self._tell_position, form)
        except CellgateError as error:
            if not self._headers_written:
                raise
            self.refusal, self.quota = error.reason, quota_of(error)
            self.note_refusal(error)
            self.write_problem(error, form)
            raise Finish from error
        finally:
            if self._heart is not None:
                self._heart.cancel()
                await asyncio.wait([self._heart])

    def answer_last(self, model: Any, form: Format, status: int) -> None:
        """Answer with JSON, as the last line if the answer has begun or consists of lines."""
        if form is Format.JSON:
            self.answer(model, status)
            return
        if not self._headers_written:
            self.set_status(status)
            self.set_head(form)
        self.finish(encode(model) + b"\n")

    def _tell_position(self, form: Format, position: int) -> None:
        if self._heart is None:
            self.set_head(form)
            self._heart = Supervisor().start(self._beat(form), "keep-alives in line")
        body = encode(KeepAlive(waiting_for="kernel", position=position))
        self._write_aside(body + b"\n" if form is Format.NDJSON else b"event: keepalive\ndata: %s\n\n" % body)

    async def _beat(self, form: Format) -> None:
        while not self.disconnected:
            await asyncio.sleep(self.services.front.keep_alive)
            self._write_aside(KEEP_ALIVE[form])

    def _write_aside(self, line: bytes) -> None:
        """Write a line without waiting: there are few while a claim waits."""
        if not self.disconnected:
            self.write(line)
            self.flush().add_done_callback(_seen)

    async def stream(self, batches: Batches, form: Format) -> None:
        """Write all events of `batches` until they end or the client has gone."""
        self.set_head(form)
        async with aclosing(batches):
            if self.request.method == "HEAD":
                await self.send_head_alone()
                return
            try:
                await self._write_batches(batches, form)
            except StreamClosedError:
                self.on_connection_close()
            except CellgateError as error:
                # The status line has long been sent: report the failure as the stream's last line.
                self.write_problem(error, form)

    async def _write_batches(self, batches: Batches, form: Format) -> None:
        tasks = Supervisor()
        await self.flush()
        while not self.disconnected:
            upcoming = tasks.share(_next(batches), "next events")
            try:
                rows = await self._await_batch(upcoming, form)
            finally:
                if not upcoming.done():
                    upcoming.cancel()
                    await asyncio.wait([upcoming])
            if rows is None:
                return
            await self.write_parts(await self.encoded(rows, form))

    async def encoded(self, rows: list[EventRow], form: Format) -> list[bytes]:
        """Return the bytes to write for these events."""
        write = _WRITERS[form]
        return [part for row in rows for part in write(row)]

    def sign_of_life(self, form: Format) -> bytes:
        """Return the bytes to write after a quiet while."""
        return KEEP_ALIVE[form]

    async def _await_batch(
        self, upcoming: asyncio.Future[list[EventRow] | None], form: Format
    ) -> list[EventRow] | None:
        """Return the next batch; None at the end of the events or when the client has gone."""
        while not self.disconnected:
            waiting: set[asyncio.Future[Any]] = {upcoming, self._gone}
            done, _ = await asyncio.wait(
                waiting, timeout=self.services.front.keep_alive, return_when=asyncio.FIRST_COMPLETED
            )
            if upcoming in done:
                return upcoming.result()
            if not done:
                self.write(self.sign_of_life(form))
                await self.flush()
        return None

    def write_problem(self, error: CellgateError, form: Format) -> None:
        """Write a failure as the last line of an answer that has begun."""
        body = encode(stream_problem_of(error))
        self.write(body + b"\n" if form is Format.NDJSON else b"event: problem\ndata: %s\n\n" % body)
