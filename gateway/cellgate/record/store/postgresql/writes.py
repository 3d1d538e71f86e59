"""The writes into the tables in PostgreSQL: functions of a connection, for the writer's thread.

`TableWriter` writes a group by one statement. The rows that are not written are of three kinds: rows already
recorded because an answer was lost, rows of sessions that another gateway has claimed, and rows that can't be
stored, which stop their session alone. ``store`` decides when to write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import msgspec
import psycopg
from psycopg import errors

from cellgate.errors import Fenced, StorageError
from cellgate.record.chain import GENESIS
from cellgate.record.store.backlog import Group, RefusedRows
from cellgate.record.store.interface import FENCED, SET_BACK
from cellgate.record.store.postgresql import statements
from cellgate.record.store.postgresql.known_heads import KnownHeads
from cellgate.record.store.postgresql.record_connection import Connection
from cellgate.record.store.postgresql.schema import PING
from cellgate.record.store.postgresql.tables import (
    beginnings,
    entry,
    group_parameters,
    trail_parameters,
    trim,
)
from cellgate.record.trail import PURGED, NewEntry, TrailRow
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.resources import MIB

T = TypeVar("T")

MOST_BYTES = 8 * MIB
"""The most bytes of rows in one statement, unless a single session has more."""
PURGED_ROWS = 500
"""The most rows that one step of a purge removes."""
KEY_TAKEN = "sessions_of_key"
"""The name of the constraint that a second session with one key breaks."""
MOST_TRIES = 64
"""The most attempts at an entry of the audit trail when other gateways' entries come first."""
NO_SESSION = "there is no such session"
GONE_ON = "Somebody else has gone on with this session, so its record stays; try again"

_REFUSED = (RefusedRows, ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError)
_OF_ROWS = ("21", "22", "23", "54")
"""Classes of SQL states that are caused by the rows themselves: trying again would not help."""


@dataclass(slots=True)
class Batch:
    """A group, with the epochs of its sessions' claims, and the sessions without a row so far (`new`).

    `barred`: sessions that are no longer recorded, whose rows are left out.
    """

    group: Group
    epochs: Mapping[int, int]
    new: set[int]
    barred: Mapping[int, str]


@dataclass(slots=True)
class Adding:
    """Entries for the audit trail. `newest_act`: as for `RecordStore.add_to_trail`.

    `attempts`: the numbers and hashes of the last entries of earlier attempts, whose outcome is unknown.
    """

    entries: Collection[NewEntry]
    newest_act: int | None = None
    attempts: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OwnNode:
    """This gateway in its cluster, as the tables of that have it: the id and the incarnation of a node."""

    node: str
    incarnation: int


