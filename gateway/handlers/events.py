"""GET /v1/sessions/{s}/events: what happened, from the record, and then what happens."""

from __future__ import annotations

from gateway.handlers.streaming import Format, StreamingHandler
from kernels.errors import InvalidInput


class EventsHandler(StreamingHandler):
    """The events of a session behind `after` (or Last-Event-ID)."""

    async def get(self, key: str) -> None:
        """A stream that stays open; as plain JSON a page of what is there now."""
        self.check()
        form = self.accepted()
        after = self._after()
        log = await self.services.archive.log(self.principal.name, key)
        if form is not Format.JSON:
            await self.stream(log.follow(after), form)
            return
        rows = await log.read(after)
        events = b",".join(row.body for row in rows)
        following = str(rows[-1].seq) if rows and rows[-1].seq < log.last_seq else "null"
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(b'{"events":[%s],"next":%s}' % (events, following.encode()))

    def _after(self) -> int:
        last = self.request.headers.get("Last-Event-ID")
        if last is not None and self.get_query_argument("after", None) is None:
            if not (last.isascii() and last.isdecimal() and len(last) < 17):
                raise InvalidInput("Last-Event-ID must be the seq of an event")
            return int(last)
        return self.number("after", 0) or 0
