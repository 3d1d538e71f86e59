"""The one way to start a task: each has a name, and an owner that is notified when it fails.

A bare ``asyncio.create_task`` fails silently until the garbage collector finds it, and whatever waited for
the task waits forever. A `Supervisor` belongs to one owner (a session, a pool, a connection). It keeps the
tasks alive, reports each failure to the owner while the owner can still act on it, and ends the tasks with
the owner. It guards callbacks of the event loop in the same way. It does not know what the tasks do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from cellgate_kernels.base.errors import CellgateError, GatewayFault

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Supervisor:
    """The tasks of one owner.

    `ids` are logged with each failure (``{"session": key, "kernel": id}``); it is a function because a
    session's kernel changes. `failed` is called with the task's name and error after the log line. It must
    end whatever waited for the task and leave the owner usable; its own errors are only logged.
    """

    def __init__(
        self,
        ids: Callable[[], Mapping[str, object]] = dict,
        failed: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self._ids = ids
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._tasks))

    def start(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        failed: Callable[[Exception], None] | None = None,
        **ids: object,
    ) -> asyncio.Task[T]:
        """Start a task that nobody has to await. Any error is reported to the owner.

        `failed` is called before the owner's; `ids` are logged along with the owner's.
        """
        return self._begin(work, name, (), failed, ids)

    def share(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        errors: tuple[type[Exception], ...] = (CellgateError,),
        **ids: object,
    ) -> asyncio.Task[T]:
        """Start a task whose result others await with `outcome`. `errors` are theirs and are not reported to
        the owner, even if nobody awaits any more; any other error is reported to the owner too.
        """
        return self._begin(work, name, errors, None, ids)

    async def complete(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Do work that must not be left half done: a cancelled caller waits for its end first.

        The caller gets errors; they are reported to the owner only if the caller was cancelled.
        """
        task = self._begin(work, name, (Exception,), None, {})
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as request:
                cancelled = request
        if cancelled is None:
            return task.result()
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._tell(name, error, None, {})
        raise cancelled

    def repeat(self, step: Callable[[], Awaitable[float]], name: str, *, pause: float) -> asyncio.Task[None]:
        """Call `step` forever; each call returns the seconds until the next.

        A failing call is reported to the owner, and the next follows after `pause` seconds.
        """

        async def work() -> None:
            while True:
                try:
                    seconds = await step()
                except Exception as error:  # noqa: BLE001 - any error is reported to the owner
                    self._tell(name, error, None, {})
                    seconds = pause
                await asyncio.sleep(seconds)

        return self.start(work(), name)

    def tell(self, name: str, error: Exception, failed: Callable[[Exception], None] | None = None) -> None:
        """Log a failure and report it to the owner, as if a task of this name had failed."""
        self._tell(name, error, failed, {})

    def guard(
        self,
        callback: Callable[P, object],
        name: str,
        failed: Callable[[Exception], None] | None = None,
        **ids: object,
    ) -> Callable[P, None]:
        """Wrap a callback for the event loop: errors are reported to the owner as a task's are."""

        def guarded(*arguments: P.args, **options: P.kwargs) -> None:
            try:
                callback(*arguments, **options)
            except Exception as error:  # noqa: BLE001 - any error is reported to the owner
                self._tell(name, error, failed, ids)

        return guarded

    def _begin(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        expected: tuple[type[Exception], ...],
        failed: Callable[[Exception], None] | None,
        ids: Mapping[str, object],
    ) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(task, name, expected, failed, ids))
        return task

    def _ended(
        self,
        task: asyncio.Task[Any],
        name: str,
        expected: tuple[type[Exception], ...],
        failed: Callable[[Exception], None] | None,
        ids: Mapping[str, object],
    ) -> None:
        self._tasks.discard(task)
        error: BaseException | None
        if task.cancelled():
            if task.cancelling():
                return
            # Nobody cancelled the task itself: something that it awaited was cancelled, and that ended it.
            error = GatewayFault("The task ended because something that it awaited was cancelled")
        else:
            error = task.exception()
            if error is None or isinstance(error, expected):
                return
        if isinstance(error, Exception):  # KeyboardInterrupt and SystemExit end the loop without help
            self._tell(name, error, failed, ids)

    def _tell(
        self,
        name: str,
        error: Exception,
        failed: Callable[[Exception], None] | None,
        ids: Mapping[str, object],
    ) -> None:
        known = {"task": name, **self._known_ids(), **ids}
        logger.error("Task %r failed", name, exc_info=error, extra=known)
        try:
            if failed is not None:
                failed(error)
        except Exception as further:  # any error: the loop's callback must not raise
            logger.error("The waiters of task %r were not released", name, exc_info=further, extra=known)
        try:
            if self._failed is not None:
                self._failed(name, error)
        except Exception as further:  # any error: the loop's callback must not raise
            logger.error("The owner of task %r failed too", name, exc_info=further, extra=known)

    def _known_ids(self) -> dict[str, object]:
        try:
            return dict(self._ids())
        except Exception as error:  # any error: the failure itself must still be logged
            logger.error("The ids of a task's owner could not be read", exc_info=error)
            return {}

    def _others(self) -> Collection[asyncio.Task[Any]]:
        """Return all tasks but the calling one, which can't wait for itself."""
        return self._tasks - {asyncio.current_task()}

    async def finished(self) -> None:
        """Return when no task is left except the caller's own."""
        while others := self._others():
            await asyncio.wait(others)

    async def cancel(self) -> None:
        """Cancel all tasks and return when they have ended; the caller's own continues."""
        for task in self._others():
            task.cancel()
        await self.finished()


def guarded(
    callback: Callable[P, object], name: str, failed: Callable[[Exception], None] | None = None, **ids: object
) -> Callable[P, None]:
    """Guard a callback as `Supervisor.guard` does, where errors can only be logged and passed to `failed`."""

    def guarded_callback(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            callback(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - any error is logged
            # Created only on failure: a quick cell has ten of these callbacks.
            Supervisor()._tell(name, error, failed, ids)

    return guarded_callback


async def outcome(task: asyncio.Task[T], cancelled: Callable[[], CellgateError]) -> T:
    """Return the result of a shared task; cancelling the wait does not cancel the task.

    Raises the task's CellgateError, `cancelled()` if its owner cancelled it, and GatewayFault for an internal
    one.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise cancelled()
    error = task.exception()
    if error is None or isinstance(error, CellgateError):
        return task.result()
    raise GatewayFault() from error


async def until(condition: Callable[[], bool], progress: asyncio.Event) -> None:
    """Return when a condition holds, which is checked whenever `progress` is set."""
    while not condition():
        progress.clear()
        await progress.wait()
