"""Checks a whole data folder: every session's chain, the tables that repeat its facts, and the audit trail.

It reads one snapshot through a read-only connection, so a gateway may run at the same time. Rows are read
once, in order. ``record.verify`` checks exported files.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cellgate.errors import RecordDamaged, StorageError
from cellgate.record.chain import GENESIS, link
from cellgate.record.facts import ExecutionFacts, SessionFacts, decode_fact
from cellgate.record.findings import BrokenRecord, Finding, chained, counted
from cellgate.record.rows import ExecutionRow, SessionRow
from cellgate.record.store.sqlite import blobs, purge, salvage, schema, trail
from cellgate.record.store.sqlite.lineage import check_origin
from cellgate.record.store.sqlite.location import existing
from cellgate.record.store.sqlite.migrations import version_of
from cellgate.record.store.sqlite.opening import damage_told
from cellgate.record.trail import BEGUN, DAMAGED, OF_NO_RECORD, PURGED, TrailRow
from cellgate_kernels.codec.decoding import json_decoder

_FACTS = frozenset({"session", "queued", "finished"})
_OF_EXECUTION = ("number", "id", "msg_id", "first_seq", "last_seq", "status", "created_at")

_decode = json_decoder(dict[str, Any]).decode


def check_record(path: Path) -> Iterator[Finding]:
    """Check the record at `path`: yields a finding for each session and one for the audit trail; also for
    rows that are not in the tables yet, because a gateway was killed or is running, for missing commits, and
    for unfinished purges.

    Raises StorageError for a file that can't be read or has another schema.
    """
    path = existing(path)
    with schema.reading(path, verified=True) as db, damage_told(f"The record {path}", verified=True):
        if not version_of(db, path):
            raise StorageError(f"{path} is no record")
        look = partial(salvage.look, path)
        found, seed = salvage.one_moment(db, path, look, "check it when one runs")
        yield from _findings(db)
        yield from _check_log(found, schema.applied(db), expected=seed is not None)
        # Pages that no row above is read through, such as those of an index that only writing uses.
        (structure,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if structure != "ok":
            raise RecordDamaged(f"The record {path}", structure, verified=True)


def _check_log(found: salvage.SalvagedLog, applied: int, *, expected: bool) -> Iterator[Finding]:
    waiting = sum(len(group.events) for number, group in found.frames.groups.items() if number > applied)
    lost = salvage.loss(found, applied, expected=expected)
    if waiting or lost is not None:
        told = f"{counted(waiting, 'row')} that a gateway adds when it starts"
        yield Finding("redo log", told, None if lost is None else str(lost))


def _findings(db: sqlite3.Connection) -> Iterator[Finding]:
    there: dict[int, tuple[str, str]] = {}
    refused = schema.refused_sessions(db)
    after = 0
    while sessions := schema.sessions(db, limit=256, after=after):
        after = sessions[-1].id
        for session in sessions:
            there[session.id] = session.principal, session.key
            yield check_session(db, session, refused.pop(session.id, None))
    yield _check_trail(db, there)
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
    """Check that the session's rows form a chain, and that its own row and its executions' agree with it.

    `refused`: why, and how many, of its rows could not be stored, if any.
    """
    subject = f"session {session.key} of {session.principal}"
    checked = counted(session.head_seq, "row")
    try:
        facts = _check_rows(db, session)
        _check_session_row(session, facts)
        _check_executions(db, session, facts)
        origin = check_origin(db, session)
        if origin.problem is not None:
            raise BrokenRecord(origin.problem)
        if origin.purged and session.branched_from is not None:
            checked += f", a branch of session {session.branched_from.session}, which was purged"
    except (BrokenRecord, sqlite3.DatabaseError) as error:
        return Finding(subject, checked, str(error))
    except (KeyError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return Finding(subject, checked, f"a row can't be read: {error!r}")
    return Finding(subject, checked, None if refused is None else _told(*refused))


def _check_rows(db: sqlite3.Connection, session: SessionRow) -> SessionFacts:
    facts = SessionFacts()
    last = 0
    head = GENESIS
    rows = schema.stored_rows(db, session.id, -schema.LAST, schema.LAST)
    for row in chained(rows, session.key):
        if row.type in _FACTS:
            facts.apply(decode_fact(row.type, row.body))
        else:
            facts.touch(row.execution, row.seq)
        last = row.seq
        head = row.hash
    if last < session.head_seq:
        raise BrokenRecord(f"row {last + 1} was removed: there were {session.head_seq}")
    if last > session.head_seq:
        raise BrokenRecord(f"row {session.head_seq + 1} was added: there were {session.head_seq}")
    if head != session.head:
        raise BrokenRecord(f"row {last} was changed: the session's head is another")
    return facts


def _check_session_row(session: SessionRow, facts: SessionFacts) -> None:
    for name, expected in facts.fields.items():
        if (stored := getattr(session, name)) != expected:
            told = f"{name} is {stored!r}, its rows say {expected!r}"
            raise BrokenRecord(f"the session's own row was changed: {told}")


def _check_executions(db: sqlite3.Connection, session: SessionRow, facts: SessionFacts) -> None:
    known = iter(facts.executions.values())
    after = -schema.LAST
    while rows := schema.executions(db, session.id, 256, after):
        after = rows[-1].number
        for row in rows:
            if (expected := next(known, None)) is None:
                raise BrokenRecord(f"execution {row.number} ({row.id}) was added: no row tells of it")
            _check_execution(row, expected)
    if (missing := next(known, None)) is not None:
        raise BrokenRecord(f"execution {missing.number} ({missing.id}) was removed")


def _check_execution(row: ExecutionRow, facts: ExecutionFacts) -> None:
    ended = facts.status is not None
    pairs = {name: getattr(facts, name) for name in _OF_EXECUTION}
    pairs["last_seq"] = facts.last_seq if ended else facts.first_seq
    pairs["idempotency_key"], pairs["request_hash"] = facts.idempotency or (None, None)
    for name, expected in pairs.items():
        if (stored := getattr(row, name)) != expected:
            where = f"execution {facts.number} ({facts.id})"
            raise BrokenRecord(f"{where} was changed: {name} is {stored!r}, its rows say {expected!r}")


# ---- the audit trail --------------------------------------------------------------------------------------


def _check_trail(db: sqlite3.Connection, there: dict[int, tuple[str, str]]) -> Finding:
    count = 0
    try:
        begun: dict[int, tuple[str, str]] = {}
        for count, event in enumerate(_trail(db), 1):
            if event["type"] in OF_NO_RECORD:
                continue
            if event["type"] not in {BEGUN, PURGED}:
                raise BrokenRecord(f"entry {count} is of a type that this version does not know")
            session_id = event["session_id"]
            if event["type"] == BEGUN:
                begun[session_id] = event["principal"], event["session"]
            elif begun.pop(session_id, None) is None:
                raise BrokenRecord(f"entry {count} was added: there was no record {session_id} to purge")
        _compare(begun, there)
        _check_orphans(db)
    except BrokenRecord as broken:
        return Finding("audit trail", counted(count, "entry"), str(broken))
    except (KeyError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return Finding("audit trail", counted(count, "entry"), f"an entry can't be read: {error!r}")
    return Finding("audit trail", counted(count, "entry"))


def _trail(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    head = GENESIS
    for number, row in enumerate(trail.rows(db), 1):
        head = link(head, row.body)
        if row.seq != number:
            raise BrokenRecord(f"entry {number} was removed")
        if head != row.hash:
            raise BrokenRecord(
                f"entry {number} was changed, moved or added: its hash is not that of its bytes"
            )
        event = _decode(row.body)
        if (event["seq"], event["type"]) != (row.seq, row.type):
            raise BrokenRecord(f"entry {number} was changed: its columns are not what its body says")
        yield event


def _compare(begun: dict[int, tuple[str, str]], there: dict[int, tuple[str, str]]) -> None:
    for session_id in sorted(begun.keys() | there.keys()):
        entered = begun.get(session_id)
        found = there.get(session_id)
        principal, key = entered or there[session_id]
        record = f"the record of session {key} of {principal}"
        if entered is None:
            raise BrokenRecord(f"{record} is not in the trail: it was added")
        if found is None:
            raise BrokenRecord(f"{record} was removed without a tombstone")
        if entered != found:
            raise BrokenRecord(f"{record} is now {found[1]}'s of {found[0]}")


def _check_orphans(db: sqlite3.Connection) -> None:
    for blob in blobs.damaged(db):
        raise BrokenRecord(f"the stored part {blob} of rows was changed")
    for table in ("events", "executions"):
        found = db.execute(
            f"""SELECT session_id FROM {table} WHERE session_id NOT IN (SELECT id FROM sessions)
                AND session_id NOT IN (SELECT session_id FROM purges) LIMIT 1"""  # noqa: S608
        ).fetchone()
        if found is not None:
            raise BrokenRecord(f"{table} were added, or moved, to session {found[0]}, which there is not")
