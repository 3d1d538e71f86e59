"""The time of one cell: in line, in its run, and until the rest of its end has come.

This is the only place that measures a cell's time. It uses the event loop's clock and timer, and knows
neither kernel nor record: ``run`` sends, interrupts and records. A request's own timeout includes the time in
which its session waits in line for a kernel, but not the time behind other cells of the session. The
session's `cell_timeout` includes no time in line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from cellgate_kernels.base.tasks import guarded


class CellDeadline:
    """The deadline of one cell. Durations in seconds, moments by the event loop's clock.

    `timeout`: the longest run; None for no limit. `late`: the deadline has passed and was not handled yet.
    `queued_at`: when the cell was accepted. `sent_at`: when a kernel got it; None before.
    """

    def __init__(
        self,
        timeout: float | None,
        passed: Callable[[], None],
        failed: Callable[[Exception], None],
        *,
        execution: str,
        is_own: bool,
        spent: float = 0.0,
    ) -> None:
        """Set the deadline; no timer runs yet.

        `passed` is called at the deadline, or when the rest of an end is overdue; `failed` with an error of
        `passed`. `is_own`: the timeout is the request's own. `spent`: the part that a former gateway used up.
        """
        self._loop = asyncio.get_running_loop()
        self._calls: tuple[Callable[[], None], Callable[[Exception], None]] | None = passed, failed
        self._execution = execution
        self._is_own = is_own
        self.timeout = timeout
        self._left = None if timeout is None else max(0.0, timeout - spent)
        self.late = False
        self.queued_at = self._loop.time()
        self.sent_at: float | None = None
        self._in_line_since: float | None = None
        # One timer: the deadline until the end begins, then the wait for its rest.
        self._timer: asyncio.TimerHandle | None = None
        self._last_sign: float | None = None
        self._patience_with_end: Callable[[], float] | None = None

    def now(self) -> float:
        """Return the time by the clock of all moments here."""
        return self._loop.time()

    @property
    def patience(self) -> float | None:
        """The seconds that the cell may still wait in line for a kernel, if its request has a timeout."""
        return self._left if self._is_own else None

    @property
    def stands_in_line(self) -> bool:
        """Whether the cell waits for its principal's other cells."""
        return self._in_line_since is not None

    def deduct(self, seconds: float) -> None:
        """Subtract time in line for a kernel from the request's own timeout."""
        if self._is_own and self._left is not None:
            self._left = max(0.0, self._left - seconds)

    def stand_in_line(self) -> None:
        """Begin to wait for the principal's other cells, as the session's next cell, until `late` is set."""
        if self._in_line_since is None:
            self._in_line_since = self.now()
            if self.patience is not None:
                self._set_timer(self.patience)

    def leave_line(self) -> None:
        """End the time in line, which counts towards the request's own timeout."""
        if self._in_line_since is not None:
            self.stop()
            self.deduct(self.now() - self._in_line_since)
            self._in_line_since = None

    def start(self, *, ran: float = 0.0) -> None:
        """Start the run's time. `ran`: the seconds that the cell ran under a former gateway."""
        self.sent_at = self.now() - ran
        if self._left is not None:
            self._set_timer(self._left)

    @property
    def is_ending(self) -> bool:
        """Whether a reply or idle message has come, so that the deadline no longer applies."""
        return self._patience_with_end is not None

    def end_begun(self, patience: Callable[[], float]) -> None:
        """Note a sign of the cell's end; without a further one, the rest may take `patience` seconds."""
        self._last_sign = self.now()
        if self._patience_with_end is None:
            self._patience_with_end = patience
            self._set_timer(patience())

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop the timer for good, and drop the callbacks, which would keep the run alive."""
        self.stop()
        self._calls = None

    def _set_timer(self, seconds: float) -> None:
        self.stop()
        if self._calls is not None:
            passed, failed = self._calls
            look = partial(self._time_is_up, passed)
            self._timer = self._loop.call_later(
                seconds, guarded(look, "end of a cell", failed, execution=self._execution)
            )

    def _time_is_up(self, passed: Callable[[], None]) -> None:
        self._timer = None
        if self._patience_with_end is None:
            self.late = True
        else:
            assert self._last_sign is not None
            left = self._last_sign + self._patience_with_end() - self.now()
            if left > 0:
                self._set_timer(left)
                return
        passed()
