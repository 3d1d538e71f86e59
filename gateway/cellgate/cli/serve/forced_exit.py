"""A second signal during an orderly shutdown: the gateway exits now, but removes its containers first.

Other kernels end with the process. Containers would not, so a thread removes them first, within a time limit;
any that are left are removed at the next start with the same data folder. While it does, the main thread, and
so the event loop, is blocked: it would start other containers, and log the end of each. The record is as
after a crash: intact. ``serve`` owns the signals until the first one; a third ends the process at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STANDSTILL = 15.0
"""Seconds for which the main thread waits, as it could hold a lock that the other thread needs."""


def leave_on_next_signal(before: Callable[[], None]) -> None:
    """Let the next stop signal end the process by that signal, after calling `before` in a thread.

    Call it in the main thread. It does not depend on the event loop.
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
