"""A connection to the record in PostgreSQL with the one thread that uses it; it connects again by itself.

psycopg blocks in that thread and never on the event loop. The SQL is in ``statements``; when to write is
decided in ``store``. A server that can't be reached is a StorageError until it is back; a statement whose
answer was lost with its connection is `Undecided`: whether it was done is to be looked up. A server that
takes a statement and never answers, as one that was stopped, is given up like one that can't be reached.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg import conninfo, errors
from psycopg.abc import PQGen

from cellgate.errors import StorageError, StorageFull
from cellgate.record.store.postgresql import statements
from cellgate.record.store.postgresql.schema import PING
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import guarded
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

CLOSED = "The record is closed"
OLDEST = 150000
"""PostgreSQL 15, as libpq numbers versions."""
CONNECT_SECONDS = 5
HOLD_SECONDS = 3.0
"""How long a record that is held is tried for: a gateway that was killed a moment ago may not be gone yet."""
PAUSE_SECONDS = 0.5
"""After a failed attempt nobody tries for so long: all who wait would wait for each attempt in turn."""
ANSWER_SECONDS = 75.0
"""How long the answer to a statement may take: more than the server's own limit, which comes first."""
DOUBT_SECONDS = 10.0
"""How long an answer may take before another connection shows whether the server still answers anybody."""
LOOK_SECONDS = 5.0
"""Between two looks whether an answer takes too long, and whether the record is still held."""

_PORTS = re.compile(r"[0-9,]*")

P = ParamSpec("P")
T = TypeVar("T")


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of psycopg. `asked_at`: since when it waits for an answer, by the monotonic clock.

    `patience`: the seconds after which it gives an answer up by itself; None: others call `give_up`.
    """

    asked_at: float | None = None
    patience: float | None = None

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Wait for an answer, and note since when."""
        self.asked_at = time.monotonic()
        try:
            answer = gen if self.patience is None else self._within(gen, self.asked_at + self.patience)
            return super().wait(answer, *args, **kwargs)
        finally:
            self.asked_at = None

    def _within(self, gen: PQGen[T], until: float) -> PQGen[T]:
        """Wait as `gen` does, but lose the connection at `until`; psycopg looks ten times a second."""
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= until:
                    self.give_up()
                wanted = gen.send(ready)
        except StopIteration as done:
            answer: T = done.value
            return answer

    def give_up(self) -> None:
        """End a wait for an answer, from another thread: the connection is lost to the one that waits."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)


Connection = TimedConnection
Query = Callable[Concatenate[Connection, P], T]
"""What is asked of a connection, with arguments of its own."""


class Undecided(StorageError):
    """The connection was lost before the answer came: the statement may have been done."""


class Hold(Enum):
    """How a connection holds the record as long as it lives: against all others, or against such a holder."""

    ALONE = statements.LOCK_ALONE
    SHARED = statements.LOCK_SHARED
    NOT = ""


@dataclass(frozen=True, slots=True)
class RecordAddress:
    """Where a record is. `parameters` are libpq's and may have a password; the text of it has none."""

    parameters: dict[str, Any]

    @classmethod
    def of(cls, url: str) -> RecordAddress:
        """Read a URL or a connection string of libpq. Raises StorageError, which does not repeat it."""
        try:
            found = conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            # The error's own words would repeat a part of it, in which there may be a password.
            raise StorageError(
                "The record's address is none that PostgreSQL knows; it is like postgresql://user@host/database"
            ) from None
        user = url.partition("://")[2].partition("?")[0].rpartition("@")[0]
        if "/" in user or "@" in user or not _PORTS.fullmatch(str(found.get("port") or "")):
            # A part of a password would be taken for a host, a port or a database, and be shown as such.
            raise StorageError(
                "The record's address is none that PostgreSQL knows: a port is a number, and in a user, a"
                " password and a database / is written %2F and @ is written %40"
            )
        return cls(found)

    def __repr__(self) -> str:
        return f"RecordAddress({self})"

    def __str__(self) -> str:
        found = self.parameters
        host = found.get("host") or found.get("hostaddr") or "the local socket"
        port = f":{found['port']}" if found.get("port") else ""
        return f"database {found.get('dbname') or found.get('user') or 'of the user'} at {host}{port}"


