"""Limits uploads: the one place where they reserve space before they write.

Everything that enters a workspace from outside its kernel (uploads, form parts, saved blocks, input files of
a replay) first reserves here, without awaiting in between, so that concurrent uploads can't use the same
space. Four limits apply: the session's `disk`, the space of all staged files together, three quarters of that
for one principal, and the reserve of the gateway's disk. This module only knows numbers: ``sessions.files``
measures workspaces and ``upload`` writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cellgate.errors import QueueFull, QuotaExceeded, StorageFull
from cellgate.fairness.turns import part_of_one
from cellgate_kernels.base.trees import free

STEP = 4 * 1024 * 1024
"""The step, in bytes, by which a reservation of unknown length grows."""

RETRY_AFTER = 5.0


@dataclass(eq=False, slots=True)
class UploadAccount:
    """One session's workspace. `used`: bytes on disk when last measured. `owner`: its principal."""

    used: int = 0
    owner: str = ""
    reservations: set[UploadReservation] = field(default_factory=set)

    @property
    def held(self) -> int:
        """Bytes that are reserved but not in the workspace yet."""
        return sum(reservation.held for reservation in self.reservations)


class UploadReservation:
    """Space for the files of one request. Call `take` before each write, and `release` at the end.

    `limit`: the session's `disk`. `credit`: the bytes on disk of the file that will be replaced.
    """

    def __init__(
        self, ledger: UploadLedger, session: int, account: UploadAccount, limit: int, credit: int
    ) -> None:
        self.size = 0
        self.taken = 0
        self.limit = limit
        self.credit = credit
        self._ledger = ledger
        self._session = session
        self._account = account

    @property
    def held(self) -> int:
        """Bytes that count against the session's limit."""
        return max(0, self.size - self.credit)

    def take(self, count: int) -> None:
        """Use `count` bytes, reserving more if necessary. Raises as `Ledger.reserve`."""
        needed = self.taken + count
        if needed > self.size:
            self._grow(needed)
        self.taken = needed

    def _grow(self, needed: int) -> None:
        try:
            self.extend(max(needed, self.size + STEP))
        except (QuotaExceeded, StorageFull, QueueFull):
            # A whole step does not fit, but the rest of the file may.
            self.extend(needed)

    def extend(self, size: int) -> None:
        """Reserve `size` bytes in total. Raises as `Ledger.reserve`, in which case nothing has changed."""
        others = self._account.held - self.held
        room = max(0, self.limit - self._account.used - others)
        # Replacing a file by a smaller one is always possible.
        if max(0, size - self.credit) > room:
            raise QuotaExceeded(
                f"The workspace has room for {room + self.credit} more bytes, and this would be {size};"
                " delete files first, or ask for a larger limit 'disk' when the session is made"
            )
        self._ledger.check_disk(size - self.size, size, self._account.owner)
        self.size = size

    def release(self) -> None:
        """Release the space. May be called more than once."""
        self._account.reservations.discard(self)
        self._ledger.forget(self._session)


class UploadLedger:
    """The reservations of all sessions.

    `staging`: the folder that uploads are written to; `reserve`: bytes of its disk to keep free; `most`: the
    limit of all reservations together, in bytes.
    """

    def __init__(self, staging: Path, reserve: int, most: int) -> None:
        self._staging = staging
        self._reserve = reserve
        self._most = most
        self._accounts: dict[int, UploadAccount] = {}

    @property
    def size(self) -> int:
        """The size of all reservations in bytes."""
        return sum(each.size for account in self._accounts.values() for each in account.reservations)

    def reserve(
        self, session: int, owner: str, used: int, limit: int, size: int, credit: int = 0
    ) -> UploadReservation:
        """Reserve `size` bytes; `used` must have been measured while no file was being placed.

        Raises QuotaExceeded: above the session's limit; StorageFull: no room on the gateway's disk;
        QueueFull: no room until other uploads have ended.
        """
        account = self._accounts.setdefault(session, UploadAccount())
        account.used = used
        account.owner = owner
        reservation = UploadReservation(self, session, account, limit, credit)
        try:
            reservation.extend(size)
        except BaseException:
            self.forget(session)
            raise
        account.reservations.add(reservation)
        return reservation

    def placed(self, reservation: UploadReservation, used: int) -> None:
        """Note that the reservation's files are now in the workspace, which has `used` bytes with them."""
        reservation._account.used = used
        reservation.release()

    def _size_of(self, owner: str) -> int:
        """Return the size of one principal's reservations in bytes."""
        theirs = (account for account in self._accounts.values() if account.owner == owner)
        return sum(each.size for account in theirs for each in account.reservations)

    def check_disk(self, more: int, size: int, owner: str) -> None:
        """Raise StorageFull and QueueFull when a reservation can't grow by `more` bytes, to `size`."""
        reserved = self.size
        of_one = part_of_one(self._most)
        if size > of_one:
            raise StorageFull(f"One user's uploads together may use {of_one} bytes on the gateway's disk")
        if reserved + more > self._most or self._size_of(owner) + more > of_one:
            raise QueueFull("Other uploads use all the space that uploads may use", retry_after=RETRY_AFTER)
        written = sum(each.taken for account in self._accounts.values() for each in account.reservations)
        if free(self._staging) - self._reserve < reserved - written + more:
            raise StorageFull("There is no room on the gateway's disk for this file")

    def forget(self, session: int) -> None:
        """Drop a session's account if it has no reservations; its usage is measured again next time."""
        account = self._accounts.get(session)
        if account is not None and not account.reservations:
            del self._accounts[session]
