"""Records what widgets say outside of cells: somebody moves a slider, and the kernel tells its new value.

Such a comm message is the kernel's answer to a client's comm message, not to an execute_request, so that no
cell's run takes it. It becomes an event without an execution. Comm messages of cells are
``cellgate_kernels.execution``'s; what a notebook makes of both is in ``record.widgets``. A client's own
message is not recorded: what counts is what the kernel made of it, which ipywidgets 8 tells. Here is also
the bound of how many widgets a session records, in cells and outside of them.
"""

from __future__ import annotations

import logging

from cellgate.record.events import EventLog
from cellgate.wire.errors import StorageError
from cellgate_kernels.contents import comm_event
from cellgate_kernels.limits import MIB
from cellgate_kernels.messages import Message, TooComplex, size_of
from cellgate_kernels.outputs import LEAST_COST

logger = logging.getLogger(__name__)

MOST_BYTES = 16 * MIB
"""Of one session's widgets outside of cells. They have no cap of a cell, and code can make them for ever."""
MOST_MODELS = 50_000
"""Widgets of one session that are recorded."""


class WidgetMessages:
    """A listener to messages of `COMM_EVENTS`: records those of no cell in `log`.

    It is told of a message before the cell's run is.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._left = MOST_BYTES
        self._models = 0
        self._unrecorded = False

    def __call__(self, message: Message) -> None:
        """Take such a message of the kernel."""
        if message.header.msg_type == "comm_open":
            self._models += 1
            if self._models == MOST_MODELS + 1:
                logger.warning("Session %s: no more than %d widgets are recorded", self._log.key, MOST_MODELS)
        # An opened one above the limit has no event, neither here nor in its cell.
        if message.parent.msg_type != "execute_request":
            self._record(message)

    @property
    def full(self) -> bool:
        """Whether the last widget that was opened is one too many."""
        return self._models > MOST_MODELS

    def room(self, message: Message) -> int:
        """How many bytes of such a message's content are of use here."""
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
