"""Messages that the gateway sends to clients in place of a kernel: statuses, refusals, lost replies.

Pure. ``door`` decides when they are sent. They look like a kernel's messages: clients treat them as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from cellgate_kernels.protocol.messages import Channel, Message, new_message

SESSION = "cellgate"


def answer_to(request: Message, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> Message:
    """Return a message whose parent is `request`."""
    message = new_message(channel, msg_type, content, session=SESSION)
    return structs.replace(message, parent_frame=request.header_frame, parent=request.header)


def beside(other: Message, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> Message:
    """Return a message with the same parent as `other`, which is a kernel's."""
    message = new_message(channel, msg_type, content, session=SESSION)
    return structs.replace(message, parent_frame=other.parent_frame, parent=other.parent)


def status(state: str, request: Message | None = None) -> Message:
    """Return a kernel status; without a request, it is about the kernel itself."""
    if request is None:
        return new_message(Channel.IOPUB, "status", {"execution_state": state}, session=SESSION)
    return answer_to(request, Channel.IOPUB, "status", {"execution_state": state})


def error_content(ename: str, evalue: str) -> dict[str, Any]:
    """Return the content of an `error`; with a status added, that of a failed reply."""
    return {"ename": ename, "evalue": evalue, "traceback": [f"{ename}: {evalue}"]}


def failed_reply(request: Message, ename: str, evalue: str) -> Message:
    """Return an execute_reply for a cell that did not end on its own."""
    content = {"status": "error", "execution_count": None, **error_content(ename, evalue)}
    return answer_to(request, Channel.SHELL, "execute_reply", content)


def aborted_reply(request: Message) -> Message:
    """Return an execute_reply for a cell that was not run because an earlier one failed."""
    return answer_to(request, Channel.SHELL, "execute_reply", {"status": "aborted"})
