"""Keeps a database off the event loop: a connection with its own thread.

It knows no SQL (that is ``schema``) and decides nothing about when to write (that is ``journal``).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from cellgate.errors import StorageError
from cellgate.record.store.sqlite.schema import storage_error
from cellgate_kernels.base.threads import Lane

CLOSED = "The record is closed"

P = ParamSpec("P")
T = TypeVar("T")
Query = Callable[Concatenate[sqlite3.Connection, P], T]
"""A call with a connection and further arguments."""


class Database:
    """A connection and the one thread that uses it."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._lane = Lane(name, 1, self._thread)
        self._connection: sqlite3.Connection | None = None

    async def open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        """Connect. Raises the errors of `connect`."""
        loop = asyncio.get_running_loop()
        self._connection = await loop.run_in_executor(self._thread, connect)

    def run(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call `query` with the connection in the thread, after all earlier calls. Raises StorageError."""
        return asyncio.wrap_future(self._submit(query, *args, **kwargs))

    async def run_in_turn(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query as `run` does, but let principals whose calls wait take turns. Raises StorageError."""

        def call() -> T:
            return self._query(self._connection, query, *args, **kwargs)

        try:
            return await self._lane.run(call)
        except RuntimeError as error:
            if self._connection is None:
                raise StorageError(CLOSED) from error
            raise

    def start(
        self, guarded_then: Callable[[Future[T]], None], query: Query[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Like `run`, but calls `guarded_then` on the loop with the outcome, one turn of the loop sooner."""
        loop = asyncio.get_running_loop()
        running = self._submit(query, *args, **kwargs)
        running.add_done_callback(lambda done: loop.call_soon_threadsafe(guarded_then, done))

    def _submit(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        connection = self._connection
        if connection is None:
            raise StorageError(CLOSED)
        return self._thread.submit(lambda: self._query(connection, query, *args, **kwargs))

    @staticmethod
    def _query(
        connection: sqlite3.Connection | None, query: Query[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if connection is None:
            raise StorageError(CLOSED)
        try:
            return query(connection, *args, **kwargs)
        except sqlite3.Error as error:
            raise storage_error(error) from error

    async def close(self) -> None:
        """Disconnect after all running calls, and end the thread. May be called again."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()
