"""Copies the record of a cell that ran in a branch to the session that continues as that branch.

The copied events have the session's own numbers and the time of the copy. The first one names the branch,
whose record has the originals.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import structs

from cellgate.errors import StorageError, StorageFull
from cellgate.record.events import EventLog
from cellgate.record.rows import EventRow, ExecutionRow
from cellgate_kernels.codec.decoding import json_decoder

_OWN = ("seq", "session", "execution", "type", "at")
_decode = json_decoder(dict[str, Any]).decode


async def copied(
    source: EventLog, row: ExecutionRow, target: EventLog, take_number: Callable[[], int]
) -> dict[str, Any]:
    """Copy the events of an ended execution to another log, under a newly taken execution number.

    `row`: the execution's row in the branch's record, but with the target session's id. As for a running
    cell, output is left out if there is no room, and the end says so. Returns the event `finished`. Raises
    StorageError if the branch's record can't be read, and LogClosed.
    """
    finished: dict[str, Any] | None = None
    told: ExecutionRow | None = None
    left_out = False
    async for each in _events_of(source, row):
        fields = {name: value for name, value in _decode(each.body).items() if name not in _OWN}
        if each.type == "queued":
            fields.pop("idempotency", None)
            fields["ran_in"] = source.key
        elif each.type == "finished":
            fields["truncated"] = fields.get("truncated", False) or left_out
            # It was used once, where the cell ran.
            fields.pop("usage", None)
        try:
            event = target.append(each.type, row.id, fields, size=len(each.body))
        except StorageFull:
            if told is None:
                raise
            left_out = True
            continue
        if told is None:
            # Written in the same turn as the event, so that rows and events have the same order.
            told = ExecutionRow(
                session_id=row.session_id,
                id=row.id,
                number=take_number(),
                msg_id=row.msg_id,
                first_seq=event["seq"],
                last_seq=event["seq"],
                status=None,
                created_at=event["at"],
                idempotency_key=None,
                request_hash=None,
            )
        if each.type == "finished":
            finished = event
        # Without a time of its end: sums of usage count it in the branch, where it ran.
        status = None if finished is None else finished["status"]
        told = structs.replace(told, last_seq=event["seq"], status=status)
        target.save_execution(told)
    if finished is None:
        raise StorageError("The end of the alternative is no longer in the record of its branch")
    return finished


async def _events_of(source: EventLog, row: ExecutionRow) -> AsyncIterator[EventRow]:
    after = row.first_seq - 1
    while rows := await source.read(after):
        after = rows[-1].seq
        for each in rows:
            if each.execution == row.id:
                yield each
