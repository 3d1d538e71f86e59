"""GET /v1/sessions/{s}/events: what happened, from the record, and then what happens."""

from __future__ import annotations

from cellgate.http.streaming import Format, StreamingHandler


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
        following = str(rows[-1].seq) if rows and rows[-1].seq < log.last_seq else "null"
        parts = [part for row in rows for part in (b",", row.body)]
        parts[:1] = [b'{"events":[']
        parts.append(b'],"next":%s}' % following.encode())
        await self.answer_parts(parts)
