"""Records what widgets say outside of cells: somebody moves a slider, and the kernel tells its new value.

Such a comm message is the kernel's answer to a client's comm message, not to an execute_request, so that no
cell's run takes it. It becomes an event without an execution. Comm messages of cells are
``kernels.execution``'s; what a notebook makes of both is in ``gateway.record.widgets``. A client's own
message is not recorded: what counts is what the kernel made of it, which ipywidgets 8 tells.
"""

from __future__ import annotations

import logging

from gateway.record.events import EventLog
from kernels.connection import Listener
from kernels.contents import comm_event
from kernels.limits import MIB
from kernels.messages import Message
from kernels.outputs import COMM_EVENTS

logger = logging.getLogger(__name__)

MOST_BYTES = 16 * MIB
"""Of one session's widgets outside of cells. They have no cap of a cell, and code can make them for ever."""


class WidgetMessages:
    """A listener: records such messages in `log`, and hands all messages on to `receive`."""

    def __init__(self, log: EventLog, receive: Listener) -> None:
        self._log = log
        self._receive = receive
        self._left = MOST_BYTES

    def __call__(self, message: Message) -> None:
        """Take a message of the kernel."""
        if message.header.msg_type in COMM_EVENTS and message.parent.msg_type != "execute_request":
            self._record(message)
        self._receive(message)

    def _record(self, message: Message) -> None:
        if self._left <= 0 or (event := comm_event(message)) is None:
            return
        self._left -= sum(map(len, (message.content_frame, *message.buffers)))
        if self._left <= 0:
            logger.warning("Session %s: what its widgets do is not recorded any further", self._log.key)
            return
        self._log.append(event.type, None, event.content)
