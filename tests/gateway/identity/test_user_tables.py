"""The users of a cluster, in a real PostgreSQL server, keep the contract of stores and readers of users."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

import psycopg
import pytest

from cellgate.errors import Conflict, NotFound, StorageError
from cellgate.identity.directory import PATIENCE_SECONDS, PrincipalDirectory
from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.secrets import SECRET_KEY, SecretKey, load_secret_key
from cellgate.identity.store import user_database, user_tables
from cellgate.identity.store.interface import UserReader, UserStore
from cellgate.identity.store.opening import (
    ClusterUsers,
    UsersPlace,
    move_users,
    open_users,
    open_users_at,
    secret_key,
    users_of_cluster,
)
from cellgate.identity.store.sign_in_tables import SignInTables
from cellgate.identity.store.user_file import PRINCIPALS
from cellgate.identity.store.user_tables import UserTables, UserTablesReader
from cellgate.identity.tokens import digest
from cellgate.record.store.postgresql.record_connection import RecordAddress
from cellgate.testing.user_store import UserReaderContract, UserStoreContract
from tests.core.identity.test_directory import SlowReading, Told
from tests.pure.record.conftest import eventually
from tests.support.clock import Clock
from tests.support.postgresql import PostgresServer
from tests.support.server import until

KEY = SecretKey(b"k" * 32)


@pytest.fixture
def address(database: str) -> RecordAddress:
    return RecordAddress.of(database)


@pytest.fixture
def place(database: str, tmp_path: Path) -> UsersPlace:
    """A data folder without users, and a database without tables."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    return UsersPlace(folder, database)


@pytest.fixture
def store(address: RecordAddress) -> Iterator[UserStore]:
    with closing(UserTables(address, create=True)) as store:
        yield store


@pytest.fixture
def reader(address: RecordAddress) -> Iterator[UserReader]:
    with closing(UserTablesReader(address, KEY)) as reader:
        yield reader


class TestUserTables(UserStoreContract):
    """The fixture is the module's."""


class TestUserTablesReader(UserReaderContract):
    """The fixtures are the module's."""


def content(database: str) -> str:
    """All that is in the tables, as PostgreSQL writes it."""
    with closing(psycopg.connect(database)) as db:
        names = db.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'cellgate_users'"
        )
        tables = [name for (name,) in names]
        rows = [db.execute(f"SELECT * FROM cellgate_users.{name}").fetchall() for name in tables]  # type: ignore[arg-type]
    assert "tokens" in tables
    return repr(rows)


def test_a_token_is_kept_as_a_digest_only(store: UserStore, database: str) -> None:
    store.add_user("ada", Role.USER)
    token, text = store.create_token("ada", reach=Reach())
    kept = content(database)
    assert token.id in kept
    assert text.split("_", 2)[2] not in kept


def test_useless_tokens_make_room_and_used_ones_do_not(
    address: RecordAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_database, "MOST_TOKENS", 2)
    now = 1000.0
    with closing(UserTables(address, create=True, clock=lambda: now)) as store:
        store.add_user("ada", Role.USER)
        store.create_token("ada", reach=Reach(), expires_at=1001.0)
        store.create_token("ada", reach=Reach())
        with pytest.raises(Conflict, match="token revoke"):
            store.create_token("ada", reach=Reach())
        now = 1002.0
        store.create_token("ada", reach=Reach())
        assert [token.expires_at for token in store.tokens()] == [None, None]


def test_commands_at_once_lose_nothing(place: UsersPlace) -> None:
    """The first of them makes the tables."""

    def add(number: int) -> None:
        with open_users_at(place, create=True) as store:
            store.add_user(f"user-{number}", Role.USER)

    with ThreadPool(8) as pool:
        pool.map(add, range(24))
    with open_users_at(place) as store:
        assert len(store.users()) == 24
        assert [act.seq for act in store.acts(0)] == [*range(1, 25)]


def test_tables_that_are_not_there_are_not_made_by_reading(place: UsersPlace) -> None:
    with pytest.raises(NotFound, match="cellgate user add"), open_users_at(place):
        pass
    with closing(psycopg.connect(place.cluster)) as db:
        assert db.execute("SELECT to_regnamespace('cellgate_users')").fetchone() == (None,)


def test_tables_of_the_version_before_get_the_makers_of_tokens(address: RecordAddress, database: str) -> None:
    with closing(UserTables(address, create=True)) as store:
        store.add_user("ada", Role.USER)
        old = store.create_token("ada", reach=Reach())[0]
    with closing(psycopg.connect(database, autocommit=True)) as db:
        db.execute("ALTER TABLE cellgate_users.tokens DROP COLUMN made_by")
    with (
        closing(UserTables(address, create=False)) as store,
        closing(UserTables(address, create=False)) as other,
    ):
        made = store.create_token("ada", reach=Reach(), made_by=old.id)[0]
        assert [token.made_by for token in other.tokens()] == [None, old.id]
        assert other.revoke_token(old.id)[-1].id == made.id


