"""Parses the operator's choice of a record: SQLite in the data folder, or a PostgreSQL database.

PostgreSQL's modules are imported only on demand: they are an extra, and SQLite needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellgate.errors import StorageError
from cellgate_kernels.base.errors import InvalidInput, in_words

if TYPE_CHECKING:
    from cellgate.record.store.postgresql.record_connection import RecordAddress

SCHEMES = ("postgresql://", "postgres://")


def record_address(url: str, option: str = "--record") -> RecordAddress:
    """Return the address of a record in PostgreSQL. `option`: which one it was given by.

    Raises InvalidInput for an invalid address, without repeating it; StorageError when psycopg is missing.
    """
    if not url.startswith(SCHEMES):
        raise InvalidInput(
            f"{option} takes a database of PostgreSQL, such as postgresql://user@host/database; without it"
            " the record is in SQLite, in the data folder"
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
