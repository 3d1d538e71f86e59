"""The ancestors of a branch: the sessions whose rows come before its own, and a check of its origin.

A session that is branched records an event `branched`; the first event of its branch names that event's hash,
which covers everything before it. So the branch's own chain covers its ancestors' up to there, though none of
their rows is copied: purging an ancestor removes its rows, and the branch keeps only its name. Pure: each
store looks up the rows; ``session_export`` shows the ancestors' cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from cellgate.record.facts import BRANCHED
from cellgate.record.rows import Absence, Ancestor, EventRow, Lineage, SessionRow
from cellgate.wire.events import BranchedFrom
from cellgate_kernels.codec.decoding import json_decoder

MOST_ANCESTORS = 1000
"""Most ancestors that are looked up; nobody branches that deep."""

_decode = json_decoder(dict[str, Any]).decode


class OriginRows(Protocol):
    """Looks up rows of the sessions that branches were made from."""

    def session_by_id(self, session_id: int) -> SessionRow | None:
        """Return the session with this id, unless it was purged."""

    def event(self, session_id: int, seq: int) -> EventRow | None:
        """Return a session's event with this number."""

    def tombstones(self, session_id: int) -> Iterable[dict[str, Any]]:
        """Return the fields of the audit trail's entries about the session's purge."""


def lineage(rows: OriginRows, session: SessionRow, covers: Callable[[str], bool]) -> Lineage:
    """Return the ancestors that are recorded, up to the first whose key is not covered."""
    found: list[Ancestor] = []
    absence: Absence | None = None
    while (origin := session.branched_from) is not None and len(found) < MOST_ANCESTORS:
        parent = rows.session_by_id(session.parent)
        if parent is None:
            absence = Absence.PURGED
            break
        if not covers(parent.key):
            absence = Absence.OUT_OF_REACH
            break
        found.append(Ancestor(parent, origin))
        session = parent
    return Lineage(tuple(reversed(found)), absence)


@dataclass(frozen=True, slots=True)
class Origin:
    """The event that a branch continues. `problem`: the difference from what the branch says, if any.

    `purged`: the event is gone together with its session, as the audit trail confirms.
    """

    problem: str | None = None
    purged: bool = False


def check_origin(rows: OriginRows, session: SessionRow) -> Origin:
    """Compare a session's origin, if it is a branch, with the record of its parent."""
    origin = session.branched_from
    if origin is None:
        return Origin("the session's own row was changed: it has a parent" if session.parent else None)
    named = f"row {origin.seq} of session {origin.session}, which row 1 says it continues,"
    parent = rows.session_by_id(session.parent)
    if parent is None:
        covered = _has_tombstone(rows, session, origin)
        return Origin(None if covered else f"{named} is not there, and no tombstone covers it", covered)
    if (parent.principal, parent.key) != (session.principal, origin.session):
        return Origin(f"{named} is looked for in session {parent.key} of {parent.principal}")
    row = rows.event(parent.id, origin.seq)
    if row is None:
        return Origin(f"{named} is not there")
    if row.hash.hex() != origin.head:
        return Origin(f"{named} is another one: its hash is {row.hash.hex()}, not {origin.head}")
    if row.type != BRANCHED or _decode(row.body).get("branch") != session.key:
        return Origin(f"{named} does not tell of this branch")
    return Origin()


def _has_tombstone(rows: OriginRows, session: SessionRow, origin: BranchedFrom) -> bool:
    """Return whether the audit trail has the parent's purge, and that it had the named event."""
    for stone in rows.tombstones(session.parent):
        same = (stone["principal"], stone["session"]) == (session.principal, origin.session)
        longer = stone["rows"] > origin.seq
        if same and (longer or (stone["rows"], stone["head"]) == (origin.seq, origin.head)):
            return True
    return False
