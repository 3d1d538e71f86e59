"""Converts rows to and from the values of ``statements``: arrays for a commit, typed rows for reads.

Pure. It knows no connection, and does not interpret the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import structs

from cellgate.errors import RecordDamaged
from cellgate.record.chain import GENESIS, link
from cellgate.record.rows import FIGURES, EventRow, ExecutionRow, SessionRow
from cellgate.record.store.backlog import Group, RefusedRows
from cellgate.record.trail import BEGUN, TrailRow
from cellgate.wire.events import BranchedFrom
from cellgate_kernels.codec.decoding import json_decoder

Parameters = dict[str, Any]
"""Values by their names in a statement; most are columns of a table, as lists."""

_MOVES = ("id", "epoch", "before", "after", "head", "bytes")
_SAVED = ("kernel", "isolation", "state", "cause", "last_activity", "execution_count")
_SAVED_JSON = ("limits", "metadata", "environment")
_NEW = (
    *("id", "principal", "key", "kernel", "isolation", "state", "cause", "created_at", "last_activity"),
    *("execution_count", "limits", "metadata", "environment", "head_seq", "head", "folder", "parent"),
    *("branched_from", "branched_seq", "branched_head", "epoch", "bytes"),
)
_EXECUTION = (
    *("session", "id", "number", "msg_id", "first_seq", "last_seq", "status", "created_at"),
    *("idempotency_key", "request_hash", "ended_at", *FIGURES),
)
_EVENT = ("session", "seq", "type", "execution", "body", "hash")
_TRAIL = ("seq", "type", "body", "hash")
_NOT_SAVED = (None,) * (len(_SAVED) + len(_SAVED_JSON))

_decode = json_decoder(dict[str, Any]).decode


@dataclass(slots=True)
class Move:
    """A change of a session's head by a group: from `before` to `after`, whose hash is `head`."""

    before: int
    after: int
    head: bytes
    bytes: int


def moves_of(events: Sequence[EventRow]) -> dict[int, Move]:
    """Return the changes of the sessions' heads by these events. Raises RefusedRows for a gap."""
    moves: dict[int, Move] = {}
    for event in events:
        move = moves.get(event.session_id)
        if move is None:
            moves[event.session_id] = Move(event.seq - 1, event.seq, event.hash, len(event.body))
            continue
        if event.seq != move.after + 1:
            raise RefusedRows(f"row {event.seq} can't follow on row {move.after}")
        move.after = event.seq
        move.head = event.hash
        move.bytes += len(event.body)
    return moves


def group_parameters(group: Group, epochs: Mapping[int, int], new: Collection[int]) -> Parameters:
    """Return the values of a group's rows for COMMIT, or for COMMIT_BEGUN if any of its sessions are `new`.

    Raises RefusedRows for rows that can't follow each other, or of a new session without its row.
    """
    moves = moves_of(group.events)
    known, begun = [], []
    for session_id in group.session_ids():
        move, row = moves.get(session_id), group.sessions.get(session_id)
        if session_id in new:
            begun.append(_begun(session_id, row, move, epochs[session_id], group))
        else:
            saved = _NOT_SAVED if row is None else _saved(row)
            way = (None, None, None, 0)
            told = way if move is None else (move.before, move.after, move.head, move.bytes)
            known.append((session_id, epochs[session_id], *told, *saved))
    executions = [structs.astuple(row) for row in group.executions.values()]
    found = {
        **columns("", (*_MOVES, *_SAVED, *_SAVED_JSON), known),
        **columns("execution_", _EXECUTION, executions),
        **columns("event_", _EVENT, [structs.astuple(row) for row in group.events]),
    }
    return {**found, **columns("new_", _NEW, begun)} if begun else found


