"""Records what widgets do outside of cells: a user moves a slider, and the kernel sends the new value.

Such a comm message answers a client's comm message, not an execute_request, so no cell's run receives it. It
becomes an event without an execution. ``cellgate_kernels.protocol.execution`` handles the comm messages of
cells, and ``record.widgets`` puts both into a notebook. A client's own message is not recorded: what counts
is what the kernel made of it, which ipywidgets 8 sends back. ``widget_messages`` sends such messages, and
gives what is printed meanwhile to the Output widget that shows it. Jupyter's clients do so themselves, and
send the kernel what it shows. This module also limits how many widgets a session records, in cells and
outside of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cellgate.errors import StorageError
from cellgate.record.events import EventLog
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.protocol.contents import comm_event, fields_of
from cellgate_kernels.protocol.messages import Message, TooComplex, size_of
from cellgate_kernels.protocol.outputs import LEAST_COST, KernelEvent

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * MIB
"""Most bytes of one session's widget messages outside of cells, where no cell's cap stops endless updates.

A notebook has the state of as many, see ``record.export.survey``.
"""
MOST_MODELS = 50_000
"""Most widgets of one session that are recorded."""
MOST_CAPTURES = 1000
"""Most Output widgets that show the answers to messages at once."""


class WidgetMessages:
    """Records messages of `COMM_EVENTS` outside of cells in `log`; gets each before its cell's run does."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._left = MOST_BYTES
        self._models = 0
        self._unrecorded = False
        # The request whose outputs an Output widget shows, by the widget; the last one shows them.
        self._captures: dict[str, str] = {}
        self.interrupt: Callable[[], None] = _nothing
        """Interrupts the kernel's work on a message to a widget, if there is any."""

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

    @property
    def spent(self) -> bool:
        """Whether nothing more of what widgets do outside of cells is recorded."""
        return self._left <= 0

    @contextmanager
    def handling(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Let `interrupt` interrupt the kernel until the context ends."""
        self.interrupt = interrupt
        try:
            yield
        finally:
            self.interrupt = _nothing

    def room(self, message: Message) -> int:
        """Return the number of bytes of the message's content that can still be recorded here."""
        return 0 if message.parent.msg_type == "execute_request" else self._left

    def show(self, message: Message) -> bool:
        """Record an output that a message to a widget has led to; return whether an Output widget shows it.

        Outputs that no widget shows are not recorded.
        """
        asked = message.parent.msg_id
        shows = (widget for widget, msg_id in reversed(self._captures.items()) if msg_id == asked)
        widget = next(shows, None)
        if widget is not None and not self.spent:
            self._record_output(message, widget)
        return widget is not None

    def _record(self, message: Message) -> None:
        if self.spent or (self.full and message.header.msg_type == "comm_open"):
            return
        size = max(size_of(message), LEAST_COST)
        try:
            event = comm_event(message) if size <= self._left else None
        except TooComplex:
            return
        if event is None and size <= self._left:
            return
        if event is not None:
            self._follow(event)
        self._append(event, size)

    def _follow(self, event: KernelEvent) -> None:
        """Note whether an Output widget starts or stops showing what a request prints."""
        if event.type != "comm_msg" or event.content["data"].get("method") != "update":
            return
        state, comm_id = event.content["data"]["state"], event.content["comm_id"]
        if "msg_id" not in state:
            return
        self._captures.pop(comm_id, None)
        asked = state["msg_id"]
        if isinstance(asked, str) and asked and len(self._captures) < MOST_CAPTURES:
            self._captures[comm_id] = asked

    def _record_output(self, message: Message, widget: str) -> None:
        size = max(size_of(message), LEAST_COST)
        try:
            fields = fields_of(message) if size <= self._left else {}
        except TooComplex:
            return
        if fields is not None:
            shown: dict[str, Any] = {**fields, "widget": widget}
            self._append(KernelEvent(message.header.msg_type, shown) if size <= self._left else None, size)

    def _append(self, event: KernelEvent | None, size: int) -> None:
        """Record an event; None: one that is too large for what is left, after which there are no more."""
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


def _nothing() -> None:
    """Do nothing: no message to a widget is being handled."""
