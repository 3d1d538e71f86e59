"""Files that a program holds, as by a lease: nothing waits for it, and who asks for one is told which."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.errors import FileHeld, status_of
from cellgate.files import tree
from cellgate.files.copying import copy_tree, data_bytes
from cellgate.files.snapshots import Snapshots
from cellgate.files.watch import WorkspaceWatch
from cellgate.record.export.bundle import _files
from cellgate_kernels.base.resources import MIB


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "folder").mkdir(parents=True)
    (made / "folder" / "held").write_bytes(b"before")
    (made / "free").write_bytes(b"free")
    return made


class Holder:
    """Has leases on files; `asked` counts how often the system asked for one back."""

    def __init__(self) -> None:
        self.asked = 0
        self._files: list[int] = []

    def hold(self, path: Path) -> None:
        """Take a lease, for which whoever opens the file waits."""
        file = os.open(path, os.O_RDWR)
        self._files.append(file)
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def is_asked(self, *_: object) -> None:
        self.asked += 1

    def close(self) -> None:
        """Give them back."""
        for file in self._files:
            os.close(file)


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    before = signal.signal(signal.SIGURG, made.is_asked)
    yield made
    made.close()
    signal.signal(signal.SIGURG, before)


def test_a_held_file_is_a_conflict_that_names_it(workspace: Path, holder: Holder) -> None:
    holder.hold(workspace / "folder/held")
    with pytest.raises(FileHeld, match="folder/held") as refused:
        tree.open_file(workspace, ("folder", "held"))
    assert (status_of(refused.value), refused.value.reason) == (409, "file_held")
    with pytest.raises(FileHeld):
        tree.digest(workspace, ("folder", "held"))
    assert tree.digest(workspace, ("free",))[0].size == 4
    assert holder.asked, "the file was held"


async def test_a_cells_end_has_no_hash_of_a_held_file(workspace: Path, holder: Holder) -> None:
    watch = WorkspaceWatch()
    watch.begin_with({})
    holder.hold(workspace / "folder/held")
    changes = {each["path"]: each["sha256"] for each in await watch.changes(workspace)}
    assert changes.keys() == {"folder/held", "free"}
    assert changes["folder/held"] is None
    assert changes["free"] is not None
    assert holder.asked


def test_a_held_file_is_moved_without_opening_it(workspace: Path, holder: Holder) -> None:
    holder.hold(workspace / "folder/held")
    (moved,) = tree.move(workspace, ("folder", "held"), ("elsewhere",))
    assert moved.path == "elsewhere"


def test_copies_and_checkpoints_are_refused_and_name_the_file(
    workspace: Path, tmp_path: Path, holder: Holder
) -> None:
    snapshots = Snapshots(tmp_path / "snapshots", 1 << 30)
    holder.hold(workspace / "folder/held")
    (tmp_path / "copy").mkdir()
    with pytest.raises(FileHeld, match="folder/held"):
        copy_tree(workspace, tmp_path / "copy", MIB)
    with pytest.raises(FileHeld, match="folder/held"):
        snapshots.take(workspace)
    holder.close()
    holder._files.clear()
    assert snapshots.take(workspace).files == 2


def test_a_file_with_holes_that_is_held_counts_what_it_takes(workspace: Path, holder: Holder) -> None:
    with (workspace / "folder/held").open("wb") as file:
        file.truncate(10 * MIB)
    holder.hold(workspace / "folder/held")
    assert data_bytes(workspace, deepest=10, most=100) <= 4 + 64 * 1024


def test_a_rollback_replaces_a_held_file(workspace: Path, tmp_path: Path, holder: Holder) -> None:
    snapshots = Snapshots(tmp_path / "snapshots", 1 << 30)
    taken = snapshots.take(workspace)
    (workspace / "folder/held").write_bytes(b"after.")
    holder.hold(workspace / "folder/held")
    snapshots.restore(taken.snapshot, workspace)
    assert (workspace / "folder/held").read_bytes() == b"before"
    assert holder.asked


def test_a_bundle_names_a_held_file_among_what_it_leaves_out(workspace: Path, holder: Holder) -> None:
    holder.hold(workspace / "folder/held")
    left_out: list[str] = []
    found = {name: b"".join(parts) for name, parts in _files(workspace, MIB, left_out)}
    assert found == {"free": b"free"}
    assert left_out == ["folder/held"]
