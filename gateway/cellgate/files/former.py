"""Files that a session left at another gateway, where the gateways of a cluster share a disk.

Each gateway has a folder of its own on that disk, named after its id. When a session goes on at another
gateway, its kept folder is moved there. Files that other code may still use, a lost gateway's kernel or a
branch, are copied instead, and removed once the copy is the session's. ``sessions.settling`` says when;
``workspace`` has the folders of this gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from cellgate.errors import storage
from cellgate.files.owed import OWED, owed_folder
from cellgate.files.snapshots import is_unfinished
from cellgate.files.workspace import (
    LATER,
    MOVED,
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

    `folders`: those with files, newest first; `mark`: a link to one of them. `snapshots`: the folder of the
    session's checkpoints; `unfinished`: whether a rollback to one of these was interrupted.
    """

    folders: tuple[Path, ...] = ()
    mark: Path | None = None
    snapshots: Path | None = None
    unfinished: bool = False

    def are_kept(self, name: str) -> bool:
        """Return whether all files are in a kept folder, which no kernel has. `name`: that folder's."""
        names = [folder.name for folder in self.folders]
        return self.mark is None and not self.unfinished and names in ([name], [f"{name}{MOVED}"])


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
        """Return the files that a session left in a gateway's folder. Raises StorageError.

        If it has none, another gateway may have ended while it moved them to its own folder: then these.
        """
        found = await self._lane.run(_find, workspaces_of(self._disk, node), row)
        return found if found.folders else await self._lane.run(_find_moved, self._disk, row, found)

    async def bring(self, row: SessionRow, node: str, former: FormerFiles, *, alone: bool) -> FormerFiles:
        """Bring a session's files here from a gateway that has lost the session.

        `former`: what `find` returned; `alone`: whether no other session has these files. Kernels that were
        lost with their gateway may still write to them. A rollback that was interrupted there is completed in
        the copy. Returns the originals that are left, for `forget`. Raises StorageError.
        """
        kept = self._workspaces.of(folder_of(row))
        if alone and former.are_kept(kept.path.name):
            await kept.move_in(former.folders[0])
            return replace(former, folders=())
        for folder in former.folders:
            await kept.take_copy(folder)
        if former.unfinished and former.snapshots is not None:
            snapshots = await self._workspaces.snapshots_in(former.snapshots, 0)
            await self._tasks.complete(patiently(snapshots.recover, kept.path), former.snapshots.name)
        if not former.folders and not await self._lane.run(workspaces_of(self._disk, node).is_dir):
            logger.warning(
                "The gateway %s has no folder in %s: the files of its session stay with it",
                node,
                self._disk,
                extra={"session": row.key, "principal": row.principal, "node": node},
            )
        return former

    async def forget(self, former: FormerFiles) -> None:
        """Remove files that a session had at another gateway; failures are retried later."""
        others = [each for each in (former.mark, former.snapshots) if each is not None]
        await self._leftovers.remove(*former.folders, *others)


def workspaces_of(disk: Path, node: str) -> Path:
    """Return the folder of a gateway's workspaces on a shared disk. `node`: its id, letters and digits."""
    return disk / node / WORKSPACES


def _find(root: Path, row: SessionRow) -> FormerFiles:
    kept, snapshots = folder_of(row), root / f"{snapshots_of(row)}{SNAPSHOTS}"
    with _looking():
        owed = owed_folder(mark := root / f"{kept}{OWED}")
        places = [*_kernel_folders(root, kernel_folder_of(row)), *([] if owed is None else [owed])]
        places += [root / f"{kept}{suffix}" for suffix in (MOVED, LATER, "")]
        found = tuple(dict.fromkeys(each for each in places if trees.is_folder(each)))
        return FormerFiles(found, None if owed is None else mark, snapshots, is_unfinished(snapshots))


def _find_moved(disk: Path, row: SessionRow, found: FormerFiles) -> FormerFiles:
    with _looking():
        roots = [disk / name / WORKSPACES for name in trees.names_in(disk)]
        places = [root / f"{folder_of(row)}{MOVED}" for root in roots]
        return replace(found, folders=tuple(each for each in places if trees.is_folder(each)))


def _looking() -> AbstractContextManager[None]:
    return storage("The files at the session's former gateway can't be looked for")


def _kernel_folders(root: Path, kernel: str) -> Iterator[Path]:
    """Yield the paths that a kernel's folder may have: those of branches are inside of their sandbox's.

    All names are read only for a folder that is not where those of most kernels are: a gateway may have many.
    """
    yield root / kernel
    if trees.is_folder(root / kernel):
        return
    for name in trees.names_in(root) if root.is_dir() else ():
        if name.endswith(BRANCHES):
            yield root / name / kernel
            for inner in trees.names_in(root / name):
                if inner.endswith(BRANCHES):
                    yield root / name / inner / kernel
