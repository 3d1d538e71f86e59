"""Who may still write how much: the one place where uploads reserve room before they write.

Everything that comes into a workspace from outside its kernel (uploads, parts of forms, saved blocks, input
files of a replay) reserves here first, without waiting in between, so that what runs in parallel can't share
the same room. Three limits are kept: the session's `disk`, the space of all staged files together, and the
reserve of the gateway's disk. It knows numbers only: ``sessions.files`` measures workspaces and ``upload``
writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cellgate.record.space import free
from cellgate.wire.errors import QueueFull, QuotaExceeded, StorageFull

STEP = 4 * 1024 * 1024
"""Bytes by which a reservation of unknown length grows."""

RETRY_AFTER = 5.0


@dataclass(eq=False, slots=True)
class Account:
    """What is known of one session's workspace. `used`: bytes of its files when they were last measured."""

    used: int = 0
    reservations: set[Reservation] = field(default_factory=set)

    @property
    def held(self) -> int:
        """Bytes that are reserved and not in the workspace yet."""
        return sum(reservation.held for reservation in self.reservations)


class Reservation:
    """Room for the files of one request. `take` before each write, `release` in the end.

    `limit`: the session's `disk`. `credit`: bytes of the file that this one will replace.
    """

    def __init__(self, ledger: Ledger, session: int, account: Account, limit: int, credit: int) -> None:
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
        """Use `count` bytes, and reserve further ones where they are needed. Raises as `Ledger.reserve`."""
        needed = self.taken + count
        if needed > self.size:
            self._grow(needed)
        self.taken = needed

    def _grow(self, needed: int) -> None:
        try:
            self.extend(max(needed, self.size + STEP))
        except (QuotaExceeded, StorageFull, QueueFull):
            # The last piece of a file that just fits.
            self.extend(needed)

    def extend(self, size: int) -> None:
        """Reserve `size` bytes in all. Raises as `Ledger.reserve`, and then nothing has changed."""
        others = self._account.held - self.held
        room = max(0, self.limit - self._account.used - others)
        # A file that is replaced by a smaller one always fits.
        if max(0, size - self.credit) > room:
            raise QuotaExceeded(
                f"The workspace has room for {room + self.credit} more bytes, and this would be {size};"
                " delete files first, or ask for a larger limit 'disk' when the session is made"
            )
        self._ledger.check_disk(size - self.size, size)
        self.size = size

    def release(self) -> None:
        """Give the room back. May be called again."""
        self._account.reservations.discard(self)
        self._ledger.forget(self._session)


class Ledger:
    """The reservations of all sessions.

    `staging`: the folder that uploads are written to; `reserve`: bytes of its disk that stay free; `most`:
    bytes that all reservations may have together.
    """

    def __init__(self, staging: Path, reserve: int, most: int) -> None:
        self._staging = staging
        self._reserve = reserve
        self._most = most
        self._accounts: dict[int, Account] = {}

    @property
    def size(self) -> int:
        """Bytes of all reservations."""
        return sum(each.size for account in self._accounts.values() for each in account.reservations)

    def reserve(self, session: int, used: int, limit: int, size: int, credit: int = 0) -> Reservation:
        """Reserve `size` bytes; `used` was measured in a moment in which nothing was placed.

        Raises QuotaExceeded: the session may not have as much; StorageFull: the gateway's disk has no room;
        QueueFull: it will have, when other uploads have ended.
        """
        account = self._accounts.setdefault(session, Account())
        account.used = used
        reservation = Reservation(self, session, account, limit, credit)
        try:
            reservation.extend(size)
        except BaseException:
            self.forget(session)
            raise
        account.reservations.add(reservation)
        return reservation

    def placed(self, reservation: Reservation, used: int) -> None:
        """The reservation's files are in the workspace now, which has `used` bytes with them."""
        reservation._account.used = used
        reservation.release()

    def check_disk(self, more: int, size: int) -> None:
        """Raises StorageFull and QueueFull when a reservation can't grow by `more` bytes, to `size`."""
        reserved = self.size
        if reserved + more > self._most:
            if size > self._most:
                raise StorageFull(f"All uploads together may use {self._most} bytes on the gateway's disk")
            raise QueueFull("Other uploads use all the space that uploads may use", retry_after=RETRY_AFTER)
        written = sum(each.taken for account in self._accounts.values() for each in account.reservations)
        if free(self._staging) - self._reserve < reserved - written + more:
            raise StorageFull("There is no room on the gateway's disk for this file")

    def forget(self, session: int) -> None:
        """Drop the account of a session that has no reservation; what it used is measured anew."""
        account = self._accounts.get(session)
        if account is not None and not account.reservations:
            del self._accounts[session]