def connect(address: RecordAddress, hold: Hold = Hold.NOT, *, patience: float | None = None) -> Connection:
    """Return a connection to a server that can keep a record. Raises StorageError.

    `patience`: that of the connection. Without it, too, the server must answer the first statements in time.
    """
    try:
        db = Connection.connect(**_given(address), autocommit=True, prepare_threshold=2)
    except psycopg.Error as error:
        raise StorageError(f"PostgreSQL can't be reached ({address}): {_brief(error)}") from error
    db.patience = ANSWER_SECONDS if patience is None else patience
    try:
        _prepare(db, address, hold)
    except psycopg.Error as error:
        db.close()
        raise storage_error(error) from error
    except BaseException:
        db.close()
        raise
    db.patience = patience
    return db


def _given(address: RecordAddress) -> dict[str, Any]:
    given = {"connect_timeout": CONNECT_SECONDS, "application_name": "cellgate", **address.parameters}
    given |= {"client_encoding": "UTF8", "keepalives_idle": 10, "keepalives_interval": 5}
    return given | {"keepalives_count": 3, "tcp_user_timeout": 20_000}


def is_silent(address: RecordAddress) -> bool:
    """Return whether the server answers no new connection: not even by a refusal, as of one too many."""
    try:
        psycopg.connect(**{**_given(address), "connect_timeout": CONNECT_SECONDS}).close()
    except errors.ConnectionTimeout:
        return True
    except psycopg.Error:
        return False
    return False


def _prepare(db: Connection, address: RecordAddress, hold: Hold) -> None:
    version = db.info.server_version
    if version < OLDEST:
        raise StorageError(
            f"PostgreSQL {version // 10000} ({address}) is too old for a record: use version 15 or newer"
        )
    names, values = zip(*statements.SETTINGS, strict=True)
    db.execute(statements.SET, (list(names), list(values)))
    encoding = _value(db, statements.ENCODING)
    if encoding != "UTF8":
        raise StorageError(
            f"The {address} has the encoding {encoding}, which can't keep every text: make one by"
            " createdb --encoding=UTF8 --template=template0"
        )
    until = time.monotonic() + HOLD_SECONDS
    while hold is not Hold.NOT and not _value(db, hold.value):
        if time.monotonic() >= until:
            raise StorageError(
                f"Another gateway, or a command, uses the record ({address}): end it, or use another database"
            )
        time.sleep(HOLD_SECONDS / 30)


def _is_over(running: Future[None] | None) -> bool:
    return running is None or running.done()


def _ping(db: Connection) -> None:
    db.execute(PING)


def first_row(db: Connection, statement: str, asked: Mapping[str, object]) -> tuple[Any, ...] | None:
    """Return the first row of a statement that is often asked; None if it has none."""
    return db.execute(statement, asked, prepare=True).fetchone()


