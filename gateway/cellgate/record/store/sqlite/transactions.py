"""A transaction, a read snapshot, and a savepoint, which may fail alone. For all modules with SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit all writes inside, or none."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite rolls back on its own when the disk is full.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """Read from one moment. Keep it short: it keeps the database's log from being reset."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


@contextmanager
def savepoint(db: sqlite3.Connection) -> Iterator[None]:
    """Keep all writes inside, as a part of a transaction, or none of them."""
    db.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK TO part")
        raise
    finally:
        if db.in_transaction:
            db.execute("RELEASE part")
