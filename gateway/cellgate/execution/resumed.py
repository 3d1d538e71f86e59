"""A cell that a former gateway sent to a kernel which is still alive: the state from which its run continues.

The cell's events are in the record; its later messages are in the kernel's spool and in a backlog. ``run``
reads both and sends nothing; ``sessions.adoption`` finds such cells.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
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

_NO_OUTPUT = frozenset({"queued", "file", "input_reply"})
_OF_THE_EVENT = frozenset({"seq", "session", "execution", "type", "at", "widget"})
"""Fields that are not in the kernel's message. The widget of an output follows from earlier messages."""
_NO_EVENT = frozenset({"status", "execute_reply"})


class KernelBacklog:
    """Collects an adopted kernel's messages until the runs of its cells have read all of them.

    When too much has accumulated, iopub is no longer read, and the rest waits in the kernel.
    """

    def __init__(self) -> None:
        self._connection: KernelConnection | None = None
        self._messages: list[Message] = []
        # The cells whose messages are kept; None as long as nobody knows.
        self._cells: set[str] | None = None
        self._size = 0
        self.is_masked = False
        """Whether values of secrets are masked in the backlog."""
        self._stop: Callable[[], None] = lambda: None

    def attend(self, connection: KernelConnection) -> None:
        """Start listening."""
        self._connection = connection
        self._stop = connection.listen(self._receive, room=lambda _: BACKLOG_BYTES)

    def expect(self, cells: Iterable[str]) -> None:
        """Collect only the messages of these cells, named by their requests' ids; stop if there are none."""
        self._cells = set(cells)
        self._messages = [each for each in self._messages if each.parent.msg_id in self._cells]
        if not self._cells:
            self._end()

    def _receive(self, message: Message) -> None:
        if self._cells is not None and message.parent.msg_id not in self._cells:
            return
        self._messages.append(message)
        self._size += len(message.content_frame) + sum(map(len, message.buffers))
        if self._size > BACKLOG_BYTES and self._connection is not None:
            self._connection.pause()

    def mask(self, masker: MessageMasker) -> None:
        """Mask values of secrets in the collected messages; later messages are masked already."""
        self.is_masked = True
        collected, self._messages = self._messages, []
        for message in collected:
            self._messages += masker.before(message)
            if (shown := masker.mask(message)) is not None:
                self._messages.append(shown)

    def collected(self, cell: str) -> list[Message]:
        """Return a cell's messages so far, once.

        They still count towards the limit, so that a flood ends too.
        """
        messages = [each for each in self._messages if each.parent.msg_id == cell]
        self._messages = [each for each in self._messages if each.parent.msg_id != cell]
        return messages

    def end(self, cell: str) -> None:
        """Collect nothing more of a cell; after the last one let the kernel continue. May be repeated."""
        if self._cells is not None:
            self._cells.discard(cell)
            self._messages = [each for each in self._messages if each.parent.msg_id != cell]
            if not self._cells:
                self._end()

    def _end(self) -> None:
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
        """The number of the last matched event."""
        self._events = [event for event in events if event["type"] not in _NO_OUTPUT]
        self._open: dict[bytes, deque[int]] = defaultdict(deque)
        for number, event in enumerate(self._events):
            content = {name: value for name, value in event.items() if name not in _OF_THE_EVENT}
            self._open[_key(event["type"], content)].append(number)

    def gap(self, first: int, end: int) -> bool:
        """Skip lost messages, numbered `first` to `end`; return whether some of them were not recorded."""
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

    `request`: the cell's, as far as it is recorded. `timeout`: of its run, in seconds. `ran`: the seconds
    that it has run by now. `waited`: the seconds from its request to its start. `has_gap`: whether output was
    lost before it could be recorded.
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

        `missed`: messages from the kernel's spool. `backlog`: messages that arrive now. `places`: limits how
        many messages are processed at once.
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
            # The former gateway set the values; restoring the earlier ones takes the names alone.
            env=tuple((name, "") for name in queued.get("env", ())),
            allow_stdin=True,
            store_history=queued.get("store_history", True),
            cell_id=queued.get("cell_id"),
        )
        self.has_gap = False
        self._missed = missed
        self._backlog = backlog
        self._places = places
        # The ids of messages from the spool, once these are processed.
        self._seen: frozenset[str] = frozenset()

    @property
    def idempotency(self) -> tuple[str, str] | None:
        """The key and the hash of the cell's request, if it has a key."""
        key, request_hash = self.row.idempotency_key, self.row.request_hash
        return None if key is None or request_hash is None else (key, request_hash)

    def was_seen(self, message: Message) -> bool:
        """Return whether a message was already in the spool.

        Text that was held back comes under a known id; the masker leaves out repeats.
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
        """Yield the cell's messages from the backlog. No turn comes between the last check and the end."""
        while messages := self._backlog.collected(self.row.msg_id):
            for message in messages:
                await self._turn()
                yield message

    def end_backlog(self) -> None:
        """Stop collecting the cell's messages, and let the kernel continue after the last cell."""
        self._backlog.end(self.row.msg_id)

    async def _turn(self) -> None:
        if (place := self._places.take()) is not None:
            await place


def _seconds(earlier: str, later: str) -> float:
    between = datetime.fromisoformat(later) - datetime.fromisoformat(earlier)
    return max(0.0, between.total_seconds())
