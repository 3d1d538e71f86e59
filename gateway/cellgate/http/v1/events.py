"""GET /v1/sessions/{s}/events: past events from the record, followed by new ones as they happen."""

from __future__ import annotations

from cellgate.errors import NotAcceptable, NotRecorded
from cellgate.http.operation import JSON, NDJSON, READS, SSE, Answer, Format, operation
from cellgate.http.streaming import StreamingHandler, event_position
from cellgate.identity.principal import Permission
from cellgate.wire.answers import EventPage
from cellgate.wire.events import Event
from cellgate.wire.queries import EventsQuery


class EventsHandler(StreamingHandler):
    """The events of a session after `after` (or Last-Event-ID)."""

    @operation(
        "follow_events",
        "Follow a session's events",
        Answer(
            200,
            "As NDJSON or SSE, a stream that stays open; as JSON, a page of the events so far.",
            {JSON: EventPage, NDJSON: Event, SSE: Event},
        ),
        query=EventsQuery,
        headers={
            "Last-Event-ID": "The `seq` after which events are wanted, if it is later than that of the query."
        },
        errors=(*READS, NotAcceptable, NotRecorded),
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        form = self.accepted()
        after = event_position(self)
        log = await self.services.sessions.archive.log(self.owner, key)
        if form is not Format.JSON:
            log.check_reaches(after)
            await self.stream(log.follow(after), form)
            return
        rows = await log.read(after)
        following = str(rows[-1].seq) if rows and rows[-1].seq < log.last_seq else "null"
        parts = [part for row in rows for part in (b",", row.body)]
        parts[:1] = [b'{"events":[']
        parts.append(b'],"next":%s}' % following.encode())
        await self.answer_parts(parts)