def test_tables_of_a_newer_version_are_left_alone(store: UserStore, place: UsersPlace) -> None:
    with closing(psycopg.connect(place.cluster, autocommit=True)) as db:
        db.execute("UPDATE cellgate_users.about SET version = 99")
    with pytest.raises(StorageError, match="have schema 99"), open_users_at(place):
        pass


def test_a_server_that_can_not_be_reached_is_named(tmp_path: Path) -> None:
    nowhere = UsersPlace(tmp_path, f"postgresql://cellgate:secret@/users?host={tmp_path}")
    with pytest.raises(StorageError, match="PostgreSQL can't be reached") as found, open_users_at(nowhere):
        pass
    assert "secret" not in found.value.message


# ---- readers ----------------------------------------------------------------------------------------------


def test_it_looks_without_a_statement_and_hears_of_a_change(store: UserStore, reader: UserReader) -> None:
    reader.read()
    before = reader.stamp(settled=True)
    assert {reader.stamp() for _ in range(1000)} == {before}
    store.add_user("ada", Role.USER)
    until(lambda: reader.stamp() != before, "the reader hears nothing")
    assert reader.read() is not None
    reader.read()
    assert reader.stamp(settled=True) == reader.stamp()


async def test_known_logins_go_on_for_a_while_without_the_server(
    store: UserStore, address: RecordAddress, postgres_server: PostgresServer
) -> None:
    store.add_user("ada", Role.USER)
    _, text = store.create_token("ada", reach=Reach())
    clock, told = Clock(), Told()
    directory = PrincipalDirectory(UserTablesReader(address, KEY), "own", monotonic=clock)
    await directory._look(told)
    given = digest(text)
    assert directory.login(given) is not None
    postgres_server.stop()
    try:
        await directory._look(told)
        assert not directory.is_behind()
        assert directory.login(given) is not None
        clock.now += PATIENCE_SECONDS + 1
        await directory._look(told)
        assert directory.login(given) is None
        assert told.gone == []
    finally:
        postgres_server.start()
    await directory._look(told)
    assert directory.login(given) is not None
    await directory.close()


def test_a_server_that_never_answers_is_given_up(
    store: UserStore, reader: UserReader, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_tables, "PATIENCE_SECONDS", 0.5)
    store.add_user("ada", Role.USER)
    reader.read()
    assert reader.read() is None
    with closing(psycopg.connect(database)) as db:
        found = db.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'SELECT change%'"
        )
        ((pid,),) = found.fetchall()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StorageError):
            reader.read()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert reader.read() is None


