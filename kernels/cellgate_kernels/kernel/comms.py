"""Messages to the comms of an idle kernel: what somebody has done to a widget, and what the kernel does then.

They go over the shell channel, like cells: a kernel with a running cell handles them later. What the kernel
makes of them are comm messages of its own, which the session's listeners get. Outputs go to widgets that show
them; here is the end, and the text that no widget shows. ``questions`` has the other requests besides cells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Raw, structs

from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.tasks import until
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.kernel import questions
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.protocol.contents import WIDGETS, content_of, error_of, text_of
from cellgate_kernels.protocol.execution import CAPTURED
from cellgate_kernels.protocol.messages import Channel, Message, new_message
from cellgate_kernels.protocol.outputs import strip_ansi

MOST_TEXT: Final = 20_000
"""Characters of a text that no widget shows."""
INTERRUPTED: Final = 5.0
"""Seconds that a kernel has to end its work after an interrupt."""


@dataclass(frozen=True, slots=True)
class Handled:
    """The end of a message's handling. `text`: that no widget shows. `late`: it took longer than allowed."""

    text: str
    late: bool


class CommMessage:
    """One message to a comm. `show` gives an output to the widget that shows it; False if none does.

    `room` returns how many bytes of an output it would take.
    """

    def __init__(
        self,
        connection: KernelConnection,
        exited: asyncio.Future[KernelExit],
        show: Callable[[Message], bool],
        room: Callable[[Message], int],
    ) -> None:
        self._connection = connection
        self._exited = exited
        self._show = show
        self._room = room
        self._changed = asyncio.Event()
        self._over = False
        self._texts: list[str] = []
        self._left = MOST_TEXT

    async def send(
        self, comm_id: str, data: Raw, buffers: Sequence[bytes], patience: float | None
    ) -> Handled | None:
        """Send the message and return once the kernel is done with it; None if it has no such comm.

        `data`: JSON, which is taken as it is.

        A kernel that is not done after `patience` seconds is interrupted. Raises KernelDied and KernelBusy.
        """
        if not await self._is_open(comm_id):
            return None
        content = {"comm_id": comm_id, "data": data}
        message = new_message(Channel.SHELL, "comm_msg", content, session=self._connection.session)
        if buffers:
            message = structs.replace(message, buffers=tuple(buffers))
        stop = self._connection.follow(message.header.msg_id, self._receive, room=self._room)
        self._exited.add_done_callback(self._wake)
        late = False
        try:
            self._connection.send(message)
            try:
                await self._done(patience)
            except TimeoutError:
                late = True
                self.interrupt()
                await self._done(INTERRUPTED)
        except TimeoutError:
            pass  # It goes on, and the next cell waits for it, with a deadline of its own.
        finally:
            self._exited.remove_done_callback(self._wake)
            stop()
        if self._exited.done():
            raise KernelDied(f"The kernel ended at a widget's message. {self._exited.result().message}")
        return Handled("".join(self._texts), late)

    async def _is_open(self, comm_id: str) -> bool:
        """Return whether the kernel has this comm of a widget. Raises KernelDied and KernelBusy."""
        asked = {"target_name": WIDGETS}
        answer = await questions.ask(
            self._connection, self._exited, "comm_info_request", asked, "comm_info_reply"
        )
        comms = answer.get("comms")
        return isinstance(comms, dict) and comm_id in comms

    def interrupt(self) -> None:
        """Interrupt the kernel's work on the message."""
        self._connection.request(Channel.CONTROL, "interrupt_request", {})

    async def _done(self, patience: float | None) -> None:
        async with asyncio.timeout(patience):
            await until(lambda: self._over or self._exited.done(), self._changed)

    def _receive(self, message: Message) -> None:
        if message.channel is not Channel.IOPUB:
            return
        if message.msg_type == "status":
            self._over = self._over or content_of(message).get("execution_state") == "idle"
            self._wake()
        elif message.msg_type in CAPTURED and not self._show(message):
            self._take(message)

    def _take(self, message: Message) -> None:
        if not self._left:
            return
        text = strip_ansi(_text(message))[: self._left]
        self._left -= len(text)
        self._texts.append(text)

    def _wake(self, _: object = None) -> None:
        self._changed.set()


def _text(message: Message) -> str:
    """Return the text of an output; of a display its plain text."""
    content = content_of(message)
    if message.msg_type == "stream":
        return text_of(content.get("text"))
    if message.msg_type == "error":
        error = error_of(content)
        return "\n".join([*(error["traceback"] or [f"{error['ename']}: {error['evalue']}"]), ""])
    data = content.get("data")
    plain = text_of(data.get("text/plain")) if isinstance(data, dict) else ""
    return f"{plain}\n" if plain else ""
