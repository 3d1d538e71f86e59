"""A timer that begins anew with each sign of somebody, and calls when there was none for too long.

It moves no timer for a sign, which may be frequent: it looks when the time is up, and waits for the rest of
it if there was a sign meanwhile. Whose silence it is and what follows from it is ``run``' affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cellgate_kernels.tasks import guarded


class Silence:
    """Calls `too_long` once `patience()` seconds have passed since the last `heard`; never before the first.

    Use it on one loop, and `stop` it in the end.
    """

    def __init__(self, patience: Callable[[], float], too_long: Callable[[], None]) -> None:
        self._patience = patience
        self._too_long = too_long
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def heard(self) -> None:
        """There was a sign."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._patience(), guarded(self._look, "silence"))

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._last + self._patience() - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, guarded(self._look, "silence"))
            return
        self._timer = None
        self._too_long()

    def stop(self) -> None:
        """Listen no more; a sign begins it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
