"""Files that a session left at another gateway, where the gateways of a cluster share a disk.

Each gateway has a folder of its own on that disk, named after its id. When a session goes on at another
gateway, its files are copied from the former one's folder, and removed there once the copy is the session's.
``sessions.settling`` says when; ``workspace`` has the folders of this gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cellgate.errors import storage
from cellgate.files.owed import OWED, owed_folder
from cellgate.files.snapshots import is_unfinished
from cellgate.files.workspace import (
    LATER,
    SNAPSHOTS,
    WorkspaceStore,
    folder_of,
    kernel_folder_of,
    snapshots_of,
)
from cellgate.record.rows import SessionRow
from cellgate_kernels.base import trees
from cellgate_kernels.base.branching import BRANCHES
from cellgate_kernels.base.leftovers import Leftovers
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.launch.folders import patiently

logger = logging.getLogger(__name__)

WORKSPACES = "workspaces"
"""The folder of a gateway's workspaces, in the folder with all its files."""


@dataclass(frozen=True, slots=True)
class FormerFiles:
    """The files of one session in another gateway's folder.

    `folders`: those with files, newest first; `marks`: links to one of them. `snapshots`: the folder of the
    session's checkpoints, which may not exist.
    """

    folders: tuple[Path, ...]
    marks: tuple[Path, ...]
    snapshots: Path


class FormerFolders:
    """The folders of all gateways of a cluster on a disk that they share.

    `workspaces`: this gateway's; `lane`: threads that look at the others'.
    """

    def __init__(self, disk: Path, workspaces: WorkspaceStore, leftovers: Leftovers, lane: Lane) -> None:
        self._disk = disk
        self._workspaces = workspaces
        self._leftovers = leftovers
        self._lane = lane
        self._tasks = Supervisor()

    async def find(self, row: SessionRow, node: str) -> FormerFiles:
        """Return the files that a session left in a gateway's folder. Raises StorageError."""
        return await self._lane.run(_find, self._root(node), row)

    async def bring(self, row: SessionRow, node: str) -> FormerFiles:
        """Copy a session's files from the folder of a gateway that has lost the session.

        Its kernels there may still write to them. A rollback that was interrupted there is completed in the
        copy. Returns the originals, for `forget`. Raises StorageError.
        """
        former, kept = await self.find(row, node), self._workspaces.of(folder_of(row))
        for folder in former.folders:
            await kept.take_copy(folder)
        if await self._lane.run(is_unfinished, former.snapshots):
            snapshots = await self._workspaces.snapshots_in(former.snapshots, 0)
            await self._tasks.complete(patiently(snapshots.recover, kept.path), former.snapshots.name)
        if not former.folders and not await self._lane.run(self._root(node).is_dir):
            ids = {"session": row.key, "principal": row.principal, "node": node}
            told = (
                "The gateway %s, which had a session, has no folder in %s: the session's files stay with it"
            )
            logger.warning(told, node, self._disk, extra=ids)
        return former

    async def forget(self, former: FormerFiles) -> None:
        """Remove files that a session had at another gateway; failures are retried later."""
        await self._leftovers.remove(*former.folders, *former.marks, former.snapshots)

    def _root(self, node: str) -> Path:
        return workspaces_of(self._disk, node)


def workspaces_of(disk: Path, node: str) -> Path:
    """Return the folder of a gateway's workspaces on a shared disk. `node`: its id, letters and digits."""
    assert node.isalnum()
    return disk / node / WORKSPACES


def _find(root: Path, row: SessionRow) -> FormerFiles:
    kept = folder_of(row)
    mark = root / f"{kept}{OWED}"
    with storage("The files at the session's former gateway can't be looked for"):
        owed = owed_folder(mark)
        places = [*_kernel_folders(root, kernel_folder_of(row)), *([] if owed is None else [owed])]
        places += [root / f"{kept}{LATER}", root / kept]
        found = tuple(dict.fromkeys(each for each in places if trees.is_folder(each)))
    return FormerFiles(found, () if owed is None else (mark,), root / f"{snapshots_of(row)}{SNAPSHOTS}")


def _kernel_folders(root: Path, kernel: str) -> Iterator[Path]:
    """Yield the paths that a kernel's folder may have: those of branches are inside of their sandbox's."""
    yield root / kernel
    for name in trees.names_in(root) if root.is_dir() else ():
        if name.endswith(BRANCHES):
            yield root / name / kernel
            for inner in trees.names_in(root / name):
                if inner.endswith(BRANCHES):
                    yield root / name / inner / kernel
