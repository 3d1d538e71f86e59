"""A session's events in batches, from any store: it reads one page of them after the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from cellgate.errors import RecordGone
from cellgate.record.rows import EventRow


class EventPages(Protocol):
    """A store's pages of events: the part of ``interface`` that batches are read by."""

    async def events(self, session_id: int, *, after: int = 0, until: int | None = None) -> list[EventRow]:
        """Return the first events with `after` < seq <= `until`, in order."""

    async def last_event(self, session_id: int) -> object | None:
        """Return the session's last event; None if there is no such session."""


async def batches_of(
    pages: EventPages, session_id: int, *, after: int, until: int | None
) -> AsyncGenerator[list[EventRow], None]:
    """Yield the events with `after` < seq <= `until`, in batches of a page's size.

    Raises RecordGone if the session is purged meanwhile, before `until`, if given.
    """
    begun = until is not None
    while until is None or after < until:
        if not (batch := await pages.events(session_id, after=after, until=until)):
            break
        begun = True
        yield batch
        after = batch[-1].seq
    else:
        return
    if begun and await pages.last_event(session_id) is None:
        raise RecordGone("The record of this session was purged while it was read")
