"""Snapshots of a workspace, on a real file system: whatever happens to the files, it is undone."""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgate.errors import NotFound
from cellgate.files.snapshots import Snapshots
from cellgate.files.tree import scan
from cellgate.files.workspace import WorkspaceStore
from cellgate_kernels.base.resources import MIB

SETTLED = 0.1
"""Seconds after which an unchanged file is known by its inode and times, and is not read again."""

Change = Callable[[Path], object]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "folder/inner").mkdir(parents=True)
    (made / "empty").mkdir()
    for name in ("plain", "other", "folder/plain", "folder/inner/plain"):
        (made / name).write_text(f"the text of {name}")
    (made / "nothing").touch()
    (made / "link").symlink_to("folder/plain")
    os.link(made / "plain", made / "folder/twin")
    time.sleep(SETTLED)
    return made


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "snapshots", 1 << 30)


def state(root: Path) -> dict[str, tuple[object, ...]]:
    """All that a snapshot promises to bring back, by path."""
    twins: dict[int, list[str]] = {}
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        name = str(path.relative_to(root))
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
            twins.setdefault(status.st_ino, []).append(name)
        found[name] = (stat.filemode(status.st_mode), status.st_mtime_ns, content)
    return found | {"names of one file": (sorted(names for names in twins.values() if len(names) > 1),)}


def replaced(path: Path) -> None:
    """Another file of the same size and times in its place."""
    status = path.stat()
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def rewritten(path: Path) -> None:
    """Other data of the same length, with the time set back."""
    status = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Change] = {
    "written": lambda root: (root / "plain").write_text("changed"),
    "rewritten": lambda root: rewritten(root / "folder/plain"),
    "replaced": lambda root: replaced(root / "folder/plain"),
    "emptied": lambda root: (root / "other").write_text(""),
    "permissions": lambda root: (root / "other").chmod(0o400),
    "permissions of a folder": lambda root: (root / "folder").chmod(0o500),
    "time": lambda root: os.utime(root / "other", (1, 1)),
    "time of a folder": lambda root: os.utime(root / "empty", (1, 1)),
    "removed": lambda root: (root / "other").unlink(),
    "renamed": lambda root: (root / "other").rename(root / "another"),
    "exchanged": lambda root: (
        (root / "other").rename(root / "x"),
        (root / "folder/plain").rename(root / "other"),
        (root / "x").rename(root / "folder/plain"),
    ),
    "moved folder": lambda root: (root / "folder").rename(root / "empty/folder"),
    "file for folder": lambda root: ((root / "empty").rmdir(), (root / "empty").write_text("x")),
    "folder for file": lambda root: ((root / "other").unlink(), (root / "other").mkdir()),
    "link elsewhere": lambda root: ((root / "link").unlink(), (root / "link").symlink_to("/etc")),
    "link for file": lambda root: ((root / "other").unlink(), (root / "other").symlink_to("plain")),
    "twin parted": lambda root: (
        (root / "folder/twin").unlink(),
        (root / "folder/twin").write_text((root / "plain").read_text()),
    ),
    "one more name": lambda root: os.link(root / "other", root / "third"),
    "added": lambda root: (root / "folder/new").write_text("new"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("looked", [True, False], ids=["after a check", "at once"])
def test_a_change_is_undone(workspace: Path, snapshots: Snapshots, change: str, *, looked: bool) -> None:
    before = state(workspace)
    taken = snapshots.take(workspace)
    if looked:
        snapshots.check(taken.snapshot, workspace)
    CHANGES[change](workspace)
    assert state(workspace) != before
    restored = snapshots.restore(taken.snapshot, workspace)
    assert state(workspace) == before
    # Whoever watches the files need not look at them again.
    found, complete = scan(workspace)
    assert complete
    assert restored.files == {path: each.identity for path, each in found.items()}
    assert snapshots.restore(taken.snapshot, workspace).files_changed == 0


def test_any_number_of_changes_is_undone_between_any_snapshots(workspace: Path, snapshots: Snapshots) -> None:
    chance = random.Random(5)
    kept = []
    for _ in range(12):
        taken = snapshots.take(workspace)
        kept.append((taken.snapshot, state(workspace)))
        for change in chance.sample(sorted(CHANGES), 3):
            try:
                CHANGES[change](workspace)
            except OSError:
                continue  # the change before left nothing to change
        time.sleep(SETTLED * chance.randrange(2))
    for snapshot, before in chance.choices(kept, k=24):
        snapshots.check(snapshot, workspace)
        restored = snapshots.restore(snapshot, workspace)
        assert state(workspace) == before
        assert restored.files == {path: each.identity for path, each in scan(workspace)[0].items()}


def test_a_name_that_no_request_can_have_is_brought_back_and_not_told(
    workspace: Path, snapshots: Snapshots
) -> None:
    odd = os.fsencode(workspace) + b"/\xff"
    Path(os.fsdecode(odd)).write_text("odd")
    taken = snapshots.take(workspace)
    Path(os.fsdecode(odd)).write_text("changed")
    restored = snapshots.restore(taken.snapshot, workspace)
    assert Path(os.fsdecode(odd)).read_text() == "odd"
    assert restored.files.keys() == scan(workspace)[0].keys()


def test_what_was_dropped_after_a_check_is_not_there(workspace: Path, snapshots: Snapshots) -> None:
    taken = snapshots.take(workspace)
    snapshots.check(taken.snapshot, workspace)
    snapshots.drop(taken.snapshot)
    with pytest.raises(NotFound):
        snapshots.restore(taken.snapshot, workspace)


@pytest.mark.parametrize("name", ["session-1.7", "session-1"])
async def test_a_start_completes_a_rollback(tmp_path: Path, name: str) -> None:
    """Also one of a gateway that named the folder after the files alone."""
    (kept := tmp_path / "session-1").mkdir()
    (kept / "a.txt").write_text("before")
    taken = (await WorkspaceStore(tmp_path).snapshots(name, MIB)).take(kept)
    (kept / "a.txt").write_text("later")
    (tmp_path / f"{name}.snapshots" / "restoring").write_text(str(taken.snapshot))
    await WorkspaceStore(tmp_path).tidy({"session-1"}, {}, ())
    assert (kept / "a.txt").read_text() == "before"
    assert not (tmp_path / f"{name}.snapshots").exists()