async def test_a_request_that_comes_while_another_reads_waits_for_what_is_read(
    store: UserStore, address: RecordAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_user("ada", Role.USER)
    _, text = store.create_token("ada", reach=Reach())
    directory = PrincipalDirectory(UserTablesReader(address, KEY), "own")
    await directory.refresh()
    store.set_disabled("ada", disabled=True)
    await eventually(directory.is_behind)
    slow = SlowReading(directory, monkeypatch)
    first = asyncio.ensure_future(directory.catch_up())
    await asyncio.to_thread(slow.begun.wait, 30)
    assert directory.is_behind()
    second = asyncio.ensure_future(directory.catch_up())
    slow.go_on.set()
    await second
    assert directory.login(digest(text)) is None
    await first
    await directory.close()


async def test_tables_that_are_gone_remove_nobody(
    store: UserStore, address: RecordAddress, database: str
) -> None:
    """As while a backup is put back."""
    store.add_user("ada", Role.USER)
    _, text = store.create_token("ada", reach=Reach())
    told = Told()
    directory = PrincipalDirectory(UserTablesReader(address, KEY), "own")
    await directory._look(told)
    with closing(psycopg.connect(database, autocommit=True)) as db:
        db.execute("ALTER SCHEMA cellgate_users RENAME TO aside")
        for _ in range(2):
            await directory._look(told)
            assert directory.login(digest(text)) is not None
        db.execute("ALTER SCHEMA aside RENAME TO cellgate_users")
    store.set_disabled("ada", disabled=True)
    await directory._look(told)
    assert told.gone == [("ada", "user_disabled")]
    await directory.close()


async def test_a_change_is_read_before_a_request_goes_on(store: UserStore, address: RecordAddress) -> None:
    store.add_user("ada", Role.USER)
    _, text = store.create_token("ada", reach=Reach())
    directory = PrincipalDirectory(UserTablesReader(address, KEY), "own")
    await directory.refresh()
    store.set_disabled("ada", disabled=True)
    await eventually(directory.is_behind)
    assert directory.login(digest(text)) is not None
    await directory.catch_up()
    assert directory.login(digest(text)) is None
    await directory.close()


# ---- the key, and moving users in -------------------------------------------------------------------------


def test_a_gateway_with_another_key_does_not_start(place: UsersPlace, tmp_path: Path) -> None:
    found = users_of_cluster(place)
    close(found)
    other = UsersPlace(tmp_path / "other", place.cluster)
    with pytest.raises(StorageError, match="does not exist: give a copy of the key by --cluster-key"):
        users_of_cluster(other)
    assert not (other.data_dir / SECRET_KEY).exists()
    load_secret_key(place.data_dir / "another", create=True).seal("ada", "KEY", "value")
    with pytest.raises(StorageError, match="not the key that the other gateways of the cluster have"):
        users_of_cluster(replace(other, key_file=place.data_dir / "another"))
    mounted = tmp_path / "mounted"
    mounted.write_bytes((place.data_dir / SECRET_KEY).read_bytes())
    link = tmp_path / "link"
    link.symlink_to(mounted)
    named = users_of_cluster(UsersPlace(tmp_path / "third", place.cluster, link))
    assert named.key.mark == found.key.mark
    close(named)


def close(users: ClusterUsers) -> None:
    users.reader.close()
    users.ledger.close()


def test_users_move_in_as_they_are(place: UsersPlace) -> None:
    key = load_secret_key(place.data_dir / SECRET_KEY, create=True)
    with open_users(place.data_dir, create=True) as file:
        file.add_user("ada", Role.ADMIN)
        file.add_user("bob", Role.USER)
        token, text = file.create_token("ada", scopes=frozenset({Permission.RUN}), reach=Reach("a-"))
        file.create_token("bob", expires_at=9e9, reach=Reach("one", exact=True))
        file.revoke_token(token.id)
        file.set_disabled("bob", disabled=True)
        for value in ("a first value", "a second value"):
            file.set_secret("ada", "KEY", key.seal("ada", "KEY", value))
        before = file.users(), file.tokens(), file.secrets(), file.acts(0)
    with pytest.raises(StorageError, match="users of its own"):
        users_of_cluster(place)
    assert move_users(place) == 2
    assert not (place.data_dir / PRINCIPALS).exists()
    with open_users_at(place) as store:
        assert (store.users(), store.tokens(), store.secrets(), store.acts(0)) == before
        assert store.add_user("cleo", Role.USER)
        assert store.acts(before[3][-1].seq)[0].seq == before[3][-1].seq + 1
        (box,) = store.secrets("ada")
    assert secret_key(place).open("ada", "KEY", box.box) == "a second value"
    assert text.split("_", 2)[2] not in content(place.cluster)
    assert "a second value" not in content(place.cluster)
    with open_users(place.data_dir, create=True) as file:
        file.add_user("dan", Role.USER)
    with pytest.raises(StorageError, match="nothing was moved"):
        move_users(place)
    assert (place.data_dir / PRINCIPALS).exists()


# ---- sign-ins ---------------------------------------------------------------------------------------------


def test_a_ticket_is_used_once(
    store: UserStore, address: RecordAddress, postgres_server: PostgresServer
) -> None:
    ticket, until_then = digest("ticket"), time.time() + 60
    ledgers = [SignInTables(address) for _ in range(4)]

    def use(ledger: SignInTables) -> bool:
        return ledger.use_ticket(ticket, until_then)

    with ThreadPool(4) as pool:
        assert sorted(pool.map(use, ledgers)) == [False, False, False, True]
    postgres_server.stop()
    with pytest.raises(StorageError):
        use(ledgers[0])
    postgres_server.start()
    assert not use(ledgers[0])
    assert ledgers[1].use_ticket(digest("another"), until_then)
    for ledger in ledgers:
        ledger.close()


def test_ended_sign_ins_are_read_by_all_until_they_are_over(
    store: UserStore, reader: UserReader, address: RecordAddress
) -> None:
    store.add_user("ada", Role.USER)
    reader.read()
    before = reader.stamp(settled=True)
    now = 1000.0
    with closing(SignInTables(address, clock=lambda: now)) as ledger:
        ledger.end_sign_ins([digest("one"), digest("two")], 2000.0)
        until(lambda: reader.stamp() != before, "the reader hears nothing")
        found = reader.read()
        assert found is not None
        assert found.ended_sign_ins == {digest("one"), digest("two")}
        assert found.users == store.users()
        stamp = reader.stamp(settled=True)
        ledger.end_sign_ins([digest("two"), digest("one")], 3000.0)
        assert reader.read() is None, "a repetition gives nobody anything to read"
        assert reader.stamp() == stamp
        now = 2000.0 + 3601
        ledger.end_sign_ins([digest("three")], 9000.0)
        found = reader.read()
        assert found is not None
        assert found.ended_sign_ins == {digest("three")}
