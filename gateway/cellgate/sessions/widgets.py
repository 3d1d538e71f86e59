"""Records widget messages outside of cells: a user moves a slider, and the kernel sends the new value.

Such a comm message answers a client's comm message, not an execute_request, so no cell's run receives it. It
becomes an event without an execution. ``cellgate_kernels.protocol.execution`` handles the comm messages of
cells, and ``record.widgets`` puts both into a notebook. A client's own message is not recorded: what counts
is what the kernel made of it, which ipywidgets 8 sends back. This module also limits how many widgets a
session records, in cells and outside of them.
"""

from __future__ import annotations

import logging

from cellgate.errors import StorageError
from cellgate.record.events import EventLog
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.protocol.contents import comm_event
from cellgate_kernels.protocol.messages import Message, TooComplex, size_of
from cellgate_kernels.protocol.outputs import LEAST_COST

logger = logging.getLogger(__name__)

MOST_BYTES = 16 * MIB
"""Most bytes of one session's widget messages outside of cells, where no cell's cap stops endless updates."""
MOST_MODELS = 50_000
"""Most widgets of one session that are recorded."""


class WidgetMessages:
    """Records messages of `COMM_EVENTS` outside of cells in `log`; gets each before its cell's run does."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._left = MOST_BYTES
        self._models = 0
        self._unrecorded = False

    def __call__(self, message: Message) -> None:
        """Process a comm message from the kernel."""
        if message.header.msg_type == "comm_open":
            self._models += 1
            if self._models == MOST_MODELS + 1:
                logger.warning("Session %s: no more than %d widgets are recorded", self._log.key, MOST_MODELS)
        # A widget above the limit has no event, neither here nor in its cell.
        if message.parent.msg_type != "execute_request":
            self._record(message)

    @property
    def full(self) -> bool:
        """Whether the last widget opened was above the limit."""
        return self._models > MOST_MODELS

    def room(self, message: Message) -> int:
        """Return the number of bytes of the message's content that can still be recorded here."""
        return 0 if message.parent.msg_type == "execute_request" else self._left

    def _record(self, message: Message) -> None:
        if self._left <= 0 or (self.full and message.header.msg_type == "comm_open"):
            return
        size = max(size_of(message), LEAST_COST)
        try:
            event = comm_event(message) if size <= self._left else None
        except TooComplex:
            return
        if event is None and size <= self._left:
            return
        self._left -= size
        if event is None:
            logger.warning("Session %s: what its widgets do is not recorded any further", self._log.key)
            return
        try:
            self._log.append(event.type, None, event.content, size=size)
        except StorageError as error:
            if not self._unrecorded:
                logger.warning("Session %s: its widgets are not recorded: %s", self._log.key, error)
            self._unrecorded = True
