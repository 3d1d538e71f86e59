"""GET /v1/sessions/{s}/events: what happened, from the record, and then what happens."""

from __future__ import annotations

from gateway.handlers.streaming import Format, StreamingHandler


class EventsHandler(StreamingHandler):
    """The events of a session behind `after` (or Last-Event-ID)."""

    async def get(self, key: str) -> None:
        """A stream that stays open; as plain JSON a page of what is there now."""
        self.check()
        form = self.accepted()
        after = self.event_position()
        log = await self.services.archive.log(self.principal.name, key)
        if form is not Format.JSON:
            await self.stream(log.follow(after), form)
            return
        rows = await log.read(after)
        events = b",".join(row.body for row in rows)
        following = str(rows[-1].seq) if rows and rows[-1].seq < log.last_seq else "null"
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(b'{"events":[%s],"next":%s}' % (events, following.encode()))
