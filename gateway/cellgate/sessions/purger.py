"""Purges: a session's end, its files' removal, and the removal of its record except for a tombstone.

While a purge runs, nobody can open the session. The rows are gone when the purge has ended; the bytes go in
the background. ``registry`` ends sessions, ``retention`` decides which are too old.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cellgate.errors import Conflict, NotFound
from cellgate.execution.checks import check_session_key
from cellgate.files.workspace import folder_of
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import Purge, RecordStore
from cellgate.sessions.keys import Erasure, SessionKeys, shutting_down
from cellgate.sessions.ownership import Owned
from cellgate.sessions.parts import SharedParts
from cellgate_kernels.base.tasks import Supervisor, outcome

logger = logging.getLogger(__name__)

PURGE_PATIENCE = 5.0
"""Seconds that a purge request waits for the last bytes to be gone."""


class SessionPurger:
    """Purges sessions. `delete` ends one and removes its files; `tasks`: the registry's, which it ends."""

    def __init__(
        self,
        journal: RecordStore,
        parts: SharedParts,
        keys: SessionKeys,
        delete: Callable[[str, str], Awaitable[None]],
        tasks: Supervisor,
    ) -> None:
        self._journal = journal
        self._workspaces = parts.workspaces
        self._usage = parts.usage
        self._keys = keys
        self._delete = delete
        self._tasks = tasks
        self._erasures = Supervisor()

    async def close(self) -> None:
        """Stop waiting for bytes to be gone."""
        await self._erasures.cancel()

    async def purge(self, principal: str, key: str, *, by: str) -> bool:
        """End the session and remove its files and its record, except for a tombstone. Raises NotFound.

        `by`: the requester, for the audit trail. Returns whether every byte is gone. If readers of the record
        still use some bytes, or files can't be removed at once, they are removed in the background, and
        `purging` returns the session until then.
        """
        owned = (principal, check_session_key(key))
        use = self._keys.find(owned)
        if use.erasure is not None and not use.open:
            purged = use.erasure.purge
        else:
            purged = await self._purge(owned, by=by, reason="requested")
        if (found := self._keys.find(owned).erasure) is not None:
            await asyncio.wait([found.task], timeout=PURGE_PATIENCE)
        if (found := self._keys.find(owned).erasure) is not None and found.purge is purged:
            return False
        return purged.erased.exception() is None

    def purging(self, principal: str, key: str) -> SessionRow | None:
        """Return the former row of a purged session whose bytes are not all gone yet."""
        erasure = self._keys.find((principal, key)).erasure
        return None if erasure is None else erasure.row

    async def purge_ended(self, row: SessionRow, reason: str) -> bool:
        """Remove an ended session's files and record for the gateway; False: the session is live again.

        Returns when its rows are removed; their bytes are erased later, together with those of others. Raises
        OwnedElsewhere if another gateway has the session or its files, Conflict if the session was used since
        the row was read, and StorageError.
        """
        owned = (row.principal, row.key)
        await self._keys.check_home(owned)
        if self._keys.closing or self._keys.find(owned).open:
            return False
        purged = await self._purge(owned, by="gateway", reason=reason, chosen=row)
        await asyncio.wait([purged.removed])
        return purged.removed.exception() is None

    async def _purge(self, owned: Owned, *, by: str, reason: str, chosen: SessionRow | None = None) -> Purge:
        """Start a purge, or join the one in progress. `chosen`: the row for which the gateway decided it."""
        use = self._keys.use(owned)
        if use.purge is None:
            key = owned[1]
            use.purge = self._tasks.share(
                self._do_purge(owned, by, reason, chosen), f"purge {key}", session=key
            )
            use.purge.add_done_callback(lambda _: self._purged(owned))
        return await outcome(use.purge, shutting_down)

    def _purged(self, owned: Owned) -> None:
        self._keys.use(owned).purge = None
        self._keys.release(owned)

    async def _check_unused(self, owned: Owned, chosen: SessionRow) -> None:
        """Check that nobody has used an ended session since the row was read. Raises Conflict, NotFound.

        The key is claimed first: from then on no other gateway uses the session.
        """
        await self._keys.claim(owned)
        await self._journal.commit()
        row = await self._journal.reads.session(*owned)
        if row is None:
            raise NotFound(f"No session {owned[1]!r}")
        if (row.id, row.state, row.last_activity) != (chosen.id, chosen.state, chosen.last_activity):
            raise Conflict(f"The session {owned[1]!r} was used again and is not to go yet")

    async def _do_purge(self, owned: Owned, by: str, reason: str, chosen: SessionRow | None) -> Purge:
        if chosen is not None:
            await self._check_unused(owned, chosen)
        await self._delete(*owned)
        row = await self._journal.reads.session(*owned)
        if row is None:
            raise NotFound(f"No session {owned[1]!r}")
        # Another gateway may have taken the session over since the key was claimed, and goes on with it.
        epoch = await self._journal.claim(row.id)
        size = await self._journal.reads.record_size(row.id) if self._usage.measures_records else 0
        purged = await self._journal.purge(row.id, by=by, reason=reason, epoch=epoch)
        if purged is None:
            raise NotFound(f"No session {owned[1]!r}")
        self._usage.recorded(row.principal, -size)
        ids = {"principal": owned[0], "session": owned[1], "cause": reason}
        logger.info("A session's record is purged", extra=ids)
        erasing = self._erasures.start(self._erase(owned, row, purged), f"end of purge {owned[1]}")
        self._keys.use(owned).erasure = Erasure(row, purged, erasing)
        return purged

    async def _erase(self, owned: Owned, row: SessionRow, purged: Purge) -> None:
        """Return when the last byte of the record and of the files is gone."""
        await asyncio.wait([purged.erased])
        await self._workspaces.gone(folder_of(row), str(row.environment.get("kernel_id")))
        # The key may have been reused and purged again.
        use = self._keys.find(owned)
        if use.erasure is not None and use.erasure.purge is purged:
            use.erasure = None
            self._keys.release(owned)
