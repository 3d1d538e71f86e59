"""Finds executions by what their code and their outputs say. Reads the record alone.

``reader`` asks for pages. One request reads a limited part of the record, in batches, and looks at them in a
thread; the next page goes on behind it, also in the middle of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import Any, Self

import msgspec

from cellgate.record.rows import EventRow, ExecutionRow
from cellgate.record.store.interface import Reads
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.codec.decoding import json_decoder

MOST_READ = 16 * 1024 * 1024
"""Bytes of events after which a request looks at no further executions."""
AT_ONCE = 100
SESSIONS_A_TURN = 100
READ_A_TURN = 1024 * 1024
"""Sessions, and bytes of events, after which a search among sessions lets others have their turn."""
_SEARCHED = frozenset({"queued", "stream", "display_data", "execute_result", "update_display_data", "error"})


class _Shown(msgspec.Struct, frozen=True):
    """The kinds of an output that are texts; pictures and all others are skipped."""

    plain: Any = msgspec.field(name="text/plain", default=None)
    markdown: Any = msgspec.field(name="text/markdown", default=None)
    latex: Any = msgspec.field(name="text/latex", default=None)
    json: Any = msgspec.field(name="application/json", default=None)


class _Said(msgspec.Struct, frozen=True):
    """The texts of an event; all others are skipped."""

    code: str = ""
    text: str = ""
    ename: str = ""
    evalue: str = ""
    data: _Shown = _Shown()


_decode = json_decoder(_Said).decode


class CellMatcher:
    """Looks for a text, in capital letters or not, in events that come in order."""

    def __init__(self, text: str) -> None:
        self._sought = text.casefold()
        self._tails: dict[str, str] = {}
        self.found: set[str] = set()

    def look(self, events: Sequence[EventRow]) -> None:
        """Add the executions of events that have the text to `found`."""
        for event in events:
            execution = event.execution
            if execution is None or event.type not in _SEARCHED or execution in self.found:
                continue
            if any(self._sought in text.casefold() for text in self._texts(execution, event)):
                self.found.add(execution)

    def _texts(self, execution: str, event: EventRow) -> list[str]:
        said = _decode(event.body)
        if event.type == "stream":
            # A text that is printed in pieces is one.
            text = self._tails.get(execution, "") + said.text
            self._tails[execution] = text[-len(self._sought) :]
            return [text]
        shown = [value for value in msgspec.structs.astuple(said.data) if isinstance(value, str)]
        return [said.code, f"{said.ename}: {said.evalue}", *shown]


class CellSearch:
    """A search of one request for a text in the cells of sessions. `texts`: the threads that look.

    `is_gone`: whether nobody waits for the answer any more.
    """

    def __init__(self, reads: Reads, texts: Lane, text: str, is_gone: Callable[[], bool]) -> None:
        self._reads = reads
        self._texts = texts
        self._text = text
        self._is_gone = is_gone
        self.read = 0
        """Bytes of events that the request has read."""

    @property
    def is_over(self) -> bool:
        """Whether the request has read as much of the record as one may, or its client has gone."""
        return self.read > MOST_READ or self._is_gone()

    async def page(self, session_id: int, *, limit: int, after: int) -> tuple[list[ExecutionRow], int | None]:
        """Return a session's executions after number `after` that have the text, and where to go on.

        That is the number of the last execution that was looked at; None at the end. A page may have fewer
        than `limit`, or none, and still not be the last.
        """
        found: list[ExecutionRow] = []
        while True:
            rows = await self._reads.executions(session_id, limit=AT_ONCE, after=after)
            if not rows:
                return found, None
            matcher = CellMatcher(self._text)
            looked_at = await self._look(session_id, rows, matcher)
            for row in rows[:looked_at]:
                if row.id in matcher.found:
                    found.append(row)
                    if len(found) == limit:
                        return found, row.number
            after = rows[looked_at - 1].number
            if self.is_over:
                return found, after

    async def _look(self, session_id: int, rows: Sequence[ExecutionRow], matcher: CellMatcher) -> int:
        """Look at the events of executions; return at how many of them, at least one, from the first on."""
        looked_at = 0
        events = self._reads.event_batches(session_id, after=rows[0].first_seq - 1, until=_last(rows))
        async with aclosing(events) as batches:
            async for batch in batches:
                await self._texts.run(matcher.look, batch)
                self.read += sum(len(event.body) for event in batch)
                looked_at = _ended_by(rows, batch[-1].seq)
                if self.is_over and looked_at:
                    return looked_at
        return len(rows)


class SessionSearch:
    """A search of one request among many sessions. `turn`: what is held while it reads.

    It gives its turn to others after each part of the work: after so many sessions, or so many bytes.
    """

    def __init__(self, cells: CellSearch, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._cells = cells
        self._turn = turn
        self._held = AsyncExitStack()
        self._until = 0
        self._left = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._held.aclose()

    @property
    def is_over(self) -> bool:
        """Whether no further session is looked at in this request."""
        return self._cells.is_over

    async def look(self, session_id: int, after: int) -> tuple[bool, int | None]:
        """Return whether an execution after number `after` has the text, and if none was found, where to go
        on: the number of the last execution that was looked at; None at the session's end. Raises QueueFull.
        """
        if not self._left or self._cells.read >= self._until:
            await self._held.aclose()
            await self._held.enter_async_context(self._turn())
            self._left = SESSIONS_A_TURN
            self._until = self._cells.read + READ_A_TURN
        self._left -= 1
        if self.is_over:
            return False, after
        found, behind = await self._cells.page(session_id, limit=1, after=after)
        return bool(found), None if found else behind


def _last(rows: Sequence[ExecutionRow]) -> int | None:
    """Return the `seq` of the last event of executions; None while one of them goes on."""
    ends = [row.last_seq for row in rows]
    return None if None in ends else max(end for end in ends if end is not None)


def _ended_by(rows: Sequence[ExecutionRow], seq: int) -> int:
    """Return how many of the first executions have ended by an event."""
    for count, row in enumerate(rows):
        if row.last_seq is None or row.last_seq > seq:
            return count
    return len(rows)
