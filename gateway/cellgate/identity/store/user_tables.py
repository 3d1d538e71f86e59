"""The users, tokens and secrets of a cluster: tables in PostgreSQL that commands change and gateways read.

psycopg blocks, in commands or in the directory's thread. A reader's connection listens for changes, so to ask
whether there was one is a look at a socket. ``user_database`` has the changes and the questions,
``user_statements`` all SQL; ``interface`` says what all of it is for.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from cellgate.errors import NotFound, StorageError
from cellgate.identity.secrets import SecretKey
from cellgate.identity.store import user_statements as statements
from cellgate.identity.store.interface import Act, Everybody, UserReader
from cellgate.identity.store.user_database import Row, UserDatabase, token_row
from cellgate.identity.store.user_file import UserFile
from cellgate.record.store.postgresql.record_connection import RecordAddress, connect
from cellgate.record.store.postgresql.schema import ONE_MOMENT, PING, USERS, Schema, make_tables
from cellgate_kernels.base.errors import in_brief

PATIENCE_SECONDS = 15.0
"""How long the answer to a statement may take; the server's own limit on waiting for others comes first."""


class UserTables(UserDatabase):
    """The tables by a connection of their own. `close` it at the end."""

    def __init__(
        self,
        address: RecordAddress,
        *,
        create: bool,
        clock: Callable[[], float] = time.time,
        by: Mapping[str, Any] | None = None,
    ) -> None:
        """Connect; with `create`, make the tables if they are missing. Raises StorageError, NotFound."""
        super().__init__(
            clock, {"by_uid": os.getuid(), "by_host": socket.gethostname()} if by is None else by
        )
        self.address = address
        self._db = connect(address, patience=PATIENCE_SECONDS)
        try:
            with self._failures("opened"):
                self._prepare(create=create)
        except BaseException:
            self._db.close()
            raise

    @classmethod
    def of_gateway(cls, address: RecordAddress) -> UserTables:
        """Connect to tables that were there when the gateway started. Raises StorageError.

        Without them a gateway makes no new ones: nobody would be left, and a backup could not be put back.
        """
        try:
            return cls(address, create=False)
        except NotFound as error:
            raise StorageError(f"The tables of users are gone from {address}") from error

    def _prepare(self, *, create: bool) -> None:
        self._db.execute(statements.SEARCH_PATH)
        schema = Schema(
            "cellgate_users",
            USERS,
            statements.TABLES,
            statements.NOTE_VERSION,
            statements.SCHEMA_VERSION,
            f"The users in {self.address} have",
            "use the version of Cellgate that made them",
        )
        if not schema.is_made(self._db):
            if not create:
                raise NotFound(f"There are no users yet ({self.address}); cellgate user add makes one")
            schema.make(self._db)
        schema.check(self._db)
        if self._db.execute(statements.HAS_MAKERS).fetchone() is None:
            with self._db.transaction():
                make_tables(self._db, USERS, statements.ADD_MAKERS)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._db.close()

    def _rows(self, statement: str, *values: object) -> list[Row]:
        return self._db.execute(statement.replace("?", "%s"), values).fetchall()

    def _write(self, statement: str, *values: object) -> int:
        return self._db.execute(statement.replace("?", "%s"), values).rowcount

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._db.transaction():
            self._db.execute(statements.BEGIN_CHANGE)
            yield
            self._db.execute(statements.NOTIFY)

    @contextmanager
    def _failures(self, action: str) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, ValueError, msgspec.MsgspecError) as error:
            told = in_brief(error).strip().splitlines()
            unknown = " (or has been: look whether it was)" if action == "changed" and self._db.closed else ""
            raise StorageError(
                f"The users in {self.address} can't be {action}{unknown}: {told[0] if told else 'no answer'}"
            ) from error

    # ---- for readers --------------------------------------------------------------------------------------

    def listen(self, changed: Callable[[], None]) -> int:
        """Have `changed` called when an answer brings news of a change; return the socket it comes by."""
        with self._failures("read"):
            self._db.add_notify_handler(lambda _: changed())
            self._db.execute(statements.LISTEN)
            return self._db.fileno()

    def changes(self) -> tuple[str, str]:
        """Return two values: one changes with users, tokens or secrets, the other with ended sign-ins."""
        return self._read(lambda row: (row[0], row[1]), statements.CHANGES)[0]

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Read from one moment."""
        with self._failures("read"), self._db.transaction():
            self._db.execute(ONE_MOMENT)
            yield

    def ended_sign_ins(self) -> frozenset[bytes]:
        """Return the digests of sign-ins that have been ended before their time."""
        return frozenset(self._read(lambda row: bytes(row[0]), statements.ENDED_SIGN_INS))

    # ---- for sign-ins -------------------------------------------------------------------------------------

    def lives(self) -> bool:
        """Return whether the server answers by this connection."""
        try:
            self._db.execute(PING)
        except psycopg.Error:
            return False
        return True

    def use_ticket(self, value: bytes, until: float, now: float) -> bool:
        """Note that the ticket with this digest was used; return whether it was the first time."""
        with self._failures("changed"):
            asked = {"digest": value, "until": until, "now": now}
            return self._db.execute(statements.USE_TICKET, asked).fetchone() is not None

    def end_sign_ins(self, digests: Collection[bytes], until: float, now: float) -> None:
        """Note that the sign-ins with these digests are over."""
        asked = {"digests": list(digests), "untils": [until] * len(digests), "now": now}
        with self._failures("changed"), self._db.transaction():
            if self._db.execute(statements.END_SIGN_INS, asked).rowcount:
                self._db.execute(statements.NOTIFY)

    # ---- for the start, and for moving users in -----------------------------------------------------------

    def has_key(self) -> bool:
        """Return whether a gateway with these users has set their key."""
        with self._failures("opened"):
            return self._rows(statements.KEY_MARK)[0][0] is not None

    def check_key(self, key: SecretKey, where: Path) -> None:
        """Check that all gateways with these users have this key, as the first one has set it.

        `where`: the file that it is from. Raises StorageError.
        """
        with self._failures("opened"):
            self._write(statements.MARK_KEY, key.mark)
            ((mark,),) = self._rows(statements.KEY_MARK)
        if mark != key.mark:
            raise StorageError(
                f"{where} is not the key that the other gateways of the cluster have ({self.address}): give"
                " all of them a copy of one file, by --cluster-key FILE"
            )

    def move_in(self, file: UserFile) -> int:
        """Copy all of a file's users, tokens, secrets and acts into tables that have none; return the users.

        All or nothing. Raises StorageError.
        """
        with self._failures("changed"), self._changing():
            if not self._rows(statements.IS_EMPTY)[0][0]:
                raise StorageError(f"There are users in {self.address} already; nothing was moved")
            users = file.users()
            self._add_all(
                statements.MOVE_USER,
                ((user.name, user.role.value, user.disabled, user.created_at) for user in users),
            )
            self._add_all(statements.ADD_TOKEN.replace("?", "%s"), map(token_row, file.tokens()))
            boxes = ((box.user, box.name, box.box, box.former, box.set_at) for box in file.secrets())
            self._add_all(statements.MOVE_SECRET, boxes)
            after = 0
            while acts := file.acts(after):
                rows = ((act.seq, act.at, msgspec.json.encode(act.fields)) for act in acts)
                self._add_all(statements.MOVE_ACT, rows)
                after = acts[-1].seq
            self._db.execute(statements.CONTINUE_ACTS)
        return len(users)

    def _add_all(self, statement: str, rows: Iterable[Row]) -> None:
        with self._db.cursor() as cursor:
            cursor.executemany(statement, list(rows))


class UserTablesReader(UserReader):
    """Reads the tables; `key` opens the secrets. `stamp` is one system call; the rest is for one thread."""

    def __init__(self, address: RecordAddress, key: SecretKey) -> None:
        self._address = address
        self._key = key
        self._tables: UserTables | None = None
        self._everybody = Everybody()
        self._seen: tuple[str, str] | None = None
        self._socket: select.poll | None = None
        self._reads = False
        self._arrivals = self._settled = 0
        """The number of times that news has arrived, and the number of those that a reading has begun for."""

    def stamp(self, *, settled: bool = False) -> int:
        if settled:
            self._settled = self._arrivals
            return self._settled
        arriving = self._socket  # which the reading thread may take away
        # Between two statements the server sends nothing but news of changes, or that it ends.
        if self._arrivals == self._settled and not self._reads and arriving is not None and arriving.poll(0):
            self._arrivals += 1
        return self._arrivals

    def read(self, *, anew: bool = False) -> Everybody | None:
        self._reads = True
        try:
            return self._look(self._tables or self._connect(), anew=anew)
        except StorageError:
            self.close()
            raise
        finally:
            self._reads = False

    def _connect(self) -> UserTables:
        tables = UserTables.of_gateway(self._address)
        try:
            arriving = select.poll()
            arriving.register(tables.listen(self._note), select.POLLIN)
        except BaseException:
            tables.close()
            raise
        self._tables, self._socket = tables, arriving
        return tables

    def _note(self) -> None:
        self._arrivals += 1

    def _look(self, tables: UserTables, *, anew: bool) -> Everybody | None:
        if self._seen == tables.changes() and not anew:
            return None
        with tables.one_moment():
            seen = tables.changes()
            if anew or self._seen is None or self._seen[0] != seen[0]:
                self._everybody = Everybody(tables.users(), tables.tokens(), tables.secrets(), self._key)
            self._everybody = replace(self._everybody, ended_sign_ins=tables.ended_sign_ins())
        self._seen = seen
        return self._everybody

    def acts(self, after: int, limit: int) -> list[Act]:
        if self._tables is None:
            # No acts would say that there are none.
            raise StorageError(f"The users in {self._address} can't be read now")
        return self._tables.acts(after, limit)

    def close(self) -> None:
        self._socket = None
        if self._tables is not None:
            self._tables.close()
            self._tables = None
