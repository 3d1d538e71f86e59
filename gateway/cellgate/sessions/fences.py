"""Ends sessions here that another gateway goes on with: their kernels would work for nobody.

The record's store finds out when a session's rows are refused, ``ownership`` when this gateway was silent for
so long that others may have taken its keys. ``takeover`` is the other gateway's side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cellgate.record.store.interface import FENCED, RecordStore
from cellgate.sessions.keys import SessionKeys
from cellgate.sessions.ownership import Owned
from cellgate.sessions.session import Session

logger = logging.getLogger(__name__)

FENCE = "fenced"
"""The cause of the end of such a session."""


class Fences:
    """Ends sessions of these keys by calling `end`, which does not wait."""

    def __init__(self, journal: RecordStore, keys: SessionKeys, end: Callable[[Session], None]) -> None:
        self._journal = journal
        self._keys = keys
        self._end = end
        journal.follow(self._end_by_id)
        keys.ownership.follow(self._recorded, self._end_by_key)

    def _recorded(self) -> list[Owned]:
        """Return the keys of live sessions; ones that are not recorded have none."""
        rows = (session.row for session in self._keys.sessions())
        return [(row.principal, row.key) for row in rows if row.principal]

    def _end_by_id(self, session_id: int) -> None:
        for session in self._keys.sessions():
            if session.row.id == session_id and session.row.principal:
                self._end_by_key((session.row.principal, session.row.key))

    def _end_by_key(self, owned: Owned) -> None:
        session = self._keys.find(owned).session
        if session is not None and not session.ending:
            ids = {"principal": owned[0], "session": owned[1], "epoch": session.log.epoch}
            logger.warning("Another gateway goes on with a session: its kernel here ends", extra=ids)
            self._journal.refuse(session.row.id, FENCED)
            self._end(session)
