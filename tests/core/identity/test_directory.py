"""What a gateway learns of its users and tokens while it serves, whoever made it read the file."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import StorageError
from cellgate.identity.administrator import Administrator
from cellgate.identity.directory import PATIENCE_SECONDS, PrincipalDirectory
from cellgate.identity.principal import GRANTED, Reach, Role
from cellgate.identity.shared_reading import PAUSE_SECONDS
from cellgate.identity.store.opening import open_users, reader_of_users
from cellgate.identity.store.user_file import PRINCIPALS, TICK_NS
from cellgate.identity.tokens import digest
from cellgate_kernels.base.errors import InvalidInput
from tests.support.clock import Clock


class Told:
    """What a listener was told."""

    def __init__(self) -> None:
        self.looks = 0
        self.gone: list[tuple[str, str]] = []

    def logins_changed(self) -> None:
        self.looks += 1

    def user_gone(self, name: str, cause: str) -> None:
        self.gone.append((name, cause))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / PRINCIPALS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def directory(path: Path, clock: Clock) -> AsyncIterator[PrincipalDirectory]:
    directory = PrincipalDirectory(
        reader_of_users(path.parent), Administrator("the-gateways-own"), monotonic=clock
    )
    yield directory
    await directory.close()


async def user_with_token(path: Path, directory: PrincipalDirectory) -> bytes:
    """Ada, and the digest of her token; the directory knows both and has told so."""
    with open_users(path.parent, create=True) as store:
        store.add_user("ada", Role.USER)
        _, text = store.create_token("ada", reach=Reach())
    await directory._look(Told())
    assert directory.login(digest(text)) is not None
    return digest(text)


def written(path: Path, ago_ns: int) -> None:
    """Let the file be one that was last written so many nanoseconds ago."""
    os.utime(path, ns=(0, time.time_ns() - ago_ns))


def damage(path: Path) -> Path:
    """Put something else in the place of the file; where the file is now."""
    aside = path.rename(path.with_name("aside"))
    path.write_bytes(b"not a database at all, but long enough for one")
    return aside


async def test_a_change_that_a_request_has_read_already_is_told(
    path: Path, directory: PrincipalDirectory
) -> None:
    given = await user_with_token(path, directory)
    with open_users(path.parent) as store:
        store.set_disabled("ada", disabled=True)
    # Whoever names a secret that is not there makes the directory read the file.
    with pytest.raises(InvalidInput):
        await directory.check_secrets("bob", ["NOT_THERE"])
    assert directory.login(given) is None
    told = Told()
    await directory._look(told)
    assert (told.looks, told.gone) == (1, [("ada", "user_disabled")])
    await directory._look(told)
    assert told.looks == 1


async def test_it_is_behind_from_a_write_to_the_next_reading(
    path: Path, directory: PrincipalDirectory
) -> None:
    assert not directory.is_behind()
    given = await user_with_token(path, directory)
    written(path, ago_ns=2 * TICK_NS)
    await directory.catch_up()
    assert not directory.is_behind()
    with open_users(path.parent) as store:
        store.set_disabled("ada", disabled=True)
    assert directory.is_behind()
    assert directory.login(given) is not None
    await directory.catch_up()
    assert directory.login(given) is None


class SlowReading:
    """A directory's reading of the file, held up for as long as the test likes."""

    def __init__(self, directory: PrincipalDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._read = directory._users.read
        monkeypatch.setattr(directory._users, "read", self)

    def __call__(self, **how: bool) -> Any:
        found = self._read(**how)
        self.begun.set()
        assert self.go_on.wait(30)
        return found


async def test_a_request_that_comes_while_another_reads_waits_for_what_is_read(
    path: Path, directory: PrincipalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = await user_with_token(path, directory)
    with open_users(path.parent) as store:
        store.set_disabled("ada", disabled=True)
    slow = SlowReading(directory, monkeypatch)
    first = asyncio.ensure_future(directory.catch_up())
    await asyncio.to_thread(slow.begun.wait, 30)
    assert directory.is_behind()
    second = asyncio.ensure_future(directory.catch_up())
    slow.go_on.set()
    await second
    assert directory.login(given) is None
    await first


async def test_a_change_read_for_a_request_that_is_gone_counts_for_the_next(
    path: Path, directory: PrincipalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = await user_with_token(path, directory)
    with open_users(path.parent) as store:
        store.set_disabled("ada", disabled=True)
    slow = SlowReading(directory, monkeypatch)
    gone = asyncio.ensure_future(directory.catch_up())
    await asyncio.to_thread(slow.begun.wait, 30)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    slow.go_on.set()
    assert directory.is_behind()
    await directory.catch_up()
    assert directory.login(given) is None


async def test_all_who_wait_while_the_store_does_not_answer_share_one_reading(
    path: Path, directory: PrincipalDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await user_with_token(path, directory)
    readings = 0
    slow = SlowReading(directory, monkeypatch)

    def failing(**how: bool) -> Any:
        nonlocal readings
        readings += 1
        slow(**how)
        raise StorageError("no answer")

    monkeypatch.setattr(directory._users, "read", failing)
    first = asyncio.ensure_future(directory.refresh())
    await asyncio.to_thread(slow.begun.wait, 30)
    others = [asyncio.ensure_future(directory.check_secrets("ada", ["NEW"])) for _ in range(50)]
    await asyncio.sleep(0)
    slow.go_on.set()
    ended = await asyncio.gather(first, *others, return_exceptions=True)
    assert {str(error) for error in ended} == {"no answer"}
    for _ in range(3):
        with pytest.raises(StorageError, match="no answer"):
            await directory.check_secrets("ada", ["NEW"])
    assert readings == 1, "what has just failed is not tried for each request"
    monkeypatch.undo()
    with pytest.raises(StorageError):
        await directory.refresh()
    clock.now += PAUSE_SECONDS
    await directory.refresh()


async def test_a_reading_that_has_begun_is_not_shared_as_it_may_miss_a_change(
    path: Path, directory: PrincipalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = await user_with_token(path, directory)
    slow = SlowReading(directory, monkeypatch)
    first = asyncio.ensure_future(directory.refresh())
    await asyncio.to_thread(slow.begun.wait, 30)
    with open_users(path.parent) as store:
        store.set_disabled("ada", disabled=True)
    later = [asyncio.ensure_future(directory.refresh()) for _ in range(3)]
    slow.go_on.set()
    await first
    await asyncio.gather(*later)
    assert directory.login(given) is None


async def test_who_follows_is_told_before_a_request_goes_on(
    path: Path, directory: PrincipalDirectory
) -> None:
    """So that nothing that a login opened is served after a request has found that it has ended."""
    await user_with_token(path, directory)
    told = Told()
    directory.follow(told)
    with open_users(path.parent) as store:
        store.set_disabled("ada", disabled=True)
    await directory.catch_up()
    assert (told.looks, told.gone) == (1, [("ada", "user_disabled")])


async def test_it_is_behind_while_another_write_might_not_show(
    path: Path, directory: PrincipalDirectory
) -> None:
    """The system stamps two writes of the same moment alike."""
    await user_with_token(path, directory)
    written(path, ago_ns=0)
    await directory.catch_up()
    assert directory.is_behind()
    written(path, ago_ns=2 * TICK_NS)
    await directory.catch_up()
    assert not directory.is_behind()


async def test_what_can_not_be_read_is_tried_once(path: Path, directory: PrincipalDirectory) -> None:
    given = await user_with_token(path, directory)
    damage(path)
    written(path, ago_ns=2 * TICK_NS)
    assert directory.is_behind()
    await directory.catch_up()
    assert not directory.is_behind()
    assert directory.login(given) is not None


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_file_that_can_not_be_read_for_long_shuts_out_and_removes_nobody(
    path: Path, directory: PrincipalDirectory, clock: Clock, *, comes_back: bool
) -> None:
    given = await user_with_token(path, directory)
    whole = damage(path)
    told = Told()
    await directory._look(told)
    assert directory.login(given) is not None
    clock.now += PATIENCE_SECONDS + 1
    await directory._look(told)
    assert directory.login(given) is None
    assert (told.looks, told.gone) == (1, [])
    assert not directory.is_shut_out("ada")
    if comes_back:
        # As it was before: its version is the one that was read last.
        whole.replace(path)
    else:
        await asyncio.to_thread(path.unlink)
    await directory._look(told)
    assert (directory.login(given) is not None) == directory.has_users == comes_back
    assert told.gone == ([] if comes_back else [("ada", "user_removed")])


async def test_a_file_that_comes_back_changed_is_read_again(
    path: Path, directory: PrincipalDirectory
) -> None:
    """Its version is told by a new connection, and is again the one that was read last."""
    given = await user_with_token(path, directory)
    whole, told = damage(path), Told()
    await directory._look(told)
    whole.replace(path)
    with open_users(path.parent) as store:
        store.set_disabled("ada", disabled=True)
    await directory._look(told)
    assert directory.login(given) is None
    assert told.gone == [("ada", "user_disabled")]


async def test_another_role_ends_the_logins_with_the_former(
    path: Path, directory: PrincipalDirectory
) -> None:
    given = await user_with_token(path, directory)
    former = directory.login(given)
    assert former is not None
    with open_users(path.parent) as store:
        store.set_role("ada", Role.AUDITOR)
    told = Told()
    await directory._look(told)
    assert told.looks == 1
    assert told.gone == []
    assert not directory.is_valid(former)
    now = directory.login(given)
    assert now is not None
    assert (now.principal.role, now.permissions) == (Role.AUDITOR, GRANTED[Role.AUDITOR])
    assert directory.role_of("ada") is Role.AUDITOR
