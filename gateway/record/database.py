"""What keeps a database off the event loop: a connection with a thread of its own, and the file's lock.

It knows no SQL (that is ``schema``) and decides nothing about when to write (that is ``journal``).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from gateway.record.errors import StorageError
from gateway.record.schema import storage_error

P = ParamSpec("P")
T = TypeVar("T")


class Database:
    """A connection and the one thread that uses it."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._connection: sqlite3.Connection | None = None

    async def open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """Connect. Raises what `connect` raises."""
        loop = asyncio.get_running_loop()
        self._connection = await loop.run_in_executor(self._thread, connect)

    def run(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a function of the connection in the thread, after all before. Raises StorageError."""
        return asyncio.wrap_future(self._submit(query, *args, **kwargs))

    def start(
        self,
        then: Callable[[Future[T]], None],
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """As `run`, but call `then` on the loop with the outcome: a turn of the loop sooner."""
        loop = asyncio.get_running_loop()
        running = self._submit(query, *args, **kwargs)
        running.add_done_callback(lambda done: loop.call_soon_threadsafe(then, done))

    def _submit(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        connection = self._connection
        if connection is None:
            raise StorageError("The record is closed")

        def call() -> T:
            try:
                return query(connection, *args, **kwargs)
            except sqlite3.Error as error:
                raise storage_error(error) from error

        return self._thread.submit(call)

    async def close(self) -> None:
        """Disconnect after all that runs, and end the thread. May be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()


def has_room(folder: Path, reserve: int) -> bool:
    """Whether the file system of `folder` has `reserve` bytes left; True where it does not say.

    One system call of microseconds on a local file system, which SQLite's WAL needs anyway.
    """
    if not reserve:
        return True
    told = os.statvfs(folder)
    return not told.f_blocks or told.f_bavail * told.f_frsize >= reserve


def lock(path: Path) -> int:
    """The descriptor that keeps the file at `path` to its holder; closing it gives the file free again.

    Raises StorageError when somebody else holds it.
    """
    beside = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"The record {path} can't be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StorageError(
            f"The record {path} is in use by another gateway; end that one, or use another data folder"
        ) from error
    return descriptor
