"""The one way to start a task: each has a name, and an owner that is told when it fails.

A bare ``asyncio.create_task`` fails silently until the garbage collector finds it, and whatever waited for
the task waits for ever. A `Supervisor` belongs to one owner (a session, a pool, a connection). It keeps the
tasks alive, tells the owner of each failure while the owner can still act on it, and ends them with the
owner. It guards callbacks of the event loop in the same way. It does not know what the tasks do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from cellgate_kernels.errors import CellgateError, GatewayFault

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Supervisor:
    """The tasks of one owner.

    `ids` are logged with each failure (``{"session": key, "kernel": id}``); it is a function because a
    session's kernel changes. `failed` is called with the task's name and error after the log line. It must
    end whatever waited for the task and leave the owner usable; an error that it raises itself is logged and
    goes no further.
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
        """Start a task that nobody has to await. Whatever it raises is told to the owner.

        `failed` is called before the owner's own; `ids` are logged besides the owner's.
        """
        return self._begin(work, name, (), failed, ids)

    def share(
        self,
        work: Coroutine[Any, Any, T],
        name: str,
        errors: tuple[type[Exception], ...] = (CellgateError,),
        **ids: object,
    ) -> asyncio.Task[T]:
        """Start a task whose result others await, by `outcome`. `errors` are theirs and are not told to the
        owner, even if none of them is left; anything else is a fault, and the owner is told as well.
        """
        return self._begin(work, name, errors, None, ids)

    async def complete(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Do work that must not be left half done: a caller that is cancelled waits for its end first.

        Errors are the caller's; the owner is told only if the caller was cancelled and can't see them.
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
        """Call `step` for ever; each call returns the seconds until the next.

        The owner is told of a call that fails, and the next follows after `pause` seconds.
        """

        async def work() -> None:
            while True:
                try:
                    seconds = await step()
                except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the owner
                    self._tell(name, error, None, {})
                    seconds = pause
                await asyncio.sleep(seconds)

        return self.start(work(), name)

    def tell(self, name: str, error: Exception) -> None:
        """Log a failure and tell the owner, as if a task of this name had failed."""
        self._tell(name, error, None, {})

    def guard(self, callback: Callable[P, object], name: str, **ids: object) -> Callable[P, None]:
        """The callback for the event loop: what it raises is told to the owner as a task's failure is."""

        def guarded(*arguments: P.args, **options: P.kwargs) -> None:
            try:
                callback(*arguments, **options)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the owner
                self._tell(name, error, None, ids)

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
            # Something that it awaited was cancelled, and that ended the task as if somebody had wanted it.
            error = GatewayFault("The task ended because something that it awaited was cancelled")
        elif (error := task.exception()) is None or isinstance(error, expected):
            return
        if isinstance(error, Exception):  # KeyboardInterrupt and SystemExit end the loop by themselves
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
        except Exception as further:  # any fault at all: the loop's callback must not raise
            logger.error("What waited for task %r was not ended", name, exc_info=further, extra=known)
        try:
            if self._failed is not None:
                self._failed(name, error)
        except Exception as further:  # any fault at all: the loop's callback must not raise
            logger.error("The owner of task %r failed too", name, exc_info=further, extra=known)

    def _known_ids(self) -> dict[str, object]:
        try:
            return dict(self._ids())
        except Exception as error:  # any fault at all: the failure itself must be logged
            logger.error("The owner of a task can't say who it is", exc_info=error)
            return {}

    def _others(self) -> Collection[asyncio.Task[Any]]:
        """All but the task that asks: it can't wait for itself."""
        return self._tasks - {asyncio.current_task()}

    async def finished(self) -> None:
        """Return when no task is left, but for the caller's own."""
        while others := self._others():
            await asyncio.wait(others)

    async def cancel(self) -> None:
        """Cancel all tasks and return when they have ended; the caller's own goes on."""
        for task in self._others():
            task.cancel()
        await self.finished()


def guarded(
    callback: Callable[P, object],
    name: str,
    failed: Callable[[Exception], None] | None = None,
    **ids: object,
) -> Callable[P, None]:
    """As `Supervisor.guard`, where a log line and a call of `failed` are all that can be done."""

    def guarded_callback(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            callback(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
            # Made only now: a quick cell has ten such callbacks.
            Supervisor()._tell(name, error, failed, ids)

    return guarded_callback


async def outcome(task: asyncio.Task[T], cancelled: Callable[[], CellgateError]) -> T:
    """The result of a shared task; who waits for it and is cancelled leaves it alone.

    Raises the task's CellgateError, `cancelled()` if its owner cancelled it, and GatewayFault for a mistake
    of ours that its owner has logged.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise cancelled()
    error = task.exception()
    if error is None or isinstance(error, CellgateError):
        return task.result()
    raise GatewayFault() from error
