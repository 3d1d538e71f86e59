"""Interrupts of cells that await something: they end at once.

ipykernel notes such an interrupt in a callback of its loop, which it does not wake: the cell goes on until
what it awaits has ended, so that its deadline costs the kernel.
"""

import asyncio
import signal
from contextlib import contextmanager


@contextmanager
def cancels(future, loop, names):
    """Within it, an interrupt ends the cell that `future` is the task of, and whose variables are `names`.

    Code of the cell that computes is interrupted where it is, as in any other cell. Otherwise its task is
    cancelled, and with it what it awaits.
    """

    def cancel():
        if not future.done():
            future.cancel()

    def interrupted(number, frame):
        if asyncio.current_task(loop) is future and is_in_cell(frame, names):
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(cancel)

    saved = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, saved)


def is_in_cell(frame, names):
    """Return whether this frame is a cell's, or that of a function that a cell has called."""
    while frame is not None:
        if frame.f_globals is names:
            return True
        frame = frame.f_back
    return False