class TableWriter:
    """Writes rows. All methods are for one thread, each with that thread's connection.

    `own_node`: in a cluster, the node whose keys alone it writes. `set_back` is called with the sessions
    whose last events the database of a new connection lacks. `_unsure`: whether the outcome of the last group
    is unknown. `_trail_head`: the last known entry of the audit trail. `_last_id`: the highest id of a
    session that it knows of.
    """

    def __init__(self, set_back: Callable[[Collection[int]], object] = lambda _: None) -> None:
        self.own_node: OwnNode | None = None
        self._set_back = set_back
        self._known = KnownHeads()
        self._lost: set[int] = set()
        self._met: Connection | None = None
        self._unsure = False
        self._trail_head: tuple[int, bytes] | None = None
        self._last_id = 0

    # ---- a database that went back ------------------------------------------------------------------------

    def look(self, db: Connection) -> None:
        """Look whether the database answers, and on a new connection what it lacks."""
        if not self._meet(db):
            db.execute(PING)

    def _meet(self, db: Connection) -> bool:
        """Look once on each connection what its database lacks; return whether this was a new one.

        A database goes back to an older state only without connections. Nothing is written before this.
        """
        if db is self._met:
            return False
        self._trail_head = None
        lost = self._known.take_lost(db)
        self._lost |= lost
        if lost:
            self._set_back(lost)
        if self._lost:
            self._new_id(db)
        self._met = db
        return True

    def new_id(self, db: Connection) -> int:
        """Return an id that no session has ever had, even one that the database lacks."""
        self._meet(db)
        return self._new_id(db)

    def _new_id(self, db: Connection) -> int:
        found = new_ids(db, 1)
        if found <= self._last_id:
            found = new_ids(db, self._last_id - found + 1)
        self._last_id = found
        return found

    # ---- groups -------------------------------------------------------------------------------------------

    def write(self, db: Connection, batch: Batch) -> dict[int, str]:
        """Write the group; return the reasons by session, for sessions of which no row was written.

        After any error it may be called again with the same rows and more: each row is written once.
        """
        self._meet(db)
        refused: dict[int, str] = {}
        parts = self._parts(db, batch)
        self._unsure = True
        for part in parts:
            refused |= self._write_part(db, part, batch)
        if not parts:
            db.execute(PING)
        self._unsure = False
        return refused

    def _parts(self, db: Connection, batch: Batch) -> list[Group]:
        """Return the rows to write, as groups of limited size."""
        group = batch.group
        barred = {**batch.barred, **dict.fromkeys(self._lost, SET_BACK)} if self._lost else batch.barred
        if not (self._unsure or group.concerns(barred)) and group.size <= MOST_BYTES:
            return [] if group.empty else [group]
        alone = group.by_session()
        for session_id in barred:
            alone.pop(session_id, None)
        if self._unsure:
            for session_id, head in heads(db, [*alone]).items():
                batch.new.discard(session_id)
                trim(alone[session_id], head.seq, head.hash)
        parts: list[Group] = []
        for part in alone.values():
            if parts and parts[-1].size + part.size <= MOST_BYTES:
                parts[-1].absorb(part)
            else:
                parts.append(part)
        return parts

    def _write_part(self, db: Connection, part: Group, batch: Batch) -> dict[int, str]:
        """Write the rows by one statement; then, one by one, those of sessions that it did not write."""
        try:
            written = self._execute(db, part, batch)
        except (*_REFUSED, psycopg.Error) as error:
            if not is_refusal(error):
                raise
            written = set()
        missing = part.session_ids() - written
        if not missing:
            return {}
        alone = part.by_session()
        reasons = ((each, self._write_alone(db, each, alone[each], batch)) for each in sorted(missing))
        return {session_id: reason for session_id, reason in reasons if reason is not None}

    def _write_alone(self, db: Connection, session_id: int, part: Group, batch: Batch) -> str | None:
        """Write the rows of one session; return the reason if that fails."""
        why = ""
        for _ in range(2):
            why = "its rows do not follow from what is recorded"
            if self.own_node is not None and session_id in batch.new:
                why = FENCED  # another node has the key
            try:
                if self._execute(db, part, batch):
                    return None
            except (*_REFUSED, psycopg.Error) as error:
                if not is_refusal(error):
                    raise
                why = self._reason(error)
            head = heads(db, [session_id]).get(session_id)
            if head is None:
                return why if session_id in batch.new else NO_SESSION
            if head.epoch != batch.epochs[session_id]:
                return FENCED
            was_new = session_id in batch.new
            batch.new.discard(session_id)
            if not trim(part, head.seq, head.hash) and not was_new:
                return SET_BACK if self._known.is_lost(db, session_id) else why
            if part.empty:
                return None
        return why

    def _reason(self, error: Exception) -> str:
        """Return why rows are refused."""
        taken = isinstance(error, errors.UniqueViolation) and error.diag.constraint_name == KEY_TAKEN
        if taken and self.own_node is not None:
            return FENCED
        return in_words(error).strip().splitlines()[0].encode("ascii", "backslashreplace").decode()

    def _execute(self, db: Connection, group: Group, batch: Batch) -> set[int]:
        """Write a group by one statement; return the sessions whose rows were written."""
        new = batch.new & group.sessions.keys()
        asked = group_parameters(group, batch.epochs, new)
        if not new:
            written = {session_id for (session_id,) in db.execute(statements.COMMIT, asked, prepare=True)}
            self._known.note_group(group, written)
            return written
        statement = statements.COMMIT_BEGUN
        if self.own_node is not None:
            statement = statements.COMMIT_BEGUN_OWN
            asked |= asdict(self.own_node)

        def write(head: tuple[int, bytes]) -> tuple[list[TrailRow], set[int]]:
            entries = beginnings(head, group, new)
            found = db.execute(statement, asked | trail_parameters(entries), prepare=True)
            written = {session_id for (session_id,) in found}
            return entries if new <= written else [], written

        written = self._entering(db, write)
        batch.new -= new & written
        self._known.note_group(group, written)
        return written

    # ---- claims -------------------------------------------------------------------------------------------

    def claim(self, db: Connection, session_id: int) -> int | None:
        """Return the epoch of a new claim of a session; None for an unknown session.

        Raises Fenced if another node has the session's key.
        """
        self._meet(db)
        if self.own_node is None:
            found = db.execute(statements.CLAIM, (session_id,)).fetchone()
        else:
            found = db.execute(statements.CLAIM_OWN, {"id": session_id, **asdict(self.own_node)}).fetchone()
            if found is None and heads(db, [session_id]):
                raise Fenced(FENCED)
        self._lost.discard(session_id)
        if found is None:
            return None
        epoch, seq, head = found
        self._known.note(session_id, seq, head, ended=True)
        self._last_id = max(self._last_id, session_id)
        return int(epoch)

    # ---- the audit trail ----------------------------------------------------------------------------------

    def _entering(self, db: Connection, write: Callable[[tuple[int, bytes]], tuple[list[TrailRow], T]]) -> T:
        """Call `write` to add entries after the trail's head, again whenever another gateway was first."""
        self._meet(db)
        for _ in range(MOST_TRIES):
            head = self._trail_head or trail_head(db)
            self._trail_head = None
            try:
                entries, result = write(head)
            except errors.UniqueViolation as error:
                if error.diag.table_name != "trail":
                    raise
                continue
            last = entries[-1] if entries else None
            self._trail_head = head if last is None else (last.seq, last.hash)
            return result
        raise StorageError("Too many gateways write into the audit trail at the same time")

    def add(self, db: Connection, adding: Adding) -> bool:
        """Add entries to the audit trail, all or none; return whether. Repeated calls add them once.

        The newest act is looked up after the head: one that is added later takes the number after the head,
        so these entries fail, and the next attempt sees it.
        """

        def write(head: tuple[int, bytes]) -> tuple[list[TrailRow], bool]:
            if any(is_entry(db, *last) for last in adding.attempts):
                return [], True
            if adding.newest_act not in {None, newest_act(db)}:
                return [], False
            rows: list[TrailRow] = []
            for new in adding.entries:
                rows.append(entry(head, new.type, new.fields))
                head = rows[-1].seq, rows[-1].hash
            adding.attempts.append(head)
            try:
                db.execute(statements.ADD_ENTRIES, trail_parameters(rows))
            except errors.UniqueViolation:
                adding.attempts.pop()
                raise
            return rows, True

        return not adding.entries or self._entering(db, write)

    # ---- purges -------------------------------------------------------------------------------------------

    def begin_purge(self, db: Connection, session_id: int, by: str, reason: str, epoch: int) -> bool:
        """Remove the session's row and write its tombstone; return False for an unknown session.

        Raises Fenced unless the claim with this epoch is the session's last.
        """
        found = db.execute(statements.TOMBSTONE, (session_id,)).fetchone()
        if found is None:
            return is_purged(db, session_id)
        claimed, number, principal, key, created_at, seq, hashed = found
        if claimed != epoch:
            raise Fenced(GONE_ON)
        told = {"session_id": number, "principal": principal, "session": key, "created_at": created_at}
        told |= {"rows": seq, "head": hashed.hex(), "by": by, "reason": reason}

        def write(head: tuple[int, bytes]) -> tuple[list[TrailRow], bool]:
            stone = entry(head, PURGED, told)
            asked = {"id": session_id, "epoch": epoch, "head_seq": seq, "head": hashed}
            asked |= {"seq": stone.seq, "type": stone.type, "body": stone.body, "hash": stone.hash}
            gone = db.execute(statements.PURGE, asked).fetchone() is not None
            return [stone] if gone else [], gone

        if not self._entering(db, write) and not is_purged(db, session_id):
            raise Fenced(GONE_ON)
        self._known.forget(session_id)
        return True


