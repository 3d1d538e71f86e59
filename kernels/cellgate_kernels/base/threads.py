"""Threads for blocking work, in separate pools, so that one kind of work can't hold up another.

A `Lane` is one named pool of limited size. When all of its threads work, those for whom calls wait take turns
(``turns``), so nobody waits for many of another's. `ThreadLanes` are those of a gateway: work for a kernel
and its cells never waits for clients' files, and those never wait for hashing. The lane of the cells is also
the loop's default pool, which ``asyncio.to_thread`` uses, so use ``to_thread`` only on a cell's path. A lane
does not know what the work is and can't interrupt it: long work checks a flag of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.base.turns import Claimant, TurnOrder

FURTHER_THREADS = 16
"""Threads of the lane of cells for work that belongs to no single kernel; they are created on demand."""

_WHOSE: contextvars.ContextVar[str] = contextvars.ContextVar("whose work it is", default="")

P = ParamSpec("P")
T = TypeVar("T")


def work_for(name: str) -> None:
    """Set the principal for the thread work of the present task, and of tasks that it starts, from now on."""
    _WHOSE.set(name)


class Lane:
    """A pool of at most `workers` threads, or of `executor`'s; principals with waiting calls take turns.

    Its queue has no limit: every caller waits for its result, and requests and kernels are limited.
    """

    def __init__(self, name: str, workers: int, executor: ThreadPoolExecutor | None = None) -> None:
        self.name = name
        self._executor = executor or ThreadPoolExecutor(workers, thread_name_prefix=f"cellgate-{name}")
        self._free = workers
        self._line: TurnOrder[asyncio.Future[None]] = TurnOrder()
        self._guarded_leave = guarded(self._leave, "a thread that is free again")

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` in a thread. If the caller is cancelled, a call that has started runs on unobserved.

        It has its thread until then: who is cancelled again and again has no more threads than others.
        """
        context = contextvars.copy_context()
        call = partial(context.run, work, *args, **kwargs)
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            await self._turn(loop)
        try:
            running = self._executor.submit(call)
        except BaseException:
            self._leave()
            raise
        result = asyncio.wrap_future(running)
        result.add_done_callback(partial(self._done, loop, running))
        return await result

    def _done(self, loop: asyncio.AbstractEventLoop, running: Future[T], _: object) -> None:
        """Free the thread, unless the call's caller was cancelled: the call is still running then."""
        if running.done():
            self._leave()
        else:
            running.add_done_callback(partial(self._leave_later, loop))

    def _leave_later(self, loop: asyncio.AbstractEventLoop, _: object) -> None:
        with suppress(RuntimeError):  # the loop may be over
            loop.call_soon_threadsafe(self._guarded_leave)

    async def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return when this call has a thread."""
        turn = loop.create_future()
        self._line.add(Claimant(_WHOSE.get()), turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            elif not turn.cancelled():
                # The call got its turn in the same moment.
                self._leave()
            raise

    def _leave(self, _: object = None) -> None:
        """Give a free thread to the next call in line."""
        while (turn := self._line.first()) is not None:
            self._line.take(turn)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def be_default(self) -> None:
        """Make this lane the running loop's pool for ``asyncio.to_thread``; the loop then closes it."""
        asyncio.get_running_loop().set_default_executor(self._executor)

    def close(self) -> None:
        """Drop waiting calls. Threads end when they have finished their current call."""
        for turn in tuple(self._line.order()):
            turn.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)


class ThreadLanes:
    """The lanes of one gateway; ``channels.frame_log`` has a further one.

    `cells`: kernels, workspaces and results of cells, a thread for each of the `kernels` that may exist.
    `record`: encoding and hashing of large events. `texts`: decoding and encoding of clients' large texts.
    `files`: uploads and downloads. `bulk`: hashing for listings. `lookups`: names of hosts that sessions
    connect to. `sleep`: kernels that fall asleep, which may wait for a disk; two at a time.
    """

    def __init__(self, kernels: int) -> None:
        self.cells = Lane("cells", kernels + FURTHER_THREADS)
        self.record = Lane("record", 2)
        self.texts = Lane("texts", 2)
        self.files = Lane("files", 8)
        self.bulk = Lane("bulk", 2)
        self.lookups = Lane("lookups", 16)
        self.sleep = Lane("sleep", 2)

    def close(self) -> None:
        """Close all lanes except that of the cells, which the loop closes."""
        for lane in (self.record, self.texts, self.files, self.bulk, self.lookups, self.sleep):
            lane.close()
