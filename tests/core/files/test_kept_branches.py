"""What a gateway finds of branches' files when it starts after a crash."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgate.errors import ShuttingDown
from cellgate.files import keeping
from cellgate.files.owed import owe, owed_folder
from cellgate.files.workspace import ORPHANS, WorkspaceStore
from cellgate_kernels.base.branching import BRANCHES
from tests.support.hostile import place_of_nobody, run_as


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folders of two sandboxes, each with the files of a session's branch and of nobody's."""
    for parent in ("living", "ended"):
        for branch in ("recorded", "unknown"):
            folder = tmp_path / f"{parent}{BRANCHES}" / f"{branch}-{parent}"
            folder.mkdir(parents=True)
            (folder / "data").write_text(folder.name)
    return tmp_path


def files_below(root: Path) -> set[str]:
    """The paths of all files with data."""
    return {str(path.relative_to(root)) for path in root.rglob("data")}


def everything_below(root: Path) -> set[str]:
    """The paths of all files and folders."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


async def test_files_of_branches_go_to_their_sessions(root: Path) -> None:
    left = {"recorded-living": ["session-one"], "recorded-ended": ["session-two"]}
    await WorkspaceStore(root).tidy([], left, ["living"])
    found = files_below(root)
    kept = {"session-one/data", "session-two/data", f"living{BRANCHES}/unknown-living/data"}
    (orphan,) = found - kept
    assert kept <= found
    assert orphan.startswith(f"{ORPHANS}/ended{BRANCHES}-")
    assert orphan.endswith("/unknown-ended/data")


@pytest.mark.parametrize("others", [[], ["session-two"]])
async def test_a_branch_s_files_stay_where_another_sandbox_s_kernel_uses_them(
    tmp_path: Path, others: list[str]
) -> None:
    """Both the branch and the sandbox that it was in have ended."""
    folder = tmp_path / f"ended{BRANCHES}" / "branch"
    folder.mkdir(parents=True)
    (folder / "data").write_text("branch")
    store = WorkspaceStore(tmp_path)
    await store.tidy({"session-one", *others}, {"branch": others}, {"elsewhere", "branch"})
    copies = {f"{each}/data" for each in others}
    assert files_below(tmp_path) == {f"ended{BRANCHES}/branch/data", *copies}
    # It leaves like any other.
    await store.of("session-one").keep(folder)
    assert files_below(tmp_path) == {"session-one/data", *copies}


async def test_files_of_kernels_of_a_shared_container_and_of_their_branches_go_to_their_sessions(
    tmp_path: Path,
) -> None:
    shared = tmp_path / f"shared-1{BRANCHES}"
    for folder in ("one", f"one{BRANCHES}/branch", "two"):
        (shared / folder).mkdir(parents=True)
        (shared / folder / "data").write_text(folder)
    (shared / f"two{BRANCHES}").mkdir()
    left = {"one": ["session-one"], "two": ["session-two"], "branch": ["session-branch"]}
    await WorkspaceStore(tmp_path).tidy([], left, [])
    assert everything_below(tmp_path) == {
        path for name in ("one", "two", "branch") for path in (f"session-{name}", f"session-{name}/data")
    }


async def test_files_of_a_branch_in_a_shared_container_are_owed_where_they_are(tmp_path: Path) -> None:
    folder = tmp_path / f"shared-1{BRANCHES}" / f"one{BRANCHES}" / "branch"
    folder.mkdir(parents=True)
    (folder / "data").write_text("text")
    mark = tmp_path / "session-one.owed"
    owe(mark, folder)
    assert owed_folder(mark) == folder


async def test_a_folder_that_can_not_be_processed_is_nobody_elses_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever folders come first: those of others go to their sessions, and these stay where they are."""
    names = [f"{kind}-{number}" for number in range(3) for kind in ("refused", "sound")]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_text(name)
    keep = keeping.keep

    def refuse(source: Path, kept: Path) -> None:
        if source.name.startswith("refused"):
            raise OSError(errno.EIO, "the disk does not answer")
        keep(source, kept)

    def refuse_too(folder: Path, orphans: Path) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    monkeypatch.setattr(keeping, "keep", refuse)
    monkeypatch.setattr(keeping, "set_aside", refuse_too)
    (tmp_path / "nobody's").mkdir()
    left = {name: [f"session-{name}"] for name in names}
    await WorkspaceStore(tmp_path).tidy([], left, [])
    kept = {f"session-{name}/data" if name.startswith("sound") else f"{name}/data" for name in names}
    assert files_below(tmp_path) == kept
    assert caplog.text.count("could not be kept") == 3
    assert "nobody's could not be processed" in caplog.text


def closed_branches(root: Path) -> tuple[dict[str, list[str]], set[str]]:
    """A cell took the right to write to the folder of branches, and left something there."""
    branches = root / f"kernel{BRANCHES}"
    (branches / "kernel-b").mkdir(parents=True)
    (branches / "kernel-b" / "data").touch()
    (branches / "data").touch()
    (branches / "kernel-b").chmod(0o555)
    branches.chmod(0)
    return {"kernel-b": ["session-b"]}, {"session-b"}


def closed_workspace(root: Path) -> tuple[dict[str, list[str]], set[str]]:
    """A cell took the right to write to its workspace."""
    (root / "kernel").mkdir()
    (root / "kernel" / "data").touch()
    (root / "kernel").chmod(0o555)
    return {"kernel": ["session-k"]}, {"session-k"}


@pytest.mark.parametrize("user", ["ourselves", "nobody"])
@pytest.mark.parametrize("close", [closed_branches, closed_workspace])
def test_folders_that_are_closed_are_kept_and_set_aside_as_others(
    close: Callable[[Path], tuple[dict[str, list[str]], set[str]]], user: str
) -> None:
    def tidied(root: Path) -> None:
        left, sessions = close(root)
        asyncio.run(WorkspaceStore(root).tidy([], left, []))
        assert {path.name for path in root.iterdir()} <= {*sessions, ORPHANS}
        assert all((root / session / "data").exists() for session in sessions)
        assert len(list((root / ORPHANS).glob("*/data"))) == (close is closed_branches)

    with place_of_nobody(in_memory=True) as root:
        run_as(user, lambda: tidied(root))


async def test_a_copy_that_a_crash_interrupted_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "data").touch()
    (tmp_path / "session-a.copy").mkdir()
    (tmp_path / "session-a.copy" / "half").touch()
    await WorkspaceStore(tmp_path).tidy([], {"kernel": ["session-a", "session-b"]}, [])
    assert everything_below(tmp_path) == {"session-a", "session-a/data", "session-b", "session-b/data"}


async def test_a_gateway_that_shuts_down_leaves_files_that_are_not_copied_in_time(tmp_path: Path) -> None:
    """The next one gives them to their sessions."""
    folder = tmp_path / "kernel"
    folder.mkdir()
    (folder / "data").touch()
    store = WorkspaceStore(tmp_path)
    store.users.join(folder)
    store.patience.end_in(0)
    with pytest.raises(ShuttingDown):
        await store.of("session-a").keep(folder)
    with pytest.raises(ShuttingDown):
        await store.of("session-b").keep(folder)
    assert files_below(tmp_path) == {"kernel/data"}
    await WorkspaceStore(tmp_path).tidy({"session-a", "session-b"}, {}, [])
    assert everything_below(tmp_path) == {"session-a", "session-a/data", "session-b", "session-b/data"}
