"""What people do to a session's widgets, sent to its kernel: a slider is moved, a button is pressed.

The kernel must be idle, as for the questions of ``introspection``. What it makes of a message comes as
events, which ``widgets`` records; the answer says when it is done.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from msgspec import UNSET

from cellgate.errors import Conflict, NotFound
from cellgate.execution.checks import check_text
from cellgate.sessions.session import Session
from cellgate.wire.answers import WidgetHandled
from cellgate.wire.models import WidgetBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.kernel.comms import CommMessage, Handled
from cellgate_kernels.kernel.kernel import Kernel

MOST_ID = 200
"""Characters of a comm's id."""


async def send_to_widget(session: Session, comm_id: str, body: WidgetBody) -> WidgetHandled:
    """Send a widget a change of its state or a message, and return once the kernel has handled it.

    Raises InvalidInput, NotFound if the kernel has no such widget, Conflict, and the errors of
    `SessionHolds.ask`.
    """
    data, buffers = _checked(comm_id, body)
    if session.widgets.spent:
        raise Conflict(
            "The record keeps no more of what this session's widgets do outside of cells, so they can't be"
            " moved here any more; a new session can"
        )

    limits = (session.limits.cell_timeout, session.account.quotas.max_cell_timeout)
    patience = min((each for each in limits if each is not None), default=None)

    async def ask(kernel: Kernel) -> Handled | None:
        message = CommMessage(kernel.connection, kernel.exited, session.widgets.show, session.widgets.room)
        with session.widgets.handling(message.interrupt):
            return await message.send(comm_id, data, buffers, patience)

    handled = await session.holds.ask(ask)
    if handled is None:
        raise NotFound("The session's kernel has no such widget: run the cell again that made it")
    return WidgetHandled(seq=session.log.last_seq, text=handled.text, late=handled.late)


def _checked(comm_id: str, body: WidgetBody) -> tuple[dict[str, Any], list[bytes]]:
    """Return the data of the comm message, and its buffers. Raises InvalidInput."""
    check_text(comm_id, "widget", MOST_ID)
    if (body.state is None) == (body.content is UNSET):
        raise InvalidInput("Give either state or content")
    try:
        buffers = [base64.b64decode(each, validate=True) for each in body.buffers]
    except (binascii.Error, ValueError):
        raise InvalidInput("buffers are not base64") from None
    if body.state is None:
        return {"method": "custom", "content": body.content}, buffers
    return {"method": "update", "state": body.state, "buffer_paths": body.buffer_paths}, buffers