@dataclass(frozen=True, slots=True)
class Head:
    """The recorded claim of a session and the head of its chain."""

    epoch: int
    seq: int
    hash: bytes


def heads(db: Connection, session_ids: Sequence[int]) -> dict[int, Head]:
    """Return the claims and heads of these sessions; missing sessions are left out."""
    found = db.execute(statements.HEADS, (list(session_ids),))
    return {session_id: Head(*values) for session_id, *values in found}


def is_refusal(error: Exception) -> bool:
    """Return whether the rows caused an error, so that trying again would not help."""
    if not isinstance(error, psycopg.Error):
        return True
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError | psycopg.ProgrammingError | psycopg.NotSupportedError)
    return error.sqlstate.startswith(_OF_ROWS)


def trail_head(db: Connection) -> tuple[int, bytes]:
    """Return the number and the hash of the audit trail's last entry, or a chain's start."""
    found = db.execute(statements.TRAIL_HEAD).fetchone()
    return (0, GENESIS) if found is None else (found[0], found[1])


def is_entry(db: Connection, seq: int, hashed: bytes) -> bool:
    """Return whether the audit trail's entry with this number has this hash."""
    found = db.execute(statements.TRAIL_HASH, (seq,)).fetchone()
    return found is not None and found[0] == hashed


def newest_act(db: Connection) -> int:
    """Return the number of the newest act in the audit trail; 0 if there is none."""
    row = db.execute(statements.NEWEST_ACT).fetchone()
    assert row is not None
    return int(row[0])


def new_ids(db: Connection, count: int) -> int:
    """Take so many ids that no session of the database has ever had; return the highest."""
    row = db.execute(statements.NEW_IDS, (count,)).fetchone()
    assert row is not None
    return int(row[0])


def is_purged(db: Connection, session_id: int) -> bool:
    """Return whether the purge of a session has begun and not ended."""
    row = db.execute(statements.IS_PURGED, (session_id,)).fetchone()
    return row is not None and bool(row[0])


def remove_some(db: Connection, session_id: int) -> bool:
    """Remove a limited part of a purged session's remaining rows; return whether there may be more."""
    asked = {"id": session_id, "limit": PURGED_ROWS}
    for statement in (statements.REMOVE_EVENTS, statements.REMOVE_EXECUTIONS):
        if db.execute(statement, asked).rowcount:
            return True
    db.execute(statements.END_PURGE, (session_id,))
    return False
