"""A second signal to a gateway that is stopping in order: it leaves now, but not its containers.

Other kernels end with the process. Containers would not, so a thread removes them first, within a bound; what
is left then is removed at the next start with the same data folder. The main thread, and so the event loop,
stands still meanwhile: it would start other containers, and log the end of each. The record is as after a
crash: whole. ``serve`` owns the signals until the first one; a third ends the process wherever it is.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STANDSTILL = 15.0
"""Seconds for which the main thread waits. It could hold a lock that the other thread needs."""


def leave_on_next_signal(before: Callable[[], None]) -> None:
    """From now on a stop signal ends the process by that signal, after `before` was called in a thread.

    To be called in the main thread. It does not need a loop that still runs.
    """

    def leave(number: int, _frame: object) -> None:
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_DFL)
        leaving = threading.Thread(target=end, args=(number,), name="leaving", daemon=True)
        leaving.start()
        leaving.join(STANDSTILL)

    def end(number: int) -> None:
        try:
            before()
        finally:
            signal.raise_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, leave)
