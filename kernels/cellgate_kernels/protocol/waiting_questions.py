"""Keeps questions of cells (`input_request`) from overtaking what the cell showed before it asked.

The two come on sockets of their own, stdin and iopub. Our kernels say in a question's metadata which message
on iopub was the last before it (``inside/bootstrap.py``). Until that one is here the question waits; it is
delivered all the same once nothing has come for a while, because that message may be lost. Questions of other
kernels do not wait. ``connection`` owns it, and says what has come.
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
"""Seconds in which the kernel sends nothing, after which a message counts as lost."""
_MOST: Final = 16
_MOST_BYTES: Final = 64 * KIB
"""Questions that wait at once, and the size of all; a kernel with more loses the order, and nothing else."""
_LONGEST_ID: Final = 200


class _Metadata(msgspec.Struct):
    cellgate_after: str = ""


_decode = msgspec.json.Decoder(_Metadata).decode


class WaitingQuestions:
    """Questions that came before what was shown before them.

    `deliver` takes a question whose turn has come. `quiet`: for how many seconds nothing has come from the
    kernel; 0 while its output is left unread. `waiting`: the questions, each behind the id that it waits for.
    Use it on the loop's thread.
    """

    def __init__(self, deliver: Callable[[Message], None], quiet: Callable[[], float]) -> None:
        self._deliver = deliver
        self._quiet = quiet
        self.waiting: deque[tuple[str, Message]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, question: Message, received: Container[str]) -> bool:
        """Return whether the question waits here now. `received`: the ids of the latest messages on iopub."""
        after = _after(question)
        if not after or after in received or len(self.waiting) == _MOST:
            return False
        if size_of(question) + sum(size_of(other) for _, other in self.waiting) > _MOST_BYTES:
            return False
        self.waiting.append((after, question))
        self._wait(PATIENCE)
        return True

    def go_on(self, received: Container[str]) -> None:
        """Deliver the questions whose turn has come, now that more was received."""
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
    """Return the id of the previous message on iopub, "" if the kernel does not say."""
    if len(question.metadata_frame) > SMALL_BYTES:
        return ""
    try:
        after = _decode(question.metadata_frame).cellgate_after
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return after if len(after) <= _LONGEST_ID else ""
