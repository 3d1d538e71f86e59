"""A cell that a former gateway sent to a kernel which is still alive: what its run goes on from.

Its events are in the record, and the messages since are in the kernel's spool and in a backlog. ``run`` takes
both and sends nothing; ``sessions.adoption`` finds such cells.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from cellgate.execution.request import ExecuteRequest
from cellgate.record.events import now
from cellgate.record.rows import ExecutionRow
from cellgate_kernels.base.places import Places
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.spool import Spooled
from cellgate_kernels.protocol.masking import MessageMasker
from cellgate_kernels.protocol.messages import Message

BACKLOG_BYTES = 8 * MIB

_NO_OUTPUT = frozenset({"queued", "file"})
_OF_THE_EVENT = frozenset({"seq", "session", "execution", "type", "at", "widget"})
"""Not of the kernel's message. Which widget shows an output follows from the messages before it."""
_NO_EVENT = frozenset({"status", "execute_reply"})


class KernelBacklog:
    """Collects an adopted kernel's messages until its cell's run has taken all of them.

    When too much has accumulated, iopub is not read any further, and the rest waits in the kernel.
    """

    def __init__(self) -> None:
        self._connection: KernelConnection | None = None
        self._messages: list[Message] = []
        self._size = 0
        self.is_masked = False
        """Whether values of secrets are replaced in it."""
        self._stop: Callable[[], None] = lambda: None

    def attend(self, connection: KernelConnection) -> None:
        """Start listening."""
        self._connection = connection
        self._stop = connection.listen(self._receive, room=lambda _: BACKLOG_BYTES)

    def _receive(self, message: Message) -> None:
        self._messages.append(message)
        self._size += len(message.content_frame) + sum(map(len, message.buffers))
        if self._size > BACKLOG_BYTES and self._connection is not None:
            self._connection.pause()

    def mask(self, masker: MessageMasker) -> None:
        """Replace values of secrets in what was collected; what comes from now on is masked already."""
        self.is_masked = True
        collected, self._messages = self._messages, []
        for message in collected:
            self._messages += masker.before(message)
            if (shown := masker.mask(message)) is not None:
                self._messages.append(shown)

    def collected(self) -> list[Message]:
        """Return the messages so far, once. They still count until the end, to end even in a flood."""
        messages = self._messages
        self._messages = []
        return messages

    def end(self) -> None:
        """Stop listening, and let the kernel continue; does nothing the second time."""
        self._stop()
        self._messages = []
        if self._connection is not None:
            self._connection.resume()
            self._connection = None


class RecordedOutputs:
    """The outputs of a cell that are already recorded, to be matched with messages in the kernel's spool.

    The n-th recorded event corresponds to the kernel's n-th output message, give or take an input prompt,
    which uses another socket. So messages are matched by content, and numbers only show which recorded events
    are no longer in the spool.
    """

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.last_type = ""
        """Of the event that was met last."""
        self._events = [event for event in events if event["type"] not in _NO_OUTPUT]
        self._open: dict[bytes, deque[int]] = defaultdict(deque)
        for number, event in enumerate(self._events):
            content = {name: value for name, value in event.items() if name not in _OF_THE_EVENT}
            self._open[_key(event["type"], content)].append(number)

    def gap(self, first: int, end: int) -> bool:
        """Skip lost messages, numbered `first` to `end`; returns whether some of them were not recorded."""
        for numbers in self._open.values():
            while numbers and first <= numbers[0] < end:
                numbers.popleft()
        return end > len(self._events)

    def meet(self, event_type: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the recorded event that matches, if any; each event matches only once."""
        self.last_type = event_type
        content = {name: value for name, value in fields.items() if name != "widget"}
        numbers = self._open.get(_key(event_type, content))
        return self._events[numbers.popleft()] if numbers else None


def _key(event_type: str, fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode([event_type, fields], order="deterministic")


class ResumedCell:
    """A cell that a former gateway sent: its row, its recorded events, and its messages since.

    `request`: the cell's, as far as the record has it. `timeout`: of its run, in seconds. `ran`: the seconds
    for which it has run by now. `waited`: those between its request and its start. `has_gap`: whether output
    was lost before it could be recorded.
    """

    def __init__(
        self,
        row: ExecutionRow,
        events: Sequence[Mapping[str, Any]],
        missed: Sequence[Spooled],
        backlog: KernelBacklog,
        places: Places,
        cell_timeout: float,
    ) -> None:
        """Read the recorded events, of which the first is `queued`.

        `missed`: messages from the kernel's spool. `backlog`: those that arrive now. `places`: those in which
        messages are processed.
        """
        self.row = row
        self.events = events
        self.recorded = RecordedOutputs(events)
        queued = events[0]
        started_at = next((event["at"] for event in events if event["type"] == "started"), now())
        self.ran = _seconds(started_at, now())
        self.waited = _seconds(row.created_at, started_at)
        self.timeout: float | None = queued.get("timeout", cell_timeout)
        self.request = ExecuteRequest(
            code=queued["code"],
            timeout=self.timeout,
            silent=queued.get("silent", False),
            # The former gateway set the values; restoring the ones before takes the names alone.
            env=tuple((name, "") for name in queued.get("env", ())),
            allow_stdin=True,
            store_history=queued.get("store_history", True),
            cell_id=queued.get("cell_id"),
        )
        self.has_gap = False
        self._missed = missed
        self._backlog = backlog
        self._places = places
        # The ids of messages that came from the spool, once these are processed.
        self._seen: frozenset[str] = frozenset()

    @property
    def idempotency(self) -> tuple[str, str] | None:
        """The key and the hash of the cell's request, if it has a key."""
        key, request_hash = self.row.idempotency_key, self.row.request_hash
        return None if key is None or request_hash is None else (key, request_hash)

    def was_seen(self, message: Message) -> bool:
        """Return whether a message came from the spool already.

        Text that was held back comes under an id that is known; the masker leaves out what comes twice.
        """
        is_text = self._backlog.is_masked and message.msg_type == "stream"
        return not is_text and message.header.msg_id in self._seen

    async def missed(self) -> AsyncGenerator[Message, None]:
        """Yield the messages of the spool, and note gaps between them."""
        expected = 0
        for spooled in self._missed:
            await self._turn()
            if spooled.before > expected and self.recorded.gap(expected, spooled.before):
                self.has_gap = True
            expected = max(expected, spooled.before + (spooled.message.msg_type not in _NO_EVENT))
            yield spooled.message
        self._seen = frozenset(spooled.message.header.msg_id for spooled in self._missed)
        self._missed = ()

    async def collected(self) -> AsyncGenerator[Message, None]:
        """Yield the cell's messages from the backlog. No turn lies between the last look and the end."""
        while messages := self._backlog.collected():
            for message in messages:
                if message.parent.msg_id == self.row.msg_id:
                    await self._turn()
                    yield message

    def end_backlog(self) -> None:
        """Stop collecting messages, and let the kernel continue."""
        self._backlog.end()

    async def _turn(self) -> None:
        if (place := self._places.take()) is not None:
            await place


def _seconds(earlier: str, later: str) -> float:
    between = datetime.fromisoformat(later) - datetime.fromisoformat(earlier)
    return max(0.0, between.total_seconds())
