"""A workspace's watch tells each change that a cell made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellgate.files import tree
from cellgate.files.watch import WorkspaceWatch


async def actions(watch: WorkspaceWatch, root: Path) -> list[tuple[Any, Any]]:
    return [(change["path"], change["action"]) for change in await watch.changes(root)]


async def test_changes_are_told_from_the_first_file_to_the_last(tmp_path: Path) -> None:
    watch = WorkspaceWatch()
    await watch.begin(tmp_path)
    assert await actions(watch, tmp_path) == []
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("1")
    assert await actions(watch, tmp_path) == [("sub/a.txt", "created")]
    assert await actions(watch, tmp_path) == []
    (tmp_path / "sub" / "a.txt").write_text("22")
    assert await actions(watch, tmp_path) == [("sub/a.txt", "changed")]
    (tmp_path / "sub" / "a.txt").unlink()
    (tmp_path / "sub").rmdir()
    assert await actions(watch, tmp_path) == [("sub/a.txt", "deleted")]
    assert await actions(watch, tmp_path) == []


async def test_an_empty_workspace_is_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that writes no file in a session without files pays next to nothing for the watch."""
    scans: list[Path] = []
    scan = tree.scan

    def noted(root: Path, *options: Any) -> Any:
        scans.append(root)
        return scan(root, *options)

    monkeypatch.setattr(tree, "scan", noted)
    watch = WorkspaceWatch()
    assert await actions(watch, tmp_path) == []
    assert scans == []
    (tmp_path / ".hidden").write_text("1")
    assert await actions(watch, tmp_path) == [(".hidden", "created")]
    assert scans == [tmp_path]


async def test_a_workspace_that_is_gone_has_no_changes(tmp_path: Path) -> None:
    watch = WorkspaceWatch()
    assert await actions(watch, tmp_path / "gone") == []
