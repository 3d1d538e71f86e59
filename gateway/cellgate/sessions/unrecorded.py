"""Records the cells that a former gateway sent to a kernel just before it crashed, before they were recorded.

They are found in the kernel's spool. Each gets an event `queued` and a row with its idempotency key, so that
a repeat of its request is answered with it instead of being run once more. ``adoption`` then resumes it as
any other cell that the kernel was sent. Code in the kernel can write into the spool: what is read of it is
checked, and can add executions to the kernel's own session only.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import structs

from cellgate.execution.checks import check_text
from cellgate.execution.request import CellNote
from cellgate.record.events import EventLog
from cellgate.record.rows import ExecutionRow, SessionRow
from cellgate.record.store.interface import RecordStore
from cellgate.wire.models import ENV_NAME, MAX_CODE_BYTES
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.channels.spool import Spooled
from cellgate_kernels.protocol.contents import content_of
from cellgate_kernels.protocol.messages import NOTE, SENDER, Message

MOST_CELLS: Final = 64
"""Cells that are looked for in the record, the last of the spool: fewer are sent within a commit's time."""
NEWEST: Final = 1200
"""Executions among which a Jupyter client's cell is looked for: more than may wait unsent behind it."""
_MOST_ID: Final = 512
_MOST_KEY: Final = 1024
_MOST_PARENT: Final = 64 * 1024
_OUR_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


class _Parent(msgspec.Struct, rename={"note": NOTE}):
    """The header of a request, as far as only its cell's record needs it. `note`: a `CellNote` in JSON."""

    username: str = ""
    note: str = ""


_decode_parent = msgspec.json.Decoder(_Parent).decode
_decode_note = msgspec.json.Decoder(CellNote).decode


@dataclass(frozen=True, slots=True)
class SentCell:
    """A cell in a kernel's spool. `code`: empty if the spool does not have it. `is_own`: not a client's."""

    msg_id: str
    code: str
    note: CellNote
    is_own: bool


def sent_cells(spool: Iterable[Spooled]) -> list[SentCell]:
    """Return the last cells in a spool, in the order in which they began.

    Code that the gateway itself sends has neither a note nor an ``execute_input``, and is no cell.
    """
    first: dict[str, Message] = {}
    inputs: dict[str, Message] = {}
    latest: dict[str, None] = {}
    for message in (entry.message for entry in spool):
        msg_id = message.parent.msg_id
        first.setdefault(msg_id, message)
        latest.pop(msg_id, None)
        latest[msg_id] = None
        if message.msg_type == "execute_input":
            inputs.setdefault(msg_id, message)
    found = []
    last = frozenset([*latest][-MOST_CELLS:])
    for msg_id, message in first.items():
        if msg_id in last and _is_text(msg_id, _MOST_ID):
            username, note = _parent_of(message)
            if msg_id in inputs or note != CellNote():
                found.append(SentCell(msg_id, _code_of(inputs.get(msg_id)), note, username == SENDER))
    return found


async def record_unrecorded(
    journal: RecordStore, row: SessionRow, log: EventLog, spool: Iterable[Spooled], ceiling: float
) -> None:
    """Record the cells in the spool that the record does not have as queued; durable on return.

    `ceiling`: the most seconds that a cell may run. Raises StorageError.
    """
    reads = journal.reads
    last = await reads.last_execution(row.id)
    number = 0 if last is None else last.number
    cells = sent_cells(spool)
    if not cells:
        return
    newest = await reads.executions(row.id, limit=NEWEST, after=number + 1, newest=True)
    known = {each.msg_id for each in newest}
    for cell in cells:
        # Of a cell of the gateway's own, the execution has the request's id: it is found however old it is.
        if cell.msg_id not in known and await reads.execution(row.id, cell.msg_id) is None:
            number += 1
            _record(log, number, cell, await _note(journal, row, cell, ceiling))
    await log.commit()


async def _note(journal: RecordStore, row: SessionRow, cell: SentCell, ceiling: float) -> CellNote:
    """Return a cell's note as it may be recorded: without a key that the record has of another cell."""
    note = cell.note
    if not cell.is_own:
        return CellNote(timeout=ceiling)
    if note.timeout is not None:
        note = structs.replace(note, timeout=min(note.timeout, ceiling))
    key, _ = note.idempotency or (None, None)
    if key is not None and await journal.execution_by_key(row.id, key) is not None:
        note = structs.replace(note, idempotency=None)
    return note


def _record(log: EventLog, number: int, cell: SentCell, note: CellNote) -> None:
    execution = cell.msg_id if _OUR_ID.fullmatch(cell.msg_id) else uuid.uuid4().hex
    fields: dict[str, Any] = {"position": 0, "code": cell.code, "msg_id": cell.msg_id, **note.to_wire()}
    event = log.append("queued", execution, fields, size=len(cell.code))
    key, request_hash = note.idempotency or (None, None)
    log.save_execution(
        ExecutionRow(
            session_id=log.session_id,
            id=execution,
            number=number,
            msg_id=cell.msg_id,
            first_seq=event["seq"],
            last_seq=None,
            status=None,
            created_at=event["at"],
            idempotency_key=key,
            request_hash=request_hash,
        )
    )


def _parent_of(message: Message) -> tuple[str, CellNote]:
    """Return the sender's name and the note of a request's header; both empty if no gateway wrote it so."""
    nothing = "", CellNote()
    try:
        if len(message.parent_frame) > _MOST_PARENT:
            return nothing
        parent = _decode_parent(message.parent_frame)
        note = _decode_note(parent.note) if parent.note else CellNote()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return nothing
    is_valid = all(ENV_NAME.fullmatch(name) for name in note.env) and all(
        _is_text(each, _MOST_KEY) for each in note.idempotency or ()
    )
    return (parent.username, note) if is_valid else nothing


def _code_of(message: Message | None) -> str:
    code = "" if message is None else content_of(message).get("code")
    return code if isinstance(code, str) and _is_text(code, MAX_CODE_BYTES) else ""


def _is_text(value: str, most: int) -> bool:
    try:
        check_text(value, "text", most)
    except InvalidInput:
        return False
    return True
