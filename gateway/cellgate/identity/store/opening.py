"""Opens the users of a data folder, wherever they are kept: the one place that chooses the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cellgate.identity.store.interface import UserReader, UserStore
from cellgate.identity.store.user_file import PRINCIPALS, UserFile, UserFileReader


@contextmanager
def open_users(data_dir: Path, *, create: bool = False) -> Iterator[UserStore]:
    """Open the store until the context ends; with `create`, it is made. Raises StorageError, NotFound."""
    with closing(UserFile(data_dir / PRINCIPALS, create=create)) as store:
        yield store


def reader_of_users(data_dir: Path) -> UserReader:
    """Return what reads the users of this data folder, which may have none yet."""
    return UserFileReader(data_dir / PRINCIPALS)
