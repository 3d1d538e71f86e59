"""A generic blocking facade for asynchronous objects, which runs their methods in an event loop in a thread.

Return values are wrapped in turn: a coroutine is run to its end, an asynchronous iterator becomes an
iterator, an asynchronous context manager works with ``with``. So there is no second client to keep in step,
and it all works where a loop is already running, as in a notebook. It knows nothing of gateways.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

T = TypeVar("T")

_CLOSE_TIMEOUT = 10.0
_END: Any = object()


class EventLoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="cellgate client", daemon=True)
        thread.start()
        self._loop = loop
        self._thread = thread
        self.close = weakref.finalize(self, _stop, loop, thread)

    def run(self, awaitable: Awaitable[T]) -> T:
        """Return the awaitable's result. Ctrl-C cancels it.

        Raises RuntimeError once the loop is closed, and in a fork of the process, which has no such thread.
        """
        if not (self.close.alive and self._thread.is_alive()):
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise RuntimeError(
                "This client belongs to the process that this one was forked from: make another one"
                if self.close.alive
                else "This client is closed"
            )

        ended = threading.Event()

        async def wait() -> T:
            try:
                return await awaitable
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            # If the program ends now, what the call stops elsewhere would go on. Another Ctrl-C doesn't wait.
            ended.wait(_CLOSE_TIMEOUT)
            raise

    def finish(self, items: AsyncGenerator[Any, Any]) -> None:
        """Close an abandoned iterator. The garbage collector may do this, in any thread."""
        if threading.current_thread() is self._thread:
            # The attribute keeps the task alive: the loop has only a weak reference to it.
            self._left = self._loop.create_task(items.aclose())
        elif self.close.alive:
            self.run(items.aclose())


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if not thread.is_alive():
        # In a fork of the process, where the loop is only a copy.
        return
    asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(_CLOSE_TIMEOUT)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_CLOSE_TIMEOUT)
    loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


class Blocking:
    """The facade of one object. Any thread may use it."""

    def __init__(self, target: Any, loop: EventLoopThread) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._face(getattr(self._target, name))

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def __enter__(self) -> Any:
        entered = self._loop.run(self._target.__aenter__())
        return self if entered is self._target else self._face(entered)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._target.__aexit__(kind, error, trace))

    def _face(self, value: Any) -> Any:
        if isinstance(value, Asynchronous):
            return value.facade(value, self._loop)
        if inspect.isasyncgen(value):
            return self._iterate(value)
        if inspect.isawaitable(value):
            return self._face(self._loop.run(value))
        if inspect.ismethod(value):
            return self._method(value)
        return value

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            return self._face(method(*arguments, **options))

        return call

    def _iterate(self, items: AsyncGenerator[Any, Any]) -> Iterator[Any]:
        try:
            while True:
                item = self._loop.run(anext(items, _END))
                if item is _END:
                    return
                yield self._face(item)
        finally:
            self._loop.finish(items)


class Owning(Blocking):
    """The facade of an object that is used by itself: it may have the thread of its own."""

    _owner = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self.close()

    def close(self) -> None:
        """Stop the thread; nothing can be called afterwards."""
        if self._owner:
            self._loop.close()


class Asynchronous:
    """Base of objects that can have a blocking facade."""

    facade: ClassVar[Any] = Owning
    """The class of the facade."""

    @classmethod
    def sync(cls, *arguments: Any, **options: Any) -> Any:
        """Return the blocking facade of a new object; its methods are this class's, without ``await``.

        `close` it, or use it with ``with``, to stop its thread; the exit of the interpreter does so too. If
        an argument is a facade, the new one runs in that one's thread.
        """
        shared = next((each._loop for each in arguments if isinstance(each, Blocking)), None)
        facade = cls.facade(cls(*map(behind, arguments), **options), shared or EventLoopThread())
        facade._owner = shared is None
        return facade

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            """Say how it is used. Raises TypeError."""
            name = type(self).__name__
            raise TypeError(
                f"A {name} is for `async with`; for `with`, make a blocking one by {name}.sync(...)"
            )

        def __exit__(self, *_: object) -> None:
            """Do nothing: nothing was entered."""


def behind(value: Any) -> Any:
    """Return the object behind a blocking facade; any other value as it is."""
    return value._target if isinstance(value, Blocking) else value
