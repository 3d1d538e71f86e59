"""Workspaces that several sessions share or shared: reservations of their disk, and files that must stay.

``opener`` opens sessions in them; ``files.workspace`` knows the folders themselves.
"""

from __future__ import annotations

from collections import Counter

from cellgate.errors import CannotShare, OwnedElsewhere
from cellgate.fairness.reservation import Reservation
from cellgate.files.workspace import folder_name, folder_of
from cellgate.quotas.usage import Usage
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import RecordStore
from cellgate.sessions.keys import Opening, SessionKeys
from cellgate.sessions.ownership import Owned


class SharedWorkspaces:
    """The kept folders of more than one session, which depend on other sessions and the record."""

    def __init__(self, journal: RecordStore, usage: Usage, keys: SessionKeys) -> None:
        self._journal = journal
        self._usage = usage
        self._keys = keys
        self._names: set[str] = set()
        # The reserved disk of workspaces that outlived the session for which it was reserved.
        self._disks: dict[str, Reservation] = {}

    def add(self, row: SessionRow) -> None:
        """Note that another session gets this session's workspace."""
        self._names.add(folder_of(row))

    async def check_here(self, owned: Owned, other: Owned) -> None:
        """Check that the files of the session `other`, which `owned` is to share, are at this gateway.

        Raises CannotShare if they were lost with a gateway, or another gateway has them and `owned` is here;
        OwnedElsewhere if `owned` can be opened there, and StorageError.
        """
        if self._keys.find(other).open:
            return
        try:
            moved = (await self._keys.claim(other)).moved
        except OwnedElsewhere as error:
            if self._keys.find(owned).open or await self._keys.ownership.home(*owned) is not None:
                raise CannotShare(
                    f"The sessions {owned[1]!r} and {other[1]!r} are at two gateways: choose another key"
                ) from error
            raise
        finally:
            self._keys.release(other)
        if moved:
            raise CannotShare(
                f"The gateway that had the files of the session {other[1]!r} is gone. Run a cell there first:"
                " its result says what became of them, and then they can be shared"
            )

    async def load(self) -> set[str]:
        """Return the names of the kept folders of all recorded sessions; note those that several share."""
        counts = Counter(folder_name(each) for each in await self._journal.reads.session_folders())
        self._names.update(name for name, count in counts.items() if count > 1)
        return set(counts)

    def is_counted(self, folder: str | None) -> bool:
        """Return whether the disk of this workspace is already reserved: it counts only once.

        True while one of its sessions is live or being opened, or after the first of several has ended.
        """
        if folder is None or folder_name(folder) not in self._names:
            return False
        return any(each.row.folder == folder for each in self._keys.sessions()) or any(
            each.folder == folder for _, each in self._keys.openings()
        )

    def give_back(self, principal: str, folder: str | None, reserved: Reservation, disk: int) -> None:
        """Release a session's reservations; its workspace's disk stays reserved while others use it."""
        reserved.release()
        if folder is None:
            return
        if not self.is_counted(folder):
            if (last := self._disks.pop(folder, None)) is not None:
                last.release()
        elif disk and folder not in self._disks:
            self._disks[folder] = self._usage.account(principal).adopt_disk(disk)

    async def is_held(self, row: SessionRow, *, but: Opening | None = None) -> bool:
        """Return whether the session's files belong to another session, too, that was not deleted.

        `but`: an opening of this session.
        """
        if folder_of(row) not in self._names:
            return False
        openings = [each for _, each in self._keys.openings() if each is not but]
        # A caller that deletes a session has waited for its opening.
        if any(each.folder == row.folder and not each.made.done() for each in openings):
            return True
        opened = (each.made.result() for each in openings if each.made.done())
        for session in (*self._keys.sessions(), *opened):
            if session.row.folder == row.folder and session.row.id != row.id and not session.is_deleted:
                return True
        return await self._journal.reads.holds_folder(row.folder, but=row.id)
