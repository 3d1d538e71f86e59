"""Files of a session that goes on at another gateway, where the gateways of a cluster share a disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cellgate.errors import StorageError
from cellgate.files.former import WORKSPACES, FormerFolders, workspaces_of
from cellgate.files.owed import OWED
from cellgate.files.snapshots import Snapshots
from cellgate.files.workspace import LATER, MOVED, SNAPSHOTS, folder_of, snapshots_of
from cellgate.record.rows import SessionRow
from cellgate.sessions.session import Session
from cellgate.sessions.settling import Settling
from cellgate.wire.models import SessionBody
from cellgate_kernels.base import trees
from cellgate_kernels.base.branching import BRANCHES
from cellgate_kernels.base.leftovers import Leftovers
from tests.core.fakes import House
from tests.core.shared_keys import Keys, Shared

KEY = ("ada", "s")
BODY = SessionBody(session="s")
HERE, THERE = "here", "there"


class Disk:
    """A gateway with a session that has ended at another one. `there`: that one's workspaces."""

    def __init__(self, root: Path, house: House) -> None:
        self.house = house
        self.there = workspaces_of(root, THERE)
        self.there.mkdir(parents=True)
        self.homes: Keys = {}
        self.keys: Keys = {}
        opener = house.manager.opener
        workspaces = opener.parts.workspaces
        former = FormerFolders(root, workspaces, Leftovers(), house.lane)
        house.manager.keys.ownership = Shared(HERE, self.keys, self.homes)
        opener.settling = Settling(house.journal, workspaces, opener.workspaces, house.manager.keys, former)

    async def begin(self) -> Session:
        session, _ = await self.house.manager.get_or_create("ada", BODY)
        return session

    async def end_there(self, session: Session) -> SessionRow:
        """End the session with no files here, as if it had been the other gateway's."""
        await session.end("idle_timeout")
        for kept in self.house.kept():
            kept.rename(self.there / kept.name)
        self.homes[KEY] = THERE
        row = await self.house.journal.reads.session(*KEY)
        assert row is not None
        return row

    async def record(self, row: SessionRow, key: str, **changes: Any) -> None:
        """Record another session like this one."""
        number = await self.house.journal.begin_session("ada", key)
        self.house.journal.save_session(structs.replace(row, id=number, key=key, **changes))
        await self.house.journal.commit()
        await self.house.manager.opener.workspaces.load()

    def files(self) -> dict[str, str]:
        """The files of the session's kernel."""
        folder = self.house.pool.kernels[-1].folder
        return {path.name: path.read_text() for path in folder.iterdir()}

    def left(self) -> list[str]:
        """The names in the other gateway's folder."""
        return sorted(path.name for path in self.there.iterdir())


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    root = tmp_path / "disk"
    (root / HERE).mkdir(parents=True)
    house = await House.open(root / HERE)
    yield Disk(root, house)
    await house.close()


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


async def test_files_come_along(disk: Disk) -> None:
    """Old ones, of a life here before the other gateway had the session, do not come back."""
    session = await disk.begin()
    written(disk.house.pool.kernels[0].folder, a="new", b="of a cell")
    row = await disk.end_there(session)
    written(disk.house.workspaces / folder_of(row), a="old", c="old")
    await disk.begin()
    assert disk.files() == {"a": "new", "b": "of a cell"}
    assert (disk.homes, disk.left()) == ({KEY: HERE}, [])


@pytest.mark.parametrize("place", ["", f"other{BRANCHES}", f"one{BRANCHES}/other{BRANCHES}"])
async def test_files_of_a_kernel_that_was_lost_with_its_gateway_come_along(disk: Disk, place: str) -> None:
    """Where its files were still being moved to it, its folder has the newer ones."""
    session = await disk.begin()
    kernel = disk.house.pool.kernels[0]
    row = await disk.end_there(session)
    written(disk.there / place / kernel.id, a="new")
    written(disk.there / folder_of(row), a="old", b="not moved yet")
    await disk.begin()
    assert disk.files() == {"a": "new", "b": "not moved yet"}
    assert not (disk.there / place / kernel.id).exists()


