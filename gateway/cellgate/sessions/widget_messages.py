"""What people do to a session's widgets, sent to its kernel: a slider is moved, a button is pressed.

The kernel must be idle, as for the questions of ``introspection``. What it makes of a message comes as
events, which ``widgets`` records; the answer says when it is done. Its work counts as a cell's in the quotas.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, Raw

from cellgate.errors import Conflict, NotFound
from cellgate.execution.checks import check_text
from cellgate.sessions.session import Session
from cellgate.wire.answers import WidgetHandled
from cellgate.wire.models import WidgetBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.codec.encoding import encode
from cellgate_kernels.codec.structure import DEEPEST, is_too_deep
from cellgate_kernels.kernel.comms import CommMessage, Handled
from cellgate_kernels.kernel.kernel import Kernel

MOST_ID = 200
"""Characters of a comm's id."""
MOST_BYTES = 1024 * 1024
"""Bytes of a state or a content, as JSON and without its buffers."""
TURN_PATIENCE = 10.0
"""Seconds that a message waits until its principal has one running cell less."""


_NOTHING = object()


@dataclass(frozen=True, slots=True)
class WidgetMessage:
    """A message to a widget that was found to be well formed. `data`: the comm message's, as JSON."""

    comm_id: str
    data: Raw
    buffers: tuple[bytes, ...]


def widget_message(comm_id: str, body: WidgetBody) -> WidgetMessage:
    """Return the message of a request. Raises InvalidInput. A large one belongs in a thread."""
    check_text(comm_id, "widget", MOST_ID)
    if (body.state is None) == (body.content is UNSET):
        raise InvalidInput("Give either state or content")
    try:
        buffers = tuple(base64.b64decode(each, validate=True) for each in body.buffers)
    except (binascii.Error, ValueError):
        raise InvalidInput("buffers are not base64") from None
    data: dict[str, Any]
    if body.state is None:
        if body.buffer_paths:
            raise InvalidInput("buffer_paths: lead into a state; a content has its buffers beside it")
        name, data = "content", {"method": "custom", "content": body.content}
    else:
        name = "state"
        data = {"method": "update", "state": body.state, "buffer_paths": body.buffer_paths}
    too_deep = InvalidInput(f"{name} is nested more than {DEEPEST - 1} levels deep")
    try:
        encoded = encode(data)
    except RecursionError:
        raise too_deep from None
    if len(encoded) > MOST_BYTES:
        raise InvalidInput(f"{name} has more than {MOST_BYTES} bytes as JSON; give large parts as buffers")
    if is_too_deep(encoded, data):
        raise too_deep
    if body.state is not None:
        _check_paths(body.state, body.buffer_paths, len(buffers))
    return WidgetMessage(comm_id, Raw(encoded), buffers)


def _check_paths(state: dict[str, Any], paths: Sequence[Sequence[str | int]], buffers: int) -> None:
    """Check that each buffer has a place of its own in the state. Raises InvalidInput."""
    if len(paths) != buffers:
        raise InvalidInput(
            f"buffer_paths: has {len(paths)} paths for {buffers} buffers; give each one a path"
        )
    if len({tuple(path) for path in paths}) < len(paths):
        raise InvalidInput("buffer_paths: two of them are the same")
    for number, path in enumerate(paths):
        place: Any = state
        for step in path[:-1]:
            place = _inner(place, step)
        # An object may lack its last key: Jupyter's clients take bytes out of objects.
        is_key = isinstance(place, dict) and isinstance(path[-1], str)
        if not is_key and _inner(place, path[-1]) is _NOTHING:
            raise InvalidInput(f"buffer_paths[{number}]: there is no such place in the state")


def _inner(place: Any, step: str | int) -> Any:
    """Return what a key of an object or an index of an array leads to."""
    if isinstance(step, str):
        return place.get(step, _NOTHING) if isinstance(place, dict) else _NOTHING
    return place[step] if isinstance(place, list) and 0 <= step < len(place) else _NOTHING


async def send_to_widget(session: Session, sent: WidgetMessage) -> WidgetHandled:
    """Send a widget a change of its state or a message, and return once the kernel has handled it.

    Raises NotFound if the kernel has no such widget, Conflict, PrincipalQuotaExceededForNow if as many cells
    run as may, and the errors of `SessionHolds.ask`.
    """
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
            return await message.send(sent.comm_id, sent.data, sent.buffers, patience)

    place = session.account.enter(at_once=True)
    try:
        if not place.running:
            # Not while the session is held still: its files can be used in the meantime.
            await place.turn(TURN_PATIENCE)
        handled = await session.holds.ask(ask)
    finally:
        place.leave()
    if handled is None:
        raise NotFound("The session's kernel has no such widget: run the cell again that made it")
    return WidgetHandled(seq=session.log.last_seq, text=handled.text, late=handled.late)
