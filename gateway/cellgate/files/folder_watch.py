"""What changed in a folder between two looks at it, told as inotify would, as far as two states show it.

Looks, not the system's own events: a session's files move to another folder with each kernel, and code may
make more folders than a gateway could watch. So steps between two looks are told as one, and what came and
went in between is not told at all. A client that asks rarely costs no more than one that asks often: nothing
is queued, because the last look stands for all that it was told. Nothing here looks: ``sessions.files`` does.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cellgate.files.tree import Item, Parts


class ChangeKind(StrEnum):
    """What happened at a path. A rename is told as `RENAME` of the old path and `CREATE` of the new one."""

    CREATE = "CREATE"
    WRITE = "WRITE"
    REMOVE = "REMOVE"
    RENAME = "RENAME"
    CHMOD = "CHMOD"


@dataclass(frozen=True, slots=True)
class FolderChange:
    """A change. `item`: what is at its path now, if anything is."""

    kind: ChangeKind
    path: str
    item: Item | None = None


class FolderWatch:
    """A folder that is watched down to `depth`, and everything in it as it was last seen.

    `tells_items`: whether its client wants to know what is at the path of a change. `turn`: held from a look
    until its `take`, because each look stands for what was told until then.
    """

    def __init__(self, parts: Parts, depth: int, *, tells_items: bool = False) -> None:
        self.parts = parts
        self.depth = depth
        self.tells_items = tells_items
        self.turn = asyncio.Lock()
        self._seen: dict[str, Item] = {}

    @property
    def size(self) -> int:
        """The number of entries that are kept."""
        return len(self._seen)

    def relative(self, path: str) -> str:
        """Return the path of an entry as it is in the folder."""
        return "/".join(path.split("/")[len(self.parts) :])

    def begin(self, items: Sequence[Item]) -> None:
        """Start from these entries of the folder, by their paths in the workspace."""
        self._seen = {item.path: item for item in items}

    def take(self, items: Sequence[Item]) -> list[FolderChange]:
        """Return the changes since the last look, which found other entries: first what is gone."""
        before, self._seen = self._seen, {item.path: item for item in items}
        return list(_changes(before, self._seen))


def _changes(before: Mapping[str, Item], after: Mapping[str, Item]) -> Iterator[FolderChange]:
    gone = {path: item for path, item in before.items() if not _is_same_kind(item, after.get(path))}
    new = {path: item for path, item in after.items() if not _is_same_kind(item, before.get(path))}
    renamed = _renamed(gone, new)
    arrived = set(renamed.values())
    # What is in a folder comes after it in this order, so it goes first.
    for path in sorted(gone, reverse=True):
        if path not in renamed:
            yield FolderChange(ChangeKind.REMOVE, path)
        elif not _is_carried(path, renamed):
            yield FolderChange(ChangeKind.RENAME, path)
    carried = {renamed[path] for path in renamed if _is_carried(path, renamed)}
    for path in sorted(after):
        item = after[path]
        if path in carried:
            continue
        if path in new:
            yield FolderChange(ChangeKind.CREATE, path, item)
            if path not in arrived and stat.S_ISREG(item.mode) and item.size:
                yield FolderChange(ChangeKind.WRITE, path, item)
            continue
        earlier = before[path]
        if not item.is_folder and (earlier.size, earlier.modified) != (item.size, item.modified):
            yield FolderChange(ChangeKind.WRITE, path, item)
        if earlier.mode != item.mode:
            yield FolderChange(ChangeKind.CHMOD, path, item)


def _is_same_kind(one: Item, other: Item | None) -> bool:
    return other is not None and stat.S_IFMT(one.mode) == stat.S_IFMT(other.mode)


def _renamed(gone: Mapping[str, Item], new: Mapping[str, Item]) -> dict[str, str]:
    """Return the new path of each entry that has another one, by its old path."""
    found = {_mark(item): path for path, item in new.items()}
    renamed: dict[str, str] = {}
    for path, item in gone.items():
        place = found.pop(_mark(item), None)
        if place is not None:
            renamed[path] = place
    return renamed


def _mark(item: Item) -> tuple[int, int, int, int]:
    """Return what a rename leaves as it is. A new file may have the inode of one that was just removed."""
    kind = stat.S_IFMT(item.mode)
    return (kind, item.inode, 0, 0) if item.is_folder else (kind, item.inode, item.size, item.modified)


def _is_carried(path: str, renamed: Mapping[str, str]) -> bool:
    """Return whether an entry has another path because its folder was renamed, which alone is told."""
    folder, _, name = path.rpartition("/")
    return folder in renamed and renamed[path] == f"{renamed[folder]}/{name}"
