"""Acts are in the audit trail exactly once, whatever is restarted, replaced or put back."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cellgate.identity.administrator import Administrator
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.principal import Reach, Role
from cellgate.identity.store.opening import UsersPlace, open_users, reader_of_users
from cellgate.identity.store.user_file import PRINCIPALS
from cellgate.record.store.sqlite import upkeep
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.location import RECORD
from cellgate.server import acts as acts_module
from cellgate.server.acts import ActRecorder, waiting
from tests.pure.record.conftest import journal_at


@asynccontextmanager
async def recording(folder: Path) -> AsyncGenerator[tuple[ActRecorder, PrincipalDirectory], None]:
    """What a gateway has of this, between a start and an end."""
    directory = PrincipalDirectory(reader_of_users(folder), Administrator("token"))
    async with journal_at(folder / RECORD) as journal:
        await directory.refresh()
        recorder = ActRecorder(directory, journal)
        yield recorder, directory
        await recorder.close()
        await directory.close()


async def copied(folder: Path) -> None:
    """A gateway starts, copies and ends."""
    async with recording(folder) as (recorder, _):
        await recorder.catch_up()
        await recorder.catch_up()


def add(folder: Path, *names: str) -> None:
    with open_users(folder, create=True) as store:
        for name in names:
            store.add_user(name, Role.USER)


def recorded(folder: Path) -> list[str]:
    entries = [json.loads(row.body) for row in upkeep.trail_of(folder / RECORD)]
    assert all(found.valid for found in check_record(folder / RECORD))
    return [f"{entry['number']} {entry['act']} {entry['user']}" for entry in entries]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


async def test_nothing_is_recorded_where_there_are_no_users(folder: Path) -> None:
    await copied(folder)
    assert recorded(folder) == []


async def test_acts_are_copied_once_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts_module, "BATCH", 2)
    add(folder, "ada", "bob", "cleo", "dan", "eve")
    await copied(folder)
    await copied(folder)
    add(folder, "fay")
    await copied(folder)
    expected = [f"{number} user_added {name}" for number, name in enumerate(("ada", "bob", "cleo"), 1)]
    assert recorded(folder) == [*expected, "4 user_added dan", "5 user_added eve", "6 user_added fay"]


async def test_acts_are_copied_while_serving(folder: Path) -> None:
    add(folder, "ada")
    async with recording(folder) as (recorder, directory):
        await recorder.catch_up()
        add(folder, "bob")
        await directory.refresh()
        await recorder.catch_up()
        (folder / PRINCIPALS).unlink()
        await directory.refresh()
        await recorder.catch_up()
    assert recorded(folder) == ["1 user_added ada", "2 user_added bob"]


async def test_acts_that_wait_for_a_gateway_are_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_BATCH", 2)

    def waits() -> int:
        return waiting(upkeep.acts_of(folder / RECORD), UsersPlace(folder))

    await copied(folder)
    assert waits() == 0
    add(folder, "ada", "bob", "cleo")
    assert waits() == 3
    await copied(folder)
    assert waits() == 0
    shutil.copy(folder / PRINCIPALS, tmp_path / "old")
    add(folder, "dan", "eve")
    assert waits() == 2
    await copied(folder)
    # A file that was put back: its next act is another than the one that has its number in the trail.
    shutil.copy(tmp_path / "old", folder / PRINCIPALS)
    assert waits() == 0
    add(folder, "fay")
    assert waits() == 1
    (folder / PRINCIPALS).unlink()
    add(folder, "gil", "hal")
    assert waits() == 2
    await copied(folder)
    assert waits() == 0
    assert len(recorded(folder)) == 7


async def test_an_entry_has_both_times_and_no_secret(folder: Path) -> None:
    with open_users(folder, create=True) as store:
        store.add_user("ada", Role.AUDITOR)
        token, secret = store.create_token("ada", expires_at=4e9, reach=Reach("a-"))
    await copied(folder)
    rows = list(upkeep.trail_of(folder / RECORD))
    added, created = [json.loads(row.body) for row in rows]
    assert (added["role"], added["done_at"] <= added["at"]) == ("auditor", True)
    assert (created["token"], created["expires_at"]) == (token.id, "2096-10-02T07:06:40.000000Z")
    assert secret.split("_", 2)[2].encode() not in b"".join(row.body for row in rows)


async def test_a_record_put_back_gets_the_acts_since_its_backup(folder: Path, tmp_path: Path) -> None:
    add(folder, "ada")
    await copied(folder)
    shutil.copy(folder / RECORD, tmp_path / "old")
    add(folder, "bob")
    await copied(folder)
    shutil.copy(tmp_path / "old", folder / RECORD)
    assert recorded(folder) == ["1 user_added ada"]
    await copied(folder)
    assert recorded(folder) == ["1 user_added ada", "2 user_added bob"]


async def test_a_file_of_users_put_back_loses_no_later_act(folder: Path, tmp_path: Path) -> None:
    add(folder, "ada")
    shutil.copy(folder / PRINCIPALS, tmp_path / "old")
    add(folder, "bob")
    await copied(folder)
    shutil.copy(tmp_path / "old", folder / PRINCIPALS)
    add(folder, "cleo")
    await copied(folder)
    assert recorded(folder) == ["1 user_added ada", "2 user_added bob", "2 user_added cleo"]


async def test_a_new_file_of_users_is_copied_from_its_first_act(folder: Path) -> None:
    add(folder, "ada", "bob")
    await copied(folder)
    (folder / PRINCIPALS).unlink()
    add(folder, "cleo")
    await copied(folder)
    add(folder, "dan")
    await copied(folder)
    assert recorded(folder)[2:] == ["1 user_added cleo", "2 user_added dan"]
