"""What of a workspace goes into a bundle: user code made it, and may have made anything."""

from __future__ import annotations

import os
import subprocess
from contextlib import aclosing
from pathlib import Path

import pytest

from cellgate.errors import StorageError
from cellgate.record.export import bundle
from cellgate.record.export.session_export import Exports
from cellgate.record.spill import Spills
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.sqlite.journal import Journal
from cellgate_kernels.base.threads import Lane
from tests.pure.record.recorded import Recorded

DEEP = 1100


def taken(root: Path, most: int = 1 << 30) -> tuple[dict[str, bytes], list[str]]:
    left_out: list[str] = []
    return {name: b"".join(parts) for name, parts in bundle._files(root, most, left_out)}, left_out


def test_regular_files_by_path_and_nothing_by_links(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("z.txt", "b/y.txt", "b/c/x.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    files, left_out = taken(tmp_path)
    assert list(files) == ["z.txt", "b/y.txt", "b/c/x.txt"]
    assert {name.encode() for name in files} == set(files.values())
    assert left_out == ["folder", "link", "pipe"]


def test_a_workspace_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert taken(tmp_path / "none") == ({}, [])


def test_a_folder_in_a_folder_in_a_folder_ends_nothing(tmp_path: Path) -> None:
    """Deeper than the stack, than there are descriptors, and than a name in a bundle may be long."""
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    (tmp_path / "d" / "there.txt").write_text("x")
    (tmp_path / "e.txt").write_text("y")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    files, left_out = taken(tmp_path)
    assert files == {"e.txt": b"y", "d/there.txt": b"x"}
    assert left_out == [bundle.UNSEEN]
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    # Python's own removal would recurse.
    subprocess.run(["/bin/rm", "-r", tmp_path / "d"], check=True, timeout=60)


def test_the_list_of_what_is_left_out_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_FILES", 3)
    for number in range(10):
        (tmp_path / f"{number}").touch()
    files, left_out = taken(tmp_path)
    assert list(files) == ["0", "1", "2"]
    assert left_out == ["3", "4", "5", "and 4 more"]


async def test_what_can_not_be_read_is_an_error_of_the_storage(
    journal: Journal, tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    exports = Exports(journal, "0.1.0", None, Spills(tmp_path, SpillLedger(tmp_path, 0), lane))
    session = Recorded(journal, "first")
    (tmp_path / "a").write_text("x")
    monkeypatch.setattr(bundle, "_open", failing)
    with pytest.raises(StorageError, match="Input/output error"):
        async with aclosing(exports.bundle(await exports.moment(session.row), tmp_path)) as parts:
            _ = [part async for part in parts]