def columns(prefix: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> Parameters:
    """Return rows as columns, each named with the prefix."""
    if not rows:
        return {f"{prefix}{name}": [] for name in names}
    return {
        f"{prefix}{name}": list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }


def _saved(row: SessionRow) -> tuple[object, ...]:
    return (
        *(row.kernel, row.isolation, row.state, row.cause, row.last_activity, row.execution_count),
        *map(_json, (row.limits, row.metadata, row.environment)),
    )


def _begun(
    session_id: int, row: SessionRow | None, move: Move | None, epoch: int, group: Group
) -> tuple[object, ...]:
    """Return the values of a new session's row, whose events begin a chain."""
    if row is None:
        raise RefusedRows("there is no such session")
    if move is not None:
        first = next(event for event in group.events if event.session_id == session_id)
        if first.seq != 1 or first.hash != link(GENESIS, first.body):
            raise RefusedRows(f"row {first.seq} can't begin a chain")
    if move is None:
        return session_values(row, (0, GENESIS), epoch, 0)
    return session_values(row, (move.after, move.head), epoch, move.bytes)


def session_values(row: SessionRow, head: tuple[int, bytes], epoch: int, size: int) -> tuple[object, ...]:
    """Return all columns of a session's row, with its head, its claim and the size of its events in bytes."""
    origin = row.branched_from
    return (
        *structs.astuple(row)[:10],
        *map(_json, (row.limits, row.metadata, row.environment)),
        *head,
        row.folder,
        row.parent,
        *(("", 0, "") if origin is None else (origin.session, origin.seq, origin.head)),
        epoch,
        size,
    )


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def trim(part: Group, head_seq: int, head: bytes) -> bool:
    """Drop those events of a session's rows that are recorded already; return whether there were any."""
    for place, event in enumerate(part.events, 1):
        if (event.seq, event.hash) == (head_seq, head):
            del part.events[:place]
            return True
    return False


# ---- the audit trail --------------------------------------------------------------------------------------


def entry(head: tuple[int, bytes], event_type: str, fields: Mapping[str, Any]) -> TrailRow:
    """Return the entry of the audit trail after this number and hash."""
    seq = head[0] + 1
    moment = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    body = msgspec.json.encode({"seq": seq, "type": event_type, "at": moment, **fields})
    return TrailRow(seq, event_type, body, link(head[1], body))


def beginnings(head: tuple[int, bytes], group: Group, new: Collection[int]) -> list[TrailRow]:
    """Return the entries about the start of the records of a group's new sessions."""
    entries: list[TrailRow] = []
    for row in group.sessions.values():
        if row.id in new:
            told = {"session_id": row.id, "principal": row.principal, "session": row.key}
            entries.append(entry(head, BEGUN, told))
            head = entries[-1].seq, entries[-1].hash
    return entries


def trail_parameters(entries: Sequence[TrailRow]) -> Parameters:
    """Return the values of entries for ADD_ENTRIES and COMMIT_BEGUN."""
    return columns("trail_", _TRAIL, [(row.seq, row.type, row.body, row.hash) for row in entries])


# ---- rows of what is read ---------------------------------------------------------------------------------


def session_row(values: tuple[Any, ...]) -> SessionRow:
    """Return the session of a row's columns. Raises RecordDamaged for invalid values."""
    try:
        parent, *origin = values[16:20]
        branched = BranchedFrom(session=origin[0], seq=origin[1], head=origin[2]) if any(origin) else None
        columns = (*values[:10], *map(_decode, values[10:13]), *values[13:16], parent, branched)
        return SessionRow(*columns)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        mend = "`cellgate verify --record` tells what of it is whole; pg_restore puts a dump in its place"
        raise RecordDamaged("The record", error, mend=mend) from error


def execution_row(values: tuple[Any, ...]) -> ExecutionRow:
    """Return the execution of a row's columns."""
    return ExecutionRow(*values)


def event_row(values: tuple[Any, ...]) -> EventRow:
    """Return the event of a row's first six columns."""
    return EventRow(*values[:6])
