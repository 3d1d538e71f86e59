"""Keeps a cell's question (`input_request`) from overtaking the output that the cell showed before.

Questions and output come on different sockets. Our kernels name in a question's metadata the last message on
iopub before it (``inside/bootstrap.py``). The question waits until that message is here. If the kernel has
been quiet for a while, the message may be lost and the question is delivered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container
from typing import Final

import msgspec

from cellgate_kernels.base.resources import KIB
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.protocol.messages import Message, size_of
from cellgate_kernels.protocol.policy import SMALL_BYTES

PATIENCE: Final = 5.0
"""The seconds of silence of the kernel after which a message counts as lost."""
_MOST: Final = 16
_MOST_BYTES: Final = 64 * KIB
"""The most questions that wait at once, and their most bytes; beyond these only the order is lost."""
_LONGEST_ID: Final = 200


class _Metadata(msgspec.Struct):
    cellgate_after: str = ""


_decode = msgspec.json.Decoder(_Metadata).decode


class WaitingQuestions:
    """The questions that came before output that was shown earlier.

    `deliver` takes a question when its turn has come. `quiet`: the seconds since the kernel's last message; 0
    while its output is left unread. `waiting`: the questions, each with the id of the message it waits for.
    """

    def __init__(self, deliver: Callable[[Message], None], quiet: Callable[[], float]) -> None:
        self._deliver = deliver
        self._quiet = quiet
        self.waiting: deque[tuple[str, Message]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, question: Message, received: Container[str]) -> bool:
        """Return whether the question must wait here. `received`: ids of the latest messages on iopub."""
        after = _after(question)
        if not after or after in received or len(self.waiting) == _MOST:
            return False
        if size_of(question) + sum(size_of(other) for _, other in self.waiting) > _MOST_BYTES:
            return False
        self.waiting.append((after, question))
        self._wait(PATIENCE)
        return True

    def go_on(self, received: Container[str]) -> None:
        """Deliver the questions whose message has been received by now."""
        while self.waiting and self.waiting[0][0] in received:
            self._deliver(self.waiting.popleft()[1])
        if not self.waiting:
            self.close()

    def close(self) -> None:
        """Drop all waiting messages and stop the timer."""
        self.waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, guarded(self._look, "kernel's question"))

    def _look(self) -> None:
        self._timer = None
        left = PATIENCE - self._quiet()
        if left > 0:
            self._wait(left)
            return
        waiting = [question for _, question in self.waiting]
        self.close()
        for question in waiting:
            self._deliver(question)


def _after(question: Message) -> str:
    """Return the id of the previous message on iopub, "" if the kernel does not name one."""
    if len(question.metadata_frame) > SMALL_BYTES:
        return ""
    try:
        after = _decode(question.metadata_frame).cellgate_after
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return after if len(after) <= _LONGEST_ID else ""
