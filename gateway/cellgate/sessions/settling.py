"""Settles sessions of other gateways of a cluster here: their files, and then the note where these are.

A session's files are at one gateway, its home. With a folder that all gateways mount, the files come along
when the session goes on elsewhere; without one they stay behind. ``opener`` settles a session that it has
claimed; ``files.former`` copies and removes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from cellgate.files.former import FormerFolders
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
        brought = None
        if row is not None:
            kept = self._workspaces.of(folder_of(row))
            held = await self._shared.is_held(row, but=opening)
            if not held:
                # A cell would take them for the present ones.
                await kept.remove()
            if not held or not await kept.is_there():
                brought = await self._bring(row, keep_files)
        await self._keys.ownership.settle(*owned)
        if brought is not None:
            await brought()

    async def _bring(self, row: SessionRow, keep_files: bool) -> Callable[[], Awaitable[None]] | None:
        """Copy the session's files from its home; return the function that removes them there, if it may."""
        if self._former is None:
            return None
        node = await self._keys.ownership.files_at(row.principal, row.key)
        if not node:
            return None
        files = await (self._former.bring if keep_files else self._former.find)(row, node)
        return partial(self._former.forget, files) if await self._is_alone(row) else None

    async def place(self, row: SessionRow) -> Path:
        """Return the folder with the files of a session without a kernel, which may not exist.

        Raises StorageError.
        """
        if self._former is not None:
            node = await self._keys.ownership.files_at(row.principal, row.key)
            if node and (folders := (await self._former.find(row, node)).folders):
                return folders[0]
        return self._workspaces.of(folder_of(row)).place

    async def _is_alone(self, row: SessionRow) -> bool:
        """Return whether no other session can have its files in the folders that this one had elsewhere."""
        if "workspace_of" in row.environment or await self._journal.reads.holds_folder(
            row.folder, but=row.id
        ):
            return False
        branches = await self._journal.reads.descendants(row.id, MOST_BRANCHES)
        return len(branches) < MOST_BRANCHES and all(each.state == SessionState.ENDED for each in branches)
