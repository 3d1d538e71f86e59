"""The life of one execute_request as a state machine: kernel messages in, events and an outcome out.

Pure: no sockets, no clock, no tasks. The surrounding shell sends the request and the interrupt, watches the
deadline and the kernel, and reports each of these steps here. Source: jupyter-client's "Messaging in
Jupyter", sections "Execute", "Messages on the IOPub channel" and "Kernel status".

queued ──sent()──> sent ──busy──> busy ──idle and execute_reply, in either order──> finished
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from cellgate_kernels.protocol.contents import (
    comm_event,
    content_of,
    count_of,
    error_of,
    fields_of,
    pages_of,
    text_of,
)
from cellgate_kernels.protocol.messages import Channel, Message, TooComplex, weight_of
from cellgate_kernels.protocol.outputs import KernelEvent, OutputLimiter, byte_size

logger = logging.getLogger(__name__)

Events = tuple[KernelEvent, ...]

# ENOSPC, EFBIG (a file beyond RLIMIT_FSIZE) and EDQUOT of Linux, as Python shows them.
_DISK_FULL = re.compile(r"\[Errno (28|27|122)\]")
_ABORTED = ("aborted", "abort")
CAPTURED = frozenset({"stream", "display_data", "execute_result", "error", "clear_output"})
"""The messages that an Output widget takes from its cell, or from what a widget's message has led to; updates
of displays find their own outputs."""
_LATE_OUTPUT = frozenset({"stream", "display_data", "update_display_data", "clear_output"})


class Status(StrEnum):
    """The final state of an execution."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    DIED = "died"
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """Where an execution is in its life; it only moves forward."""

    QUEUED = "queued"
    SENT = "sent"
    BUSY = "busy"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final status of an execution; `cause` is a stable word, None when the cell alone decided."""

    status: Status
    cause: str | None
    execution_count: int | None
    error: dict[str, Any] | None


class Execution:
    """One execute_request from queue to outcome.

    It is finished when both its reply (shell) and its idle status (iopub) have arrived, in either order.
    `started`: whether the kernel has reported the start. `replied`, `idle`: whether reply and idle status
    have arrived. `execution_count`: the kernel's prompt number, once it is known. `error`: `ename`, `evalue`
    and `traceback` of the last error, cut to the caps.
    """

    def __init__(self, msg_id: str, code: str, limiter: OutputLimiter, *, allow_stdin: bool = True) -> None:
        self.msg_id = msg_id
        self.code = code
        self.limiter = limiter
        self.phase = Phase.QUEUED
        self.replied = False
        self.idle = False
        self.execution_count: int | None = None
        self.error: dict[str, Any] | None = None
        self.started = False
        self._allow_stdin = allow_stdin
        self._capturing: list[str] = []
        self._asking = False
        self._question: Message | None = None
        self._reply_unread = False
        self._reply_error: tuple[dict[str, Any], int] | None = None
        self._pages: tuple[list[dict[str, Any]], int] = [], 0
        self._interrupted_by: str | None = None
        self._late = False
        self._end: tuple[Status, str | None] | None = None

    @property
    def finished(self) -> bool:
        """Whether the outcome is known; then later messages change nothing."""
        return self.phase is Phase.FINISHED

    def sent(self) -> None:
        """Note that the request is on its way to the kernel."""
        if self.phase is Phase.QUEUED:
            self.phase = Phase.SENT

    def receive(self, message: Message) -> Events:
        """Return the events that a kernel message makes for this execution; () for messages of others.

        After the end only output counts: a thread that the cell left running still prints under its name.
        Never raises: a broken message is repaired if its meaning is clear, and otherwise ignored.
        """
        if message.parent.msg_id != self.msg_id:
            return ()
        if self.phase is Phase.FINISHED and message.header.msg_type not in _LATE_OUTPUT:
            return ()
        handler = self._HANDLERS.get(message.header.msg_type)
        if handler is None or handler[0] is not message.channel:
            return ()
        events = handler[1](self, message)
        if self._question is None or not (self.started or events):
            return events
        # An output before the cell's start: its execute_input was lost.
        return (*self._start(), *events, *self._ask())

    def room(self, msg_type: str) -> int:
        """Return the largest content, in bytes, of a message of this type that is still of use."""
        if self.finished and msg_type not in _LATE_OUTPUT:
            return 0
        return self.limiter.room(msg_type) if msg_type in self._HANDLERS else 0

    def answered(self) -> None:
        """Note that the cell's input request has been answered; it may send the next one."""
        self._asking = False

    def interrupt_requested(self, cause: str = "interrupt_requested") -> None:
        """Note that the kernel is being interrupted on request; the first cause is kept."""
        self._interrupted_by = self._interrupted_by or cause
        self._asking = False  # the interrupt ends a wait for input
        self._question = None

    @property
    def disturbed(self) -> bool:
        """Whether an interrupt was requested or the deadline has passed."""
        return self._late or self._interrupted_by is not None

    def deadline_passed(self) -> None:
        """Note that the cell's deadline has passed: the kernel is interrupted now, and ended later."""
        self._late = True
        self._asking = False
        self._question = None

    def kernel_lost(self, status: Status, cause: str | None) -> None:
        """End without further messages: the kernel is gone, or the request was never sent.

        After the deadline the outcome is `timeout`, whatever `status` says.
        """
        if not self.finished:
            self._end = (Status.TIMEOUT, "cell_timeout") if self._late else (status, cause)
            self.phase = Phase.FINISHED

    def settle(self) -> Events:
        """End with the reply or the idle status alone: the other was lost. Does nothing before either came.

        Without a reply, a shown error counts as the end of the cell. So does an interrupt or a deadline,
        because ipykernel may lose its reply to the KeyboardInterrupt.
        """
        if self.finished or not (self.replied or self.idle):
            return ()
        self._reply_unread = self._reply_unread or not self.replied
        return self._finish()

    def outcome(self) -> Outcome:
        """Return the cell's outcome. Only valid once the execution is finished.

        A successful cell is `ok` even if its deadline had passed or an interrupt was on its way. Any other
        end after a deadline is `timeout`, any error or abort after a requested interrupt is `interrupted`:
        libraries turn a KeyboardInterrupt into their own errors.
        """
        assert self.finished, "no outcome before the end"
        assert self._end is not None
        status, cause = self._end
        if status is Status.ERROR and cause is None and self.error is not None:
            cause = _limit_reached(self.error)
        return Outcome(status, cause, self.execution_count, None if status is Status.OK else self.error)

    def _end_of_reply(self, reply_status: str) -> tuple[Status, str | None]:
        if reply_status == "ok":
            return Status.OK, None
        if self._late:
            return Status.TIMEOUT, "cell_timeout"
        if self._interrupted_by is not None:
            return Status.INTERRUPTED, self._interrupted_by
        if reply_status in _ABORTED:
            return Status.CANCELLED, "aborted"
        return Status.ERROR, None

    # Each handler takes a message on its channel with this request as its parent.

    def _on_status(self, message: Message) -> Events:
        state = content_of(message).get("execution_state")
        if state == "busy":
            self.phase = Phase.BUSY
        elif state == "idle":
            self.idle = True
            return self._finish() if self.replied else ()
        return ()

    def _on_execute_input(self, message: Message) -> Events:
        self._take_count(content_of(message))
        return self._start()

    def _start(self) -> Events:
        if self.started:
            return ()
        self.started = True
        self.phase = Phase.BUSY
        return (KernelEvent("started", {"execution_count": self.execution_count, "code": self.code}),)

    def _on_input_request(self, message: Message) -> Events:
        """Return the events of a cell's question. The question waits until the execute_input, which comes on
        another socket, has arrived: so the cell's start is reported first, with its count.

        A cell that may not ask, or still waits for an answer, can't ask: such a message is forged.
        """
        if self._question is None and not self._asking:
            self._question = message
        return ()

    def _ask(self) -> Events:
        """Return the event of the waiting question."""
        question, self._question = self._question, None
        if question is None or not self._allow_stdin or self._asking or self.replied:
            return ()
        events = self._on_output(question)
        self._asking = bool(events)
        return events

    def _on_output(self, message: Message) -> Events:
        event_type, size = message.header.msg_type, len(message.content_frame)
        if not self.limiter.wants(event_type):
            self.limiter.drop(event_type, size)
            return ()
        try:
            fields = fields_of(message)
        except TooComplex:
            return self.limiter.leave_out(event_type, message.left_out or size, message.kinds)
        if fields is None:
            return ()
        if event_type == "stream":
            # The cap counts text, not its JSON escapes. A large text has already been cut at the cap.
            size = max(byte_size(fields["text"]), message.weight)
        elif event_type != "error":
            size = max(size, weight_of(message))
        if self._capturing and event_type in CAPTURED:
            fields["widget"] = self._capturing[-1]
        return self.limiter.admit(KernelEvent(event_type, fields), size)

    def _on_comm(self, message: Message) -> Events:
        event_type = message.header.msg_type
        size = len(message.content_frame) + sum(map(len, message.buffers))
        if not self.limiter.wants(event_type):
            self.limiter.drop(event_type, size)
            return ()
        try:
            event = comm_event(message)
        except TooComplex:
            return self.limiter.leave_out(event_type, message.left_out or size)
        if event is None:
            return ()
        self.follow_widget(event.type, event.content)
        return self.limiter.admit(event, max(size, weight_of(message)))

    def follow_widget(self, event_type: str, content: Mapping[str, Any]) -> None:
        """Note whether an Output widget starts or stops capturing this cell's output; the last one captures.

        The widget's state `msg_id` is the id of the request whose output is captured (ipywidgets, Output).
        """
        if event_type != "comm_msg":
            return
        state = content["data"]["state"]
        if "msg_id" not in state or content["data"].get("method") != "update":
            return
        comm_id = content["comm_id"]
        if comm_id in self._capturing:
            self._capturing.remove(comm_id)
        if state["msg_id"] == self.msg_id:
            self._capturing.append(comm_id)

    def _on_error(self, message: Message) -> Events:
        events = self._on_output(message)
        for event in events:
            # An error that a widget shows is not the cell's end.
            if "widget" not in event.content:
                self.error = event.content
        return events

    def _on_execute_reply(self, message: Message) -> Events:
        if self.replied:
            return ()
        self.replied = True
        if not message.readable:
            # Too large to be read, but still the cell's end: the outcome follows from iopub.
            self._reply_unread = True
            return self._finish() if self.idle else ()
        content = content_of(message)
        status = text_of(content.get("status"))
        if status == "error" and _only_display_failed(content):
            status = "ok"
        self._end = self._end_of_reply(status)
        self._take_count(content)
        if status == "error":
            self._reply_error = error_of(content), len(message.content_frame)
        else:
            self._take_pages(content, len(message.content_frame))
        return self._finish() if self.idle else ()

    def _take_pages(self, content: dict[str, Any], size: int) -> None:
        try:
            self._pages = pages_of(content), size
        except TooComplex:
            logger.debug("A kernel's pages were too complex to be shown")

    def _take_count(self, content: dict[str, Any]) -> None:
        if self.execution_count is None:
            self.execution_count = count_of(content.get("execution_count"))

    def _finish(self) -> Events:
        self.phase = Phase.FINISHED
        if self._reply_unread:
            well = self.error is None and not self.disturbed
            self._end = self._end_of_reply("ok" if well else "error")
        if self._reply_error is not None:
            return self._take_error(*self._reply_error)
        pages, size = self._pages
        shown = [self.limiter.admit(KernelEvent("display_data", page), size) for page in pages]
        return tuple(event for events in shown for event in events)

    def _take_error(self, fields: dict[str, Any], size: int) -> Events:
        """Take the reply's error unless iopub has shown the same; return an event if iopub showed none."""
        shown = self.error
        if shown is not None and shown["ename"] == fields["ename"]:
            return ()
        events = self.limiter.admit(KernelEvent("error", fields), size)
        for event in events:
            self.error = event.content
        # IPython prints a UsageError on stderr, bash_kernel every error: only a traceback would add anything.
        return events if shown is None and fields["traceback"] else ()

    _HANDLERS: ClassVar[Mapping[str, tuple[Channel, Callable[[Execution, Message], Events]]]] = {
        "status": (Channel.IOPUB, _on_status),
        "execute_input": (Channel.IOPUB, _on_execute_input),
        "stream": (Channel.IOPUB, _on_output),
        "display_data": (Channel.IOPUB, _on_output),
        "update_display_data": (Channel.IOPUB, _on_output),
        "execute_result": (Channel.IOPUB, _on_output),
        "clear_output": (Channel.IOPUB, _on_output),
        "error": (Channel.IOPUB, _on_error),
        "comm_open": (Channel.IOPUB, _on_comm),
        "comm_msg": (Channel.IOPUB, _on_comm),
        "comm_close": (Channel.IOPUB, _on_comm),
        "input_request": (Channel.STDIN, _on_input_request),
        "execute_reply": (Channel.SHELL, _on_execute_reply),
    }


def _only_display_failed(content: Mapping[str, Any]) -> bool:
    """Return whether a reply's error is only a failed display of the result, as by ``_repr_html_``.

    ipykernel 7.4 then replies with an error without exception (ipkernel.py, `displayhook_error`). The
    traceback was shown, and the cell ran to its end.
    """
    return content.get("ename") == "NoneType" and content.get("evalue") == "None"


def _limit_reached(error: Mapping[str, Any]) -> str | None:
    """Return the limit that a cell's error points to: ``disk_full``, ``pids_limit`` or None."""
    if _DISK_FULL.match(error["evalue"]):
        return "disk_full"
    no_thread = error["evalue"].startswith("can't start new thread")
    no_process = error["ename"] == "BlockingIOError" and any("fork" in line for line in error["traceback"])
    return "pids_limit" if no_thread or no_process else None
