"""What the gateways of a cluster note of browsers' tickets and sign-ins, in PostgreSQL: digests alone.

It connects when something is to be noted, and again when the connection was lost. What is noted is read with
the users (``user_tables``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from cellgate.identity.store.interface import SignInLedger
from cellgate.identity.store.user_tables import UserTables
from cellgate.record.store.postgresql.record_connection import RecordAddress


class SignInTables(SignInLedger):
    """The tables by a connection of their own, for one thread at a time."""

    def __init__(self, address: RecordAddress, clock: Callable[[], float] = time.time) -> None:
        self._address = address
        self._clock = clock
        self._tables: UserTables | None = None

    def use_ticket(self, digest: bytes, until: float) -> bool:
        return self._connected().use_ticket(digest, until, self._clock())

    def end_sign_ins(self, digests: Collection[bytes], until: float) -> None:
        self._connected().end_sign_ins(digests, until, self._clock())

    def _connected(self) -> UserTables:
        """Return a connection that has just answered: the server may have been restarted meanwhile."""
        if self._tables is not None and not self._tables.lives():
            self.close()
        if self._tables is None:
            self._tables = UserTables.of_gateway(self._address)
        return self._tables

    def close(self) -> None:
        if self._tables is not None:
            self._tables.close()
            self._tables = None
