"""Settles sessions of other gateways of a cluster here: their files, and then the note where these are.

A session's files are at one gateway, its home. With a folder that all gateways mount, the files come along
when the session goes on elsewhere; without one they stay behind. ``opener`` settles a session that it has
claimed; ``files.former`` copies and removes.
"""

from __future__ import annotations

from pathlib import Path

from cellgate.files.former import FormerFiles, FormerFolders
from cellgate.files.workspace import WorkspaceStore, folder_of
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import RecordStore
from cellgate.sessions.keys import Opening, SessionKeys
from cellgate.sessions.ownership import Owned
from cellgate.sessions.shared_workspaces import SharedWorkspaces
from cellgate.sessions.state import SessionState

MOST_BRANCHES = 1000
"""Branches that are looked at; of a session with more, the files of a lost kernel stay where they are too."""


class Settling:
    """The homes of sessions.

    `workspaces`: this gateway's; `shared`: those of several sessions. `former`: the folders of all gateways,
    if they share a disk.
    """

    def __init__(
        self,
        journal: RecordStore,
        workspaces: WorkspaceStore,
        shared: SharedWorkspaces,
        keys: SessionKeys,
        former: FormerFolders | None,
    ) -> None:
        self._journal = journal
        self._workspaces = workspaces
        self._shared = shared
        self._keys = keys
        self._former = former

    async def settle(
        self, owned: Owned, row: SessionRow | None, opening: Opening | None = None, *, keep_files: bool = True
    ) -> None:
        """Make this gateway the home of a session whose key it has claimed. Raises StorageError.

        Files that this gateway has of the session from before it was elsewhere are removed. `row`: its last
        one, if any; `opening`: the one for which it is done. `keep_files`: False for a session that is to be
        deleted, whose files elsewhere are only removed.
        """
        old = FormerFiles()
        if row is not None:
            held = await self._shared.is_held(row, but=opening)
            node, former = await self._find(row)
            kept = self._workspaces.of(folder_of(row))
            if not held:
                # A cell would take them for the present ones.
                await kept.remove_old(former.folders)
            if node and not (held and await kept.is_there()):
                old = await self._bring(row, node, former, keep_files)
        await self._keys.ownership.settle(*owned)
        if self._former is not None:
            await self._former.forget(old)

    async def _find(self, row: SessionRow) -> tuple[str, FormerFiles]:
        """Return the session's home and its files there, if the gateways share a disk; else "" and none."""
        if self._former is None:
            return "", FormerFiles()
        node = await self._keys.ownership.files_at(row.principal, row.key)
        return node, await self._former.find(row, node) if node else FormerFiles()

    async def _bring(self, row: SessionRow, node: str, former: FormerFiles, keep_files: bool) -> FormerFiles:
        """Bring the session's files here; return those that are to be removed elsewhere afterwards."""
        alone = await self._is_alone(row)
        if keep_files and self._former is not None:
            former = await self._former.bring(row, node, former, alone=alone)
        return former if alone else FormerFiles()

    async def place(self, row: SessionRow) -> Path:
        """Return the folder with the files of a session without a kernel, which may not exist.

        Raises StorageError.
        """
        _, former = await self._find(row)
        if former.folders:
            return former.folders[0]
        return self._workspaces.of(folder_of(row)).place

    async def _is_alone(self, row: SessionRow) -> bool:
        """Return whether no other session can have its files in the folders that this one had elsewhere."""
        if "workspace_of" in row.environment or await self._journal.reads.holds_folder(
            row.folder, but=row.id
        ):
            return False
        branches = await self._journal.reads.descendants(row.id, MOST_BRANCHES)
        return len(branches) < MOST_BRANCHES and all(each.state == SessionState.ENDED for each in branches)
