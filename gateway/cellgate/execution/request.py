"""A checked request to run one cell, and the ``execute_request`` for the kernel. Pure.

``run`` sends it. Its header has a note of what the record keeps of the request beside the code: a kernel
repeats headers in all its answers, so if the gateway crashes before the cell is recorded, the next one finds
the note in the kernel's spool (``sessions.unrecorded``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from cellgate.execution.blocks import cell_of
from cellgate.execution.checks import MAX_ENV, check_env, check_text
from cellgate.execution.limits import LimitCeilings
from cellgate.wire.models import (
    MAX_CODE_BYTES,
    MAX_SEARCHED_BYTES,
    MAX_STDIN_LINES,
    MAX_TABLE_ROWS,
    ExecuteBody,
)
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.protocol.messages import Channel, Message, new_message
from cellgate_kernels.specs.languages import parse_language

_CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Ids of cells that nbformat 4.5 allows."""


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """A checked request to run one cell. `timeout` in seconds, None for the session's `cell_timeout`.

    `tables`: the maximum number of rows of tables as data, None for no data. `message`: a client's own
    execute_request, sent unchanged; `cell_id`: the notebook cell that it names. `packages`: ``auto`` installs
    missing packages that the cell imports, ``temporary`` does so for this cell only. `installs`: whether the
    sender may install packages at all, also by a line that runs pip. `expressions`: the `user_expressions` of
    `message`. `own`: the code is the gateway's, which no hook of the operator's sees. An idempotency key's
    hash is of what `repr` has.
    """

    code: str
    timeout: float | None = None
    stdin: tuple[str, ...] | None = None
    silent: bool = False
    env: tuple[tuple[str, str], ...] = ()
    allow_stdin: bool = False
    store_history: bool = True
    stop_on_error: bool = False
    cell_id: str | None = None
    message: Message | None = None
    tables: int | None = None
    packages: str | None = None
    installs: bool = True
    expressions: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    own: bool = field(default=False, repr=False)


class CellNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an ``execute_request`` says of its cell beside the code: fields of the cell's event `queued`.

    `timeout`: the request's own, in seconds. `env`: names of variables. `idempotency`: the request's key and
    its hash.
    """

    silent: bool = False
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    env: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_ENV)] = ()
    idempotency: tuple[str, str] | None = None

    def to_text(self) -> str:
        """Return the note as a header has it, in JSON; empty if it says nothing.

        It is one text, because kernels find a request's outputs by the values in its header.
        """
        return "" if self == CellNote() else msgspec.json.encode(self).decode()

    def to_wire(self) -> dict[str, Any]:
        """Return the fields that say something."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def check_execute(body: ExecuteBody, ceilings: LimitCeilings, *, interactive: bool) -> ExecuteRequest:
    """Return the body's values, checked. `interactive`: a client can answer an input_request later."""
    if body.on_disconnect not in {"continue", "interrupt"}:
        raise InvalidInput("on_disconnect must be 'continue' or 'interrupt'")
    if body.packages not in {None, "auto", "temporary"}:
        raise InvalidInput("packages must be 'auto' or 'temporary'")
    if body.packages is not None:
        check_text(body.code, "code whose imports are to be installed", MAX_SEARCHED_BYTES)
    if body.stdin is not None and len(body.stdin) > MAX_STDIN_LINES:
        raise InvalidInput(f"stdin has {len(body.stdin)} lines; at most {MAX_STDIN_LINES} are taken")
    if body.tables is not None and not 1 <= body.tables <= MAX_TABLE_ROWS:
        raise InvalidInput(f"tables must be a number of rows from 1 to {MAX_TABLE_ROWS}")
    if body.cell_id is not None and not _CELL_ID.fullmatch(body.cell_id):
        raise InvalidInput("cell_id must be 1 to 64 of A-Z a-z 0-9 - _, as nbformat has it")
    lines = None if body.stdin is None else tuple(check_text(x, "stdin", MAX_CODE_BYTES) for x in body.stdin)
    return ExecuteRequest(
        code=check_text(body.code, "code", MAX_CODE_BYTES),
        timeout=None if body.timeout is None else ceilings.check_timeout(body.timeout),
        stdin=lines,
        silent=body.silent,
        env=check_env(body.env),
        allow_stdin=interactive or lines is not None,
        cell_id=body.cell_id,
        tables=body.tables,
        packages=body.packages,
    )


def in_language(request: ExecuteRequest, language: str | None, of_kernel: str) -> ExecuteRequest:
    """Return the request as a cell for a kernel of this language. Raises InvalidInput if it can't run."""
    if request.env and of_kernel != "python":
        raise InvalidInput("env of one execution works in Python kernels; give it to the session instead")
    if language is None:
        return request
    return replace(request, code=cell_of(parse_language(language), request.code, of_kernel))


def execute_request(
    request: ExecuteRequest, session: str, msg_id: str, idempotency: tuple[str, str] | None = None
) -> Message:
    """Return the client's own message, or one built from the request, with its `idempotency` key and hash."""
    if request.message is not None:
        return request.message
    note = CellNote(request.silent, request.timeout, tuple(name for name, _ in request.env), idempotency)
    content = {
        "code": request.code,
        "silent": request.silent,
        "store_history": not request.silent,
        "user_expressions": {},
        "allow_stdin": request.allow_stdin,
        # Cells are sent one at a time, so the kernel has no queue to abort after an error; with True,
        # ipykernel also aborts a cell that arrives just after the failed one's idle.
        "stop_on_error": False,
    }
    # Read by the kernel's start-up file, kernels/cellgate_kernels/inside/bootstrap.py.
    metadata = {} if request.tables is None else {"cellgate": {"tables": request.tables}}
    return new_message(
        Channel.SHELL,
        "execute_request",
        content,
        session=session,
        msg_id=msg_id,
        metadata=metadata,
        note=note.to_text(),
    )
