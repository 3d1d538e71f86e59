"""Which claims of sessions a gateway has made, and which sessions have no row in PostgreSQL yet.

It is what this gateway knows; whether a claim still holds is decided by each commit's statement. Bounded: of
more sessions than it keeps, those that were not written for longest are forgotten, and learned again from
whoever writes.
"""

from __future__ import annotations

from collections.abc import Collection

from cellgate.record.store.interface import FIRST_EPOCH

MOST_SESSIONS = 65_536


class SessionClaims:
    """The epochs of the last claims of sessions, the last used ones last."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._epochs: dict[int, int] = {}
        self._without_row: dict[int, None] = {}

    def begin(self, session_id: int) -> None:
        """Note a new session, claimed by `FIRST_EPOCH`, whose row is not stored yet."""
        self.note(session_id, FIRST_EPOCH)
        self._without_row[session_id] = None
        if len(self._without_row) > self._most:
            del self._without_row[next(iter(self._without_row))]

    def note(self, session_id: int, epoch: int) -> None:
        """Note the epoch of the last claim of a session."""
        self._epochs.pop(session_id, None)
        self._epochs[session_id] = epoch
        if len(self._epochs) > self._most:
            del self._epochs[next(iter(self._epochs))]

    def is_known(self, session_id: int, epoch: int) -> bool:
        """Return whether this is the last claim of the session, or nothing is known of another one."""
        known = self._epochs.get(session_id, epoch)
        if known == epoch:
            self.note(session_id, epoch)
        return known == epoch

    def epochs_of(self, session_ids: Collection[int]) -> dict[int, int]:
        """Return the epochs of these sessions' claims."""
        return {session_id: self._epochs.get(session_id, FIRST_EPOCH) for session_id in session_ids}

    def new_of(self, session_ids: Collection[int]) -> set[int]:
        """Return those of the sessions that have no row yet."""
        return {session_id for session_id in session_ids if session_id in self._without_row}

    def have_rows(self, session_ids: Collection[int]) -> None:
        """Note that the rows of these sessions are stored, or will never be."""
        for session_id in session_ids:
            self._without_row.pop(session_id, None)
