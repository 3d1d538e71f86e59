"""Tables in PostgreSQL: several programs may make them at once, and their version says who can use them.

The record, the users and the nodes of a cluster have tables of their own, each with its SQL: none of it is
here. What is here needs a connection alone; ``record_connection`` makes those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cellgate.errors import StorageError

PING: Final = "SELECT 1"
ONE_MOMENT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
"""The first statement of a transaction that reads from one moment."""
RECORD, USERS = 2, 3
"""The locks under which tables are made: those of the record and of its cluster, and those of users."""
_LOCK_MAKING: Final = "SELECT pg_advisory_xact_lock(1128614983, %s)"
"""Whoever makes the tables; until the end of the transaction. Its first number is "CELG"."""
_IS_MADE: Final = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'about'"
"""Not by to_regclass, which goes on saying no within the transaction that waited for whoever makes them."""

_Connection = psycopg.Connection[tuple[Any, ...]]


def lock_making(db: _Connection, lock: int) -> None:
    """Let whoever else makes or changes these tables wait until the end of the transaction."""
    db.execute(_LOCK_MAKING, (lock,))


def make_tables(db: _Connection, lock: int, tables: str) -> None:
    """Run the statements of `tables`, divided by semicolons, in a transaction that others wait for."""
    lock_making(db, lock)
    _run(db, tables)


def _run(db: _Connection, tables: str) -> None:
    for statement in tables.split(";"):
        db.execute(statement)


@dataclass(frozen=True, slots=True)
class Schema:
    """Tables with a version, in a schema of PostgreSQL that is first in the search path.

    `lock`: the number of the lock under which they are made. `note_version`: the statement that writes the
    version into the table `about`. `told` and `advice`: the words around it where another one is refused.
    """

    name: str
    lock: int
    tables: str
    note_version: str
    version: int
    told: str
    advice: str

    def is_made(self, db: _Connection) -> bool:
        """Return whether the database has the tables."""
        return db.execute(_IS_MADE, (self.name,)).fetchone() is not None

    def make(self, db: _Connection) -> None:
        """Make the tables, unless another program has just done so."""
        with db.transaction():
            lock_making(db, self.lock)
            if not self.is_made(db):
                _run(db, self.tables)
                db.execute(self.note_version, (self.version,))

    def check(self, db: _Connection) -> None:
        """Check that this version of Cellgate can use the tables. Raises StorageError."""
        row = db.execute("SELECT version FROM about").fetchone()
        version = 0 if row is None else row[0]
        if version != self.version:
            raise StorageError(
                f"{self.told} schema {version}, and this Cellgate knows only {self.version}: {self.advice}"
            )
