"""The last event of each session that this gateway has written or claimed, as the database confirmed it.

A database that is restored from an older copy, or fails over to a standby that lacks commits, breaks all
connections. So whoever has a new connection asks here once which sessions' events it lacks. For the writer's
thread alone; ``writes`` calls it. Bounded: of more sessions than it keeps, those that were not written for
longest are forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellgate.record.store.backlog import Group
from cellgate.record.store.postgresql import statements
from cellgate.record.store.postgresql.record_connection import Connection
from cellgate.record.store.postgresql.session_claims import MOST_SESSIONS

ENDED = "ended"


@dataclass(frozen=True, slots=True)
class KnownHead:
    """The number and hash of a session's last event. `ended`: whether the session had ended, if known."""

    seq: int
    hash: bytes
    ended: bool


class KnownHeads:
    """The heads of sessions, the last used ones last."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._heads: dict[int, KnownHead] = {}

    def note(self, session_id: int, seq: int, head: bytes, *, ended: bool) -> None:
        """Note a session's last event; `seq` is 0 for a session without events, which can lack none."""
        self._heads.pop(session_id, None)
        if seq:
            self._heads[session_id] = KnownHead(seq, head, ended)
        if len(self._heads) > self._most:
            del self._heads[next(iter(self._heads))]

    def note_group(self, group: Group, written: set[int]) -> None:
        """Note the last events of those sessions of a group that were `written`."""
        last = {event.session_id: event for event in group.events}
        for session_id in written:
            known, row = self._heads.get(session_id), group.sessions.get(session_id)
            ended = (known is not None and known.ended) if row is None else row.state == ENDED
            if (event := last.get(session_id)) is not None:
                self.note(session_id, event.seq, event.hash, ended=ended)
            elif known is not None:
                self.note(session_id, known.seq, known.hash, ended=ended)

    def forget(self, session_id: int) -> None:
        """Forget a session, whose record is removed or which is not recorded any more."""
        self._heads.pop(session_id, None)

    def take_lost(self, db: Connection) -> set[int]:
        """Return, and forget, the sessions whose last event the database lacks.

        An ended session without a row is only forgotten: it may have been purged elsewhere.
        """
        found = _lacking(db, self._heads)
        return {
            session_id for session_id, has_row in found if not self._heads.pop(session_id).ended or has_row
        }

    def is_lost(self, db: Connection, session_id: int) -> bool:
        """Return whether the database lacks a session's last event, as far as that is known."""
        known = self._heads.get(session_id)
        return known is not None and bool(_lacking(db, {session_id: known}))


def _lacking(db: Connection, heads: Mapping[int, KnownHead]) -> list[tuple[int, bool]]:
    """Return the sessions whose last event the database lacks, each with whether it has a row."""
    if not heads:
        return []
    asked = {
        "id": [*heads],
        "seq": [head.seq for head in heads.values()],
        "head": [head.hash for head in heads.values()],
    }
    return [(session_id, has_row) for session_id, has_row in db.execute(statements.LOST, asked)]
