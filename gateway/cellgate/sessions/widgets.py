"""Records what widgets say outside of cells: somebody moves a slider, and the kernel tells its new value.

Such a comm message is the kernel's answer to a client's comm message, not to an execute_request, so that no
cell's run takes it. It becomes an event without an execution. Comm messages of cells are
``cellgate_kernels.execution``'s; what a notebook makes of both is in ``record.widgets``. A client's own
message is not recorded: what counts is what the kernel made of it, which ipywidgets 8 tells. Here is also
the bound of how many widgets a session records, in cells and outside of them.
"""

from __future__ import annotations

import logging

from msgspec import structs

from cellgate.record.events import EventLog
from cellgate.wire.errors import StorageError
from cellgate_kernels.connection import Listener, Room
from cellgate_kernels.contents import comm_event
from cellgate_kernels.limits import MIB
from cellgate_kernels.messages import Message, TooComplex, size_of
from cellgate_kernels.outputs import COMM_EVENTS, LEAST_COST

logger = logging.getLogger(__name__)

MOST_BYTES = 16 * MIB
"""Of one session's widgets outside of cells. They have no cap of a cell, and code can make them for ever."""
MOST_MODELS = 50_000
"""Widgets of one session that are recorded."""


class WidgetMessages:
    """A listener: records such messages in `log`, and hands all messages on to `receive`."""

    def __init__(self, log: EventLog, receive: Listener, room: Room) -> None:
        self._log = log
        self._receive = receive
        self._room = room
        self._left = MOST_BYTES
        self._models = 0
        self._unrecorded = False

    def __call__(self, message: Message) -> None:
        """Take a message of the kernel."""
        if message.header.msg_type in COMM_EVENTS:
            message = self._take(message)
        self._receive(message)

    def room(self, message: Message) -> int:
        """How many bytes of such a message's content are of use, here or to `receive`."""
        if message.header.msg_type in COMM_EVENTS and message.parent.msg_type != "execute_request":
            return self._left
        return self._room(message)

    def _take(self, message: Message) -> Message:
        if message.header.msg_type == "comm_open":
            self._models += 1
            if self._models == MOST_MODELS + 1:
                logger.warning("Session %s: no more than %d widgets are recorded", self._log.key, MOST_MODELS)
            if self._models > MOST_MODELS:
                return structs.replace(message, unread=True)
        if message.parent.msg_type != "execute_request":
            self._record(message)
        return message

    def _record(self, message: Message) -> None:
        if self._left <= 0:
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
