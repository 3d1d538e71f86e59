"""Ends sessions here that another gateway goes on with, also while they open: they would work for nobody.
The same goes for sessions whose record lacks events, because its database went back to an older state.

The record's store finds out when a session's rows are refused, ``ownership`` when this gateway was silent for
so long that others may have taken its keys. ``takeover`` is the other gateway's side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from cellgate.errors import Fenced, RecordSetBack, StorageError
from cellgate.record.store.interface import FENCED, RecordStore
from cellgate.sessions.keys import Opening, SessionKeys
from cellgate.sessions.ownership import Owned
from cellgate.sessions.session import Session
from cellgate.sessions.takeover import LostBy
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

FENCE = "fenced"
"""The cause of the end of a session that another gateway has."""


class Fences:
    """Ends sessions of these keys by calling `end` with the cause, which does not wait.

    `set_back` is called with each that ends because its record lacks events.
    """

    def __init__(
        self,
        journal: RecordStore,
        keys: SessionKeys,
        end: Callable[[Session, str], None],
        set_back: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._keys = keys
        self._end = end
        self._set_back = set_back
        journal.follow(self._end_by_id)
        keys.ownership.follow(self._recorded, self._end_taken)
        self._tasks = Supervisor()

    def _recorded(self) -> list[Owned]:
        """Return the keys of live sessions, which are theirs only if these are recorded, and the keys that
        are claimed for sessions being opened.
        """
        uses = ((owned, use) for owned, use in self._keys.uses.items() if owned[0])
        return [owned for owned, use in uses if use.session or (use.opening and use.opening.claimed)]

    def _end_by_id(self, session_id: int) -> None:
        for owned, use in tuple(self._keys.uses.items()):
            if owned[0] and use.made is not None and use.made.row.id == session_id:
                self._end_by_key(owned)

    def _end_taken(self, owned: Owned) -> None:
        """End the session of a key that is not this gateway's any more; it does not wait."""
        self._tasks.start(self._end_after_look(owned), f"fence {owned[1]}", session=owned[1])

    async def _end_after_look(self, owned: Owned) -> None:
        # A database that went back may have lost the claim of the key, and the session's events with it.
        with suppress(StorageError):
            await self._journal.look()
        self._end_by_key(owned)

    def _end_by_key(self, owned: Owned) -> None:
        use = self._keys.find(owned)
        session = use.session
        if session is None and use.opening is not None:
            self._end_opening(owned, use.opening)
        elif session is not None and not session.ending:
            ids = {"principal": owned[0], "session": owned[1], "epoch": session.log.epoch}
            if isinstance(self._journal.failure_of(session.row.id), RecordSetBack):
                logger.error("The record lacks the last events of a session: its kernel ends", extra=ids)
                self._end(session, LostBy.RECORD_SET_BACK)
                self._set_back(session)
                return
            logger.warning("Another gateway goes on with a session: its kernel here ends", extra=ids)
            self._journal.refuse(session.row.id, FENCED)
            self._end(session, FENCE)

    def _end_opening(self, owned: Owned, opening: Opening) -> None:
        if opening.fenced is None:
            ids = {"principal": owned[0], "session": owned[1]}
            logger.warning("A session that is being opened here is given up", extra=ids)
            opening.fenced = Fenced(FENCED)
            if opening.made.done():
                session_id = opening.made.result().row.id
                self._journal.refuse(session_id, FENCED)
                opening.fenced = self._journal.failure_of(session_id) or opening.fenced
            opening.task.cancel()
