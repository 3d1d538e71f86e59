"""A client's execute_request as the request that a session runs.

Pure. The message itself goes to the kernel unchanged except for `stop_on_error`: cells reach a kernel one at
a time, so the session's queue decides what an error aborts, and a kernel that was asked to abort would also
abort a cell that arrives just after the failed one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from cellgate.execution.request import ExecuteRequest
from cellgate.wire.models import MAX_CODE_BYTES
from cellgate_kernels.decoding import json_decoder
from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.messages import MalformedMessage, Message


class _Content(msgspec.Struct):
    code: str
    silent: bool = False
    store_history: bool = True
    allow_stdin: bool = False
    stop_on_error: bool = True


class _Metadata(msgspec.Struct):
    cell_id: Any = msgspec.field(name="cellId", default=None)


class _SubshellHeader(msgspec.Struct):
    subshell_id: str | None = None


_content = msgspec.json.Decoder(_Content)
_metadata = json_decoder(_Metadata)
_subshell = msgspec.json.Decoder(_SubshellHeader)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def execute_request(message: Message) -> ExecuteRequest:
    """The cell that `message` requests. Raises InvalidInput when no kernel could run it."""
    try:
        content = _content.decode(message.content_frame)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"This execute_request can't be run: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = _repaired(message)
    if len(content.code) > MAX_CODE_BYTES:
        raise InvalidInput(f"The cell is longer than the {MAX_CODE_BYTES} bytes that are taken")
    return ExecuteRequest(
        code=content.code,
        silent=content.silent,
        allow_stdin=content.allow_stdin,
        store_history=content.store_history and not content.silent,
        stop_on_error=content.stop_on_error,
        cell_id=_cell_id(message),
        message=_without_abort(message) if content.stop_on_error else message,
    )


def _repaired(message: Message) -> _Content:
    try:
        return msgspec.convert(message.content(), _Content)
    except (MalformedMessage, msgspec.ValidationError) as error:
        raise InvalidInput(f"This execute_request can't be run: {error}") from error


def _cell_id(message: Message) -> str | None:
    if b'"cellId"' not in message.metadata_frame:
        return None
    cell_id = _metadata.decode(message.metadata_frame).cell_id
    return cell_id[:256] if isinstance(cell_id, str) else None


def _without_abort(message: Message) -> Message:
    fields = _fields.decode(message.content_frame) | {"stop_on_error": msgspec.Raw(b"false")}
    return structs.replace(message, content_frame=_encode(fields))


def names_subshell(message: Message) -> bool:
    """Whether the request is for a subshell, which runs beside the cells (JEP 91)."""
    if b'"subshell_id"' not in message.header_frame:
        return False
    try:
        return _subshell.decode(message.header_frame).subshell_id is not None
    except msgspec.ValidationError:
        return False