async def test_branches_are_looked_for_only_if_the_kernels_folder_is_not_at_its_place(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that takes over many sessions would read all names of its folder for each."""
    listed: list[Path] = []
    names_in = trees.names_in

    def noted(folder: Path) -> list[str]:
        listed.append(folder)
        return names_in(folder)

    monkeypatch.setattr(trees, "names_in", noted)
    session = await disk.begin()
    kernel = disk.house.pool.kernels[0]
    await disk.end_there(session)
    written(disk.there / kernel.id, a="new")
    await disk.begin()
    assert disk.files() == {"a": "new"}
    assert disk.there not in listed


async def test_files_that_could_not_be_kept_yet_come_along(disk: Disk) -> None:
    row = await disk.end_there(await disk.begin())
    written(disk.there / "a-kernel", a="owed")
    (disk.there / f"{folder_of(row)}{OWED}").symlink_to("a-kernel")
    written(disk.there / f"{folder_of(row)}{LATER}", b="later")
    await disk.begin()
    assert (disk.files(), disk.left()) == ({"a": "owed", "b": "later"}, [])


async def refused(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the session's opening here fail when it is to be settled."""

    async def settle(principal: str, key: str) -> None:
        raise StorageError("The database is gone")

    monkeypatch.setattr(disk.house.manager.keys.ownership, "settle", settle)
    with pytest.raises(StorageError):
        await disk.begin()
    monkeypatch.undo()


async def test_a_copy_counts_only_once_the_session_is_settled(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await disk.begin()
    kernel = disk.house.pool.kernels[0]
    await disk.end_there(session)
    written(disk.there / kernel.id, a="of a lost kernel")
    await refused(disk, monkeypatch)
    assert disk.left() == [kernel.id]
    written(disk.there / kernel.id, b="written since then")
    await disk.begin()
    assert (disk.files(), disk.left()) == ({"a": "of a lost kernel", "b": "written since then"}, [])


@pytest.mark.parametrize("at", [HERE, "third"])
async def test_a_kept_folder_is_moved_even_if_a_gateway_ends_meanwhile(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Whoever opens the session next finds it, also at a gateway that started again in between."""
    session = await disk.begin()
    written(disk.house.pool.kernels[0].folder, a="kept")
    row = await disk.end_there(session)
    number = (disk.there / folder_of(row) / "a").stat().st_ino
    await refused(disk, monkeypatch)
    moved = disk.house.workspaces / f"{folder_of(row)}{MOVED}"
    assert disk.left() == []
    if at != HERE:
        moved = moved.rename(written(disk.there.parents[1] / at / WORKSPACES) / moved.name)
    await disk.house.manager.opener.parts.workspaces.tidy({folder_of(row)}, {}, ())
    assert await disk.house.manager.workspace(row) == moved
    await disk.begin()
    assert (disk.files(), disk.homes, moved.exists()) == ({"a": "kept"}, {KEY: HERE}, False)
    assert (disk.house.pool.kernels[-1].folder / "a").stat().st_ino == number


async def test_files_that_another_session_has_too_stay_for_it(disk: Disk) -> None:
    session = await disk.begin()
    written(disk.house.pool.kernels[0].folder, a="of both")
    row = await disk.end_there(session)
    await disk.record(row, "t", folder=row.folder)
    await disk.begin()
    assert (disk.files(), disk.left()) == ({"a": "of both"}, [folder_of(row)])


async def test_files_of_a_branch_that_is_still_open_there_stay_for_it(disk: Disk) -> None:
    session = await disk.begin()
    kernel = disk.house.pool.kernels[0]
    row = await disk.end_there(session)
    await disk.record(row, "b", folder="another", parent=row.id, state="idle")
    written(disk.there / kernel.id, a="of both")
    await disk.begin()
    assert (disk.files(), disk.left()) == ({"a": "of both"}, [kernel.id])


async def test_a_rollback_that_was_interrupted_there_is_completed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await disk.begin()
    folder = written(disk.house.pool.kernels[0].folder, a="at the checkpoint")
    row = await disk.end_there(session)
    kept = disk.there / folder_of(row)
    snapshots = Snapshots(disk.there / f"{snapshots_of(row)}{SNAPSHOTS}", 1 << 20)
    taken = snapshots.take(kept)
    written(kept, a="after", b="after")
    monkeypatch.setattr("cellgate.files.restoring.Restoring.apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        snapshots.restore(taken.snapshot, kept)
    monkeypatch.undo()
    await disk.begin()
    assert (disk.files(), disk.left()) == ({"a": "at the checkpoint"}, [])
    assert not folder.exists()


def interrupted(_: object) -> None:
    raise KeyboardInterrupt


async def test_files_can_be_read_before_the_session_goes_on(disk: Disk) -> None:
    session = await disk.begin()
    written(disk.house.pool.kernels[0].folder, a="kept")
    row = await disk.end_there(session)
    assert await disk.house.manager.workspace(row) == disk.there / folder_of(row)
    assert disk.homes == {KEY: THERE}


async def test_deleting_a_session_removes_its_files_there_and_copies_none(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await disk.begin()
    written(disk.house.pool.kernels[0].folder, a="kept")
    await disk.end_there(session)
    disk.house.manager.keys.ownership = Gone(HERE, disk.keys, disk.homes)
    monkeypatch.delattr(FormerFolders, "bring")
    await disk.house.manager.delete(*KEY)
    assert (disk.left(), disk.house.kept()) == ([], [])


class Gone(Shared):
    """The other gateway is gone: it is nobody's home any more."""

    async def home(self, principal: str, key: str) -> None:
        return None
