"""An event loop whose time jumps to the next timer when nothing else is left to do.

Deadlines of minutes pass in microseconds, always in the same order. Work in threads takes no virtual time
unless the test sets a `latency`: the loop first waits in real time for the work, so a test that uses files or
SQLite is as repeatable. It is for tests without real sockets. Only ``loop.time()`` is virtual.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any
from unittest import mock

from cellgate_kernels.base.tasks import guarded

START = 1000.0


class Stuck(RuntimeError):
    """Every task waits and there is no timer, so the loop would wait for ever."""


class _Selector(selectors.DefaultSelector):
    """Reports the ready files, and advances the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select as the base class does, but let the timeout pass at once."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise Stuck("All tasks wait, and there is no timer that could wake one of them")
        self.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time. `latency` returns the virtual seconds of the next call in a thread."""

    def __init__(self, latency: Callable[[], float] = lambda: 0.0) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self.latency = latency
        self._owner = threading.get_ident()

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._virtual.now

    def after_work(self, done: Future[Any]) -> Future[Any]:
        """Return the outcome of finished work, available once its latency has passed."""
        seconds = self.latency() if threading.get_ident() == self._owner else 0.0
        if seconds <= 0:
            return done
        late: Future[Any] = Future()
        self.call_later(seconds, guarded(_pass_on, "latency of a thread"), done, late)
        return late


def _pass_on(done: Future[Any], late: Future[Any]) -> None:
    if not late.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is not None:
        late.set_exception(error)
    else:
        late.set_result(done.result())


@contextmanager
def virtual_time(latency: Callable[[], float] = lambda: 0.0) -> Iterator[VirtualTimeLoop]:
    """Yield a loop in virtual time; the caller runs it. Until the end, thread pools run calls one by one.

    ``latency`` returns the virtual seconds that each call in a thread takes.
    """
    loop = VirtualTimeLoop(latency)
    submit = ThreadPoolExecutor.submit

    def submit_and_wait(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = submit(pool, work, *args, **kwargs)
        wait([done])
        return loop.after_work(done)

    with mock.patch.object(ThreadPoolExecutor, "submit", submit_and_wait):
        try:
            yield loop
        finally:
            _close(loop)


def _close(loop: VirtualTimeLoop) -> None:
    """Cancel remaining tasks and close the loop."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
    try:
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
