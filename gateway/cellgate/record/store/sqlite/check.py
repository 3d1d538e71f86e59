"""Checks a whole data folder: every session's chain, the tables that repeat its facts, and the audit trail.

``checking`` has the checks; this module has the rows, and checks of SQLite's own files. It reads one snapshot
through a read-only connection, so a gateway may run at the same time. Rows are read once, in order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cellgate.errors import RecordDamaged
from cellgate.record.findings import Finding, counted
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.record.store import checking
from cellgate.record.store.checking import CheckedRows, check_trail, sessions_of, subject_of
from cellgate.record.store.sqlite import blobs, purge, salvage, schema, trail
from cellgate.record.store.sqlite.lineage import StoredOrigins
from cellgate.record.store.sqlite.location import existing
from cellgate.record.store.sqlite.migrations import is_foreign, version_of
from cellgate.record.store.sqlite.opening import damage_told
from cellgate.record.store.sqlite.redo import beside, last_beside
from cellgate.record.trail import DAMAGED, TrailRow
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.codec.decoding import json_decoder

_decode = json_decoder(dict[str, Any]).decode


def check_record(path: Path) -> Iterator[Finding]:
    """Check the record at `path`: yield a finding for each session and one for the audit trail; also for rows
    that are not in the tables yet, because a gateway was killed or is running, for missing commits, and for
    unfinished purges.

    Raises StorageError for a file that can't be read or has another schema, InvalidInput for no record.
    """
    path = existing(path)
    with schema.reading(path, verified=True) as db, damage_told(f"The record {path}", verified=True):
        if is_foreign(db) or not version_of(db, path):
            if beside(path).exists() or last_beside(path).exists():
                raise RecordDamaged(f"The record {path}", "no table is left of it", verified=True)
            raise InvalidInput(f"{path} is a database of SQLite, but no record")
        look = partial(salvage.look, path)
        found, seed = salvage.one_moment(db, path, look, "check it when one runs")
        yield from findings(db)
        yield from _check_log(found, schema.applied(db), expected=seed is not None)
        # Pages that no read above uses, such as those of an index that only writing uses.
        (structure,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if structure != "ok":
            raise RecordDamaged(f"The record {path}", structure, verified=True)


def _check_log(found: salvage.SalvagedLog, applied: int, *, expected: bool) -> Iterator[Finding]:
    waiting = sum(len(group.events) for number, group in found.frames.groups.items() if number > applied)
    lost = salvage.loss(found, applied, expected=expected)
    if waiting or lost is not None:
        told = f"{counted(waiting, 'row')} that a gateway adds when it starts"
        yield Finding("redo log", told, None if lost is None else str(lost))


def findings(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check the tables: yield a finding for each session, the audit trail, and SQLite's own structures."""
    there: dict[int, tuple[str, str]] = {}
    refused = schema.refused_sessions(db)
    rows = StoredRows(db)
    for session in sessions_of(rows):
        there[session.id] = session.principal, session.key
        yield check_session(db, session, refused.pop(session.id, None))
    yield check_trail(rows, there)
    for session_id, (why, count) in refused.items():
        yield Finding(f"session {session_id}", "no rows", _told(why, count))
    for row in trail.rows(db):
        if row.type == DAMAGED:
            yield _check_damage(row)
    if purges := purge.begun(db):
        yield Finding("purges", f"{len(purges)} that a gateway carries on with")


def _check_damage(row: TrailRow) -> Finding:
    try:
        event = _decode(row.body)
        told = f"{event['told']} (found at {event['at']})"
    except (KeyError, msgspec.MsgspecError) as error:
        told = f"commits are missing, and the entry that tells of them can't be read: {error!r}"
    return Finding("redo log", f"entry {row.seq} of the audit trail", told)


def _told(why: str, events: int) -> str:
    return f"{events} rows that were acknowledged could not be stored and are kept apart: {why}"


def check_session(
    db: sqlite3.Connection, session: SessionRow, refused: tuple[str, int] | None = None
) -> Finding:
    """Check a session. `refused`: the reason and number of its rows that could not be stored, if any."""
    try:
        found = checking.check_session(StoredRows(db), session)
    except sqlite3.DatabaseError as error:
        return Finding(*subject_of(session), str(error))
    if found.problem is None and refused is not None:
        return replace(found, problem=_told(*refused))
    return found


class StoredRows(StoredOrigins, CheckedRows):
    """The rows of a connection's tables."""

    def sessions(self, after: int) -> list[SessionRow]:
        return schema.sessions(self.db, limit=256, after=after)

    def rows(self, session_id: int) -> Iterator[EventRow]:
        return schema.stored_rows(self.db, session_id, -schema.LAST, schema.LAST)

    def executions(self, session_id: int, after: int) -> list[ExecutionRow]:
        return schema.executions(self.db, session_id, 256, after)

    def trail(self) -> Iterator[TrailRow]:
        return trail.rows(self.db)

    def stray(self) -> str | None:
        for blob in blobs.damaged(self.db):
            return f"the stored part {blob} of rows was changed"
        for table in ("events", "executions"):
            found = self.db.execute(
                f"""SELECT session_id FROM {table} WHERE session_id NOT IN (SELECT id FROM sessions)
                    AND session_id NOT IN (SELECT session_id FROM purges) LIMIT 1"""  # noqa: S608
            ).fetchone()
            if found is not None:
                return f"{table} were added, or moved, to session {found[0]}, which there is not"
        return None