def all_rows(db: Connection, statement: str, asked: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Return all rows of a statement that is often asked."""
    return db.execute(statement, asked, prepare=True).fetchall()


def execute(db: Connection, statement: str, asked: Mapping[str, object]) -> None:
    """Execute a statement, without a look at what it returns."""
    db.execute(statement, asked)


def _value(db: Connection, statement: str) -> Any:
    row = db.execute(statement).fetchone()
    assert row is not None
    return row[0]


def storage_error(error: psycopg.Error) -> StorageError:
    """Return a database error as the rest of the gateway sees it."""
    if isinstance(error, errors.DiskFull):
        return StorageFull("There is no space left for the record on the disk of its PostgreSQL server")
    if isinstance(error, errors.InsufficientPrivilege | errors.InvalidSchemaName):
        return StorageError(
            f"PostgreSQL refuses the gateway's user: {_brief(error)}. It needs the right to create a schema"
            " in the database, or to use the schema cellgate with all that is in it"
        )
    return StorageError(f"The record's database failed: {_brief(error)}")


def _brief(error: psycopg.Error) -> str:
    """Return the first line of an error in words, without what it was about."""
    lines = in_words(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class RecordConnection:
    """A connection and its thread. The first connection is made by `open`, others when they are needed."""

    def __init__(self, address: RecordAddress, name: str, hold: Hold = Hold.NOT) -> None:
        self._address = address
        self._hold = hold
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._lane = Lane(name, 1, self._thread)
        self._doubts = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{name}-doubts")
        self._doubted: Future[None] | None = None
        self._db: Connection | None = None
        self._closed = False
        self._failure: StorageError | None = None
        self._was_open = False
        self._again = 0.0
        self.look: Callable[[Connection], None] = _ping
        """Called in the thread at intervals, if the connection holds the record."""
        self._pinged: Future[None] | None = None
        self._guarded_watch = guarded(self._watch, "watch of PostgreSQL")
        self._watching = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._guarded_watch)

    async def open(self, prepare: Callable[[Connection], T]) -> T:
        """Connect, and return what `prepare` returns of the connection. Raises StorageError."""
        return await self.run(prepare)

    def run(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call `query` in the thread, after all earlier calls. Raises StorageError and Undecided."""
        return asyncio.wrap_future(self._submit(query, *args, **kwargs))

    async def read_in_turn(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that only reads; principals whose calls wait take turns. Raises StorageError."""
        try:
            return await self._lane.run(lambda: self._twice(query, *args, **kwargs))
        except RuntimeError as error:
            if self._closed:
                raise StorageError(CLOSED) from error
            raise

    async def repeatable(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `run`, of a query that does no harm if it is done twice. Raises StorageError."""
        if self._closed:
            raise StorageError(CLOSED)
        return await asyncio.wrap_future(self._thread.submit(lambda: self._twice(query, *args, **kwargs)))

    def start(
        self, guarded_then: Callable[[Future[T]], None], query: Query[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Like `run`, but calls `guarded_then` on the loop with the outcome, one turn of the loop sooner."""
        loop = asyncio.get_running_loop()
        running = self._submit(query, *args, **kwargs)
        running.add_done_callback(lambda done: loop.call_soon_threadsafe(guarded_then, done))

    def _submit(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise StorageError(CLOSED)
        return self._thread.submit(lambda: self._call(query, *args, **kwargs))

    def _twice(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the query; once more if the connection turns out to have been lost before."""
        try:
            return self._call(query, *args, **kwargs)
        except Undecided:
            return self._call(query, *args, **kwargs)

    def _call(self, query: Query[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        db = self._connected()
        try:
            return query(db, *args, **kwargs)
        except psycopg.Error as error:
            if db.closed:
                self._db = None
                raise Undecided(f"The connection to PostgreSQL was lost: {_brief(error)}") from error
            raise storage_error(error) from error

    def _connected(self) -> Connection:
        if self._db is not None:
            return self._db
        if self._failure is not None and time.monotonic() < self._again:
            raise StorageError(self._failure.message)
        try:
            self._db = connect(self._address, self._hold)
        except StorageError as error:
            self._again = time.monotonic() + PAUSE_SECONDS
            if not self._was_open:
                raise
            if self._failure is None:
                logger.error("The record's database can't be used for now: %s", error.message)
            # Clients of the gateway are told this, and need not learn where the database is.
            self._failure = StorageError(
                "PostgreSQL, which has the record, can't be reached; the gateway's log says why"
            )
            raise self._failure from error
        self._failure = None
        self._was_open = True
        return self._db

    def _watch(self) -> None:
        """Give a connection up whose server does not answer; hold a record again whose server restarted."""
        db = self._db
        asked_at = None if db is None else db.asked_at
        if db is not None and asked_at is not None:
            waited = time.monotonic() - asked_at
            if waited >= ANSWER_SECONDS:
                db.give_up()
            elif waited >= DOUBT_SECONDS and not self._closed and _is_over(self._doubted):
                self._doubted = self._doubts.submit(self._doubt, db, asked_at)
        if self._hold is not Hold.NOT and not self._closed and _is_over(self._pinged):
            # Otherwise a gateway that writes nothing would leave the record to the next one that starts.
            self._pinged = self._thread.submit(self._twice, self.look)
        if not (self._closed and db is None):
            self._watching = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._guarded_watch)

    def _doubt(self, db: Connection, asked_at: float) -> None:
        """Give an answer up if the server answers nobody. Otherwise the statement only takes its time."""
        if is_silent(self._address) and db.asked_at == asked_at:
            db.give_up()

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                if self._hold is not Hold.NOT:
                    # Whoever comes next need not wait until the server has noticed.
                    self._db.execute(statements.UNLOCK)
                self._db.close()
            self._db = None

    async def close(self) -> None:
        """Disconnect after all running calls, and end the thread. May be called again."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
            self._watching.cancel()
        self._thread.shutdown()
        self._doubts.shutdown(wait=False)
