"""The file of users keeps the contract of stores of users, and what is of a file alone."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from cellgate.errors import Conflict, NotFound, StorageError
from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store import user_database
from cellgate.identity.store.interface import UserReader, UserStore
from cellgate.identity.store.opening import open_users, reader_of_users
from cellgate.identity.store.user_file import PRINCIPALS, UserFile
from cellgate.testing.user_store import UserReaderContract, UserStoreContract

SCOPES = frozenset({Permission.RUN, Permission.READ})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / PRINCIPALS


@pytest.fixture
def store(path: Path) -> Iterator[UserStore]:
    with open_users(path.parent, create=True) as store:
        yield store


@pytest.fixture
def reader(path: Path) -> Iterator[UserReader]:
    with closing(reader_of_users(path.parent)) as reader:
        yield reader


class TestUserFile(UserStoreContract):
    """The fixture is the module's."""


class TestUserFileReader(UserReaderContract):
    """The fixtures are the module's."""


def test_only_its_owner_can_read_the_file(store: UserStore, path: Path) -> None:
    store.add_user("ada", Role.USER)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_is_kept_as_a_digest_only(store: UserStore, path: Path) -> None:
    store.add_user("ada", Role.USER)
    token, text = store.create_token("ada", reach=Reach())
    assert token.id in text
    content = path.read_bytes()
    assert text.encode() not in content
    assert text.split("_", 2)[2].encode() not in content


def test_useless_tokens_make_room_and_used_ones_do_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_database, "MOST_TOKENS", 2)
    time = 1000.0
    with closing(UserFile(path, create=True, clock=lambda: time)) as store:
        store.add_user("ada", Role.USER)
        store.create_token("ada", reach=Reach(), expires_at=1001.0)
        store.create_token("ada", reach=Reach())
        with pytest.raises(Conflict, match="token revoke"):
            store.create_token("ada", reach=Reach())
        time = 1002.0
        store.create_token("ada", reach=Reach())
        assert [token.expires_at for token in store.tokens()] == [None, None]


def test_another_process_sees_a_new_version(store: UserStore, path: Path) -> None:
    with closing(UserFile(path, create=False)) as reader:
        before = reader.version()
        assert reader.version() == before
        store.add_user("ada", Role.USER)
        assert reader.version() != before


def test_commands_at_once_lose_nothing(path: Path) -> None:
    with open_users(path.parent, create=True):
        pass

    def add(number: int) -> None:
        with open_users(path.parent) as store:
            store.add_user(f"user-{number}", Role.USER)

    with ThreadPool(8) as pool:
        pool.map(add, range(40))
    with open_users(path.parent) as store:
        assert len(store.users()) == 40
        assert len(store.acts(0)) == 40


def test_a_file_that_is_not_there_is_not_made_by_reading(path: Path) -> None:
    with pytest.raises(NotFound, match="cellgate user add"), open_users(path.parent):
        pass
    assert not path.exists()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough", b"SQLite format 3\0" + b"\xff" * 200]
)
def test_a_damaged_file_is_named(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StorageError, match=PRINCIPALS), open_users(path.parent):
        pass


def test_a_file_of_the_version_before_gets_the_makers_of_tokens(path: Path) -> None:
    with open_users(path.parent, create=True) as store:
        store.add_user("ada", Role.USER)
        old = store.create_token("ada", reach=Reach())[0]
        store._db.execute("ALTER TABLE tokens DROP COLUMN made_by")
        store._db.execute("PRAGMA user_version = 2")
    with open_users(path.parent) as store:
        made = store.create_token("ada", reach=Reach(), made_by=old.id)[0]
        assert [token.made_by for token in store.tokens()] == [None, old.id]
        assert store.revoke_token(old.id)[-1].id == made.id


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="newer version"), open_users(path.parent):
        pass
    assert path.read_bytes() == before


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError), open_users(path.parent, create=True):
        pass
    assert not (tmp_path / "elsewhere").exists()
