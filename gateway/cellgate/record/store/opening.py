"""Reads where an operator wants the record to be: SQLite in the data folder, or a database of PostgreSQL.

Nothing of PostgreSQL is imported before it is asked for: it is an extra, and SQLite needs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellgate.errors import StorageError
from cellgate_kernels.base.errors import InvalidInput, in_words

if TYPE_CHECKING:
    from cellgate.record.store.postgresql.record_connection import RecordAddress

SCHEMES = ("postgresql://", "postgres://")


def record_address(url: str) -> RecordAddress:
    """Return the address of a record in PostgreSQL.

    Raises InvalidInput for what is none, without repeating it, and StorageError when psycopg is missing.
    """
    if not url.startswith(SCHEMES):
        raise InvalidInput(
            "--record takes a database of PostgreSQL, such as postgresql://user@host/database; without it the"
            " record is in SQLite, in the data folder"
        )
    try:
        from cellgate.record.store.postgresql.record_connection import RecordAddress  # noqa: PLC0415
    except ImportError as error:
        if error.name is not None and not error.name.startswith("psycopg"):
            raise
        raise StorageError(
            "A record in PostgreSQL needs the extra: pip install 'cellgate[server,postgresql]'"
            f" ({in_words(error)})"
        ) from error
    return RecordAddress.of(url)
