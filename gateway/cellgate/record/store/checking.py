"""Checks that a record is unchanged: chains, tables that repeat their facts, and the audit trail.

Pure: it reads rows from `CheckedRows`, a snapshot of a store's tables. ``record.verify`` checks exported
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import structs

from cellgate.record.chain import GENESIS, link
from cellgate.record.facts import ExecutionFacts, SessionFacts, decode_fact
from cellgate.record.findings import BrokenRecord, Finding, chained, counted
from cellgate.record.rows import LARGEST, EventRow, ExecutionRow, SessionRow
from cellgate.record.store.ancestry import OriginRows, check_origin
from cellgate.record.trail import BEGUN, OF_NO_RECORD, PURGED, TrailRow
from cellgate_kernels.codec.decoding import json_decoder

_FACTS = frozenset({"session", "queued", "finished"})
_OF_EXECUTION = ("number", "id", "msg_id", "first_seq", "last_seq", "status", "created_at")

_decode = json_decoder(dict[str, Any]).decode


class CheckedRows(OriginRows, Protocol):
    """All rows of a record, from one snapshot and as stored, even if damaged."""

    def sessions(self, after: int) -> Sequence[SessionRow]:
        """Return some sessions with an id above `after`, by id; none at the end."""

    def rows(self, session_id: int) -> Iterator[EventRow]:
        """Yield a session's events by their numbers, whatever these are. Raises BrokenRecord."""

    def executions(self, session_id: int, after: int) -> Sequence[ExecutionRow]:
        """Return some executions of a session after a number, in order; none at the end."""

    def trail(self) -> Iterable[TrailRow]:
        """Return all entries of the audit trail, in order."""

    def stray(self) -> str | None:
        """Return the problem with rows that belong to no session; None if there are none."""


def sessions_of(rows: CheckedRows) -> Iterator[SessionRow]:
    """Yield all sessions, by id."""
    after = 0
    while found := rows.sessions(after):
        yield from found
        after = found[-1].id


def executions_of(rows: CheckedRows, session_id: int) -> Iterator[ExecutionRow]:
    """Yield all executions of a session, in order."""
    after = -LARGEST
    while found := rows.executions(session_id, after):
        yield from found
        after = found[-1].number


def subject_of(session: SessionRow) -> tuple[str, str]:
    """Return the name of a session in a finding, and the name of the check."""
    return f"session {session.key} of {session.principal}", counted(session.head_seq, "row")


def check_session(rows: CheckedRows, session: SessionRow) -> Finding:
    """Check that the session's rows form a chain, and that its own row and its executions' agree."""
    subject, checked = subject_of(session)
    try:
        facts = _check_rows(rows, session)
        _check_session_row(session, facts)
        _check_executions(rows, session, facts)
        origin = check_origin(rows, session)
        if origin.problem is not None:
            raise BrokenRecord(origin.problem)
        if origin.purged and session.branched_from is not None:
            checked += f", a branch of session {session.branched_from.session}, which was purged"
    except BrokenRecord as error:
        return Finding(subject, checked, str(error))
    except (KeyError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return Finding(subject, checked, f"a row can't be read: {error!r}")
    return Finding(subject, checked)


def _check_rows(rows: CheckedRows, session: SessionRow) -> SessionFacts:
    facts = SessionFacts()
    last = 0
    head = GENESIS
    for row in chained(rows.rows(session.id), session.key):
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


def _check_executions(rows: CheckedRows, session: SessionRow, facts: SessionFacts) -> None:
    known = iter(facts.executions.values())
    for row in executions_of(rows, session.id):
        if (expected := next(known, None)) is None:
            raise BrokenRecord(f"execution {row.number} ({row.id}) was added: no row tells of it")
        _check_execution(row, expected)
    if (missing := next(known, None)) is not None:
        raise BrokenRecord(f"execution {missing.number} ({missing.id}) was removed")


def _check_execution(row: ExecutionRow, facts: ExecutionFacts) -> None:
    ended = facts.status is not None
    pairs = {name: getattr(facts, name) for name in _OF_EXECUTION}
    pairs["last_seq"] = facts.last_seq if ended else facts.first_seq
    pairs |= {"ended_at": facts.ended_at, **structs.asdict(facts.usage)}
    pairs["idempotency_key"], pairs["request_hash"] = facts.idempotency or (None, None)
    for name, expected in pairs.items():
        if (stored := getattr(row, name)) != expected:
            where = f"execution {facts.number} ({facts.id})"
            raise BrokenRecord(f"{where} was changed: {name} is {stored!r}, its rows say {expected!r}")


# ---- the audit trail --------------------------------------------------------------------------------------


def check_trail(rows: CheckedRows, there: dict[int, tuple[str, str]]) -> Finding:
    """Check the audit trail, and that it has the existing sessions, by principal and key."""
    count = 0
    try:
        begun: dict[int, tuple[str, str]] = {}
        for count, event in enumerate(_trail(rows.trail()), 1):
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
        if (stray := rows.stray()) is not None:
            raise BrokenRecord(stray)
    except BrokenRecord as broken:
        return Finding("audit trail", counted(count, "entry"), str(broken))
    except (KeyError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return Finding("audit trail", counted(count, "entry"), f"an entry can't be read: {error!r}")
    return Finding("audit trail", counted(count, "entry"))


def _trail(rows: Iterable[TrailRow]) -> Iterator[dict[str, Any]]:
    head = GENESIS
    for number, row in enumerate(rows, 1):
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
