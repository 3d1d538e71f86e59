"""What is told of a folder that changed between two looks."""

from __future__ import annotations

import stat

import pytest

from cellgate.files.folder_watch import FolderWatch
from cellgate.files.tree import Item


def file(path: str, inode: int, *, size: int = 1, modified: int = 1, mode: int = 0o644) -> Item:
    return Item(path, stat.S_IFREG | mode, size, modified, inode)


def folder(path: str, inode: int, *, modified: int = 1) -> Item:
    return Item(path, stat.S_IFDIR | 0o755, 4096, modified, inode)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([], [file("a", 1)], ["CREATE a", "WRITE a"]),
        ([], [file("a", 1, size=0), folder("b", 2)], ["CREATE a", "CREATE b"]),
        ([file("a", 1)], [file("a", 1)], []),
        ([file("a", 1)], [file("a", 1, modified=2)], ["WRITE a"]),
        ([file("a", 1)], [file("a", 7, size=5)], ["WRITE a"]),
        # The kernel was replaced, and its files were copied: nothing has happened to them.
        ([file("a", 1)], [file("a", 7)], []),
        ([file("a", 1)], [file("a", 1, mode=0o755)], ["CHMOD a"]),
        ([file("a", 1)], [file("a", 1, size=2, mode=0o600)], ["WRITE a", "CHMOD a"]),
        ([folder("a", 1)], [folder("a", 1, modified=2)], []),
        ([file("a", 1)], [], ["REMOVE a"]),
        ([folder("a", 1), file("a/b", 2)], [], ["REMOVE a/b", "REMOVE a"]),
        ([file("a", 1)], [folder("a", 1)], ["REMOVE a", "CREATE a"]),
        ([file("a", 1)], [file("b", 1)], ["RENAME a", "CREATE b"]),
        # The inode of a removed file is given to the next one.
        ([file("a", 1)], [file("b", 1, modified=2)], ["REMOVE a", "CREATE b", "WRITE b"]),
        ([folder("a", 1), file("a/x", 2)], [folder("b", 1), file("b/x", 2)], ["RENAME a", "CREATE b"]),
        (
            [folder("a", 1), file("a/x", 2)],
            [folder("b", 1), file("b/y", 2), file("b/z", 3, size=0)],
            ["RENAME a/x", "RENAME a", "CREATE b", "CREATE b/y", "CREATE b/z"],
        ),
        ([folder("a", 1), file("x", 2)], [folder("a", 1), file("a/x", 2)], ["RENAME x", "CREATE a/x"]),
    ],
)
def test_changes(before: list[Item], after: list[Item], told: list[str]) -> None:
    watch = FolderWatch((), 1)
    watch.begin(before)
    found = watch.take(after)
    assert [f"{change.kind} {change.path}" for change in found] == told
    now = {item.path: item for item in after}
    assert all(change.item in (None, now.get(change.path)) for change in found)
    assert watch.take(after) == []
    assert watch.size == len(after)


def test_paths_are_told_as_they_are_in_the_folder() -> None:
    assert FolderWatch((), 1).relative("a/b") == "a/b"
    assert FolderWatch(("a", "b"), 1).relative("a/b/c/d") == "c/d"
