"""cellgate_kernels.base.leftovers: what can't be removed now is removed later, and delays no end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgate_kernels.base import trees
from cellgate_kernels.base.leftovers import Leftovers, is_leftover, make_way
from tests.support.hostile import place_of_nobody, run_as
from tests.support.open_files import no_open_files

AT_ONCE = (0.001,) * 3
LONG = (600.0,)

Refuse = Callable[[int], list[Path]]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Lets so many removals fail; the list is of all that were tried."""
    remove = trees.remove

    def begin(times: int) -> list[Path]:
        tried: list[Path] = []

        def refused(path: Path) -> None:
            tried.append(path)
            if len(tried) <= times:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
            remove(path)

        monkeypatch.setattr(trees, "remove", refused)
        return tried

    return begin


def made(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir()
        (folder / "file").touch()


def there(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def soon(work: asyncio.Future[None]) -> None:
    async with asyncio.timeout(60):
        await work


async def test_a_folder_and_a_file_are_removed_and_nothing_is_no_error(tmp_path: Path) -> None:
    made(tmp_path / "folder")
    (tmp_path / "plain").touch()
    await Leftovers().remove(tmp_path / "folder", tmp_path / "plain", tmp_path / "nothing")
    assert there(tmp_path) == []


async def test_what_can_t_be_removed_loses_its_name_at_once_and_goes_later(
    tmp_path: Path, refuse: Refuse
) -> None:
    made(folder := tmp_path / "folder")
    tried = refuse(2)
    leftovers = Leftovers(AT_ONCE)
    await leftovers.remove(folder)
    assert [is_leftover(name) for name in there(tmp_path)] == [True]
    made(folder)
    await soon(asyncio.ensure_future(leftovers.gone(folder)))
    assert len(tried) == 3
    assert there(tmp_path) == ["folder"], "it is another one by now"
    await leftovers.close()


async def test_each_folder_is_tried(tmp_path: Path, refuse: Refuse) -> None:
    made(*(folders := [tmp_path / name for name in "abc"]))
    tried = refuse(2)
    leftovers = Leftovers(LONG)
    await leftovers.remove(*folders)
    assert len(tried) == 3
    assert len(there(tmp_path)) == 2
    await leftovers.close()
    assert there(tmp_path) == []


async def test_the_attempts_go_on_at_the_last_pace_and_the_next_start_goes_on(
    tmp_path: Path, refuse: Refuse, caplog: pytest.LogCaptureFixture
) -> None:
    made(folder := tmp_path / "folder")
    tried = refuse(100)
    leftovers = Leftovers(AT_ONCE)
    await leftovers.remove(folder)
    async with asyncio.timeout(60):
        while len(tried) < 3 + len(AT_ONCE):  # noqa: ASYNC110 - it is told to nobody
            await asyncio.sleep(0.001)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
    await leftovers.close()
    (left,) = there(tmp_path)
    assert left in caplog.text
    made(tmp_path / "mine")
    refuse(0)
    await Leftovers().sweep(tmp_path)
    assert there(tmp_path) == ["mine"]


async def test_more_than_a_bound_are_not_tried_again(
    tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellgate_kernels.base.leftovers.MOST", 2)
    made(*(folders := [tmp_path / name for name in "abcd"]))
    refuse(100)
    before = len(asyncio.all_tasks())
    leftovers = Leftovers(LONG)
    await leftovers.remove(*folders)
    assert len(asyncio.all_tasks()) == before + 2
    refuse(0)
    await leftovers.close()
    assert len(there(tmp_path)) == 2


async def test_a_caller_that_leaves_takes_nothing_along(tmp_path: Path) -> None:
    made(*(folders := [tmp_path / name for name in "abcd"]))
    removing = asyncio.ensure_future(Leftovers().remove(*folders))
    await asyncio.sleep(0)
    removing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removing
    assert there(tmp_path) == []


async def test_without_open_files_a_folder_goes_later(tmp_path: Path) -> None:
    made(folder := tmp_path / "folder")
    leftovers = Leftovers(LONG)
    await asyncio.to_thread(int)
    with no_open_files():
        await leftovers.remove(folder, tmp_path / "nothing")
        assert not folder.exists()
    assert len(there(tmp_path)) == 1
    await leftovers.close()
    assert there(tmp_path) == []


def test_where_nothing_may_be_renamed_the_inside_goes() -> None:
    async def remove(folder: Path) -> None:
        leftovers = Leftovers(LONG)
        await leftovers.remove(folder)
        await leftovers.remove(folder)
        await leftovers.close()

    def work() -> None:
        made(parent := place / "parent", folder := place / "parent" / "folder")
        parent.chmod(0o555)
        asyncio.run(remove(folder))
        assert there(folder) == []
        parent.chmod(0o755)

    with place_of_nobody() as place:
        run_as("nobody", work)


async def test_all_but_some_of_a_folder(tmp_path: Path) -> None:
    made(*(tmp_path / name for name in "abc"))
    await Leftovers().empty(tmp_path, {"b"})
    assert there(tmp_path) == ["b"]


async def test_a_place_is_made_free_without_removing_anything(tmp_path: Path) -> None:
    made(folder := tmp_path / "folder")
    make_way(folder)
    make_way(folder)
    (left,) = there(tmp_path)
    assert (tmp_path / left / "file").exists()
    await Leftovers().sweep(tmp_path)
    assert there(tmp_path) == []
