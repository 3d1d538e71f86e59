"""The parts of a client's message that the gateway reads: an execute_request becomes a session's request.

Pure. Content is weighed before it is decoded, and large metadata is not read at all. The message goes to the
kernel unchanged except for `stop_on_error`. Cells reach a kernel one at a time, so the session's queue
decides which cells an error aborts. A kernel that aborts as well would also abort a cell that arrives just
after the failed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from cellgate.execution.request import ExecuteRequest
from cellgate.wire.models import MAX_CODE_BYTES
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.codec.structure import INLINE_BYTES, is_heavy, weigh
from cellgate_kernels.protocol.messages import Channel, MalformedMessage, Message

MOST_WEIGHT = 1024 * 1024
"""The most bytes of memory for the objects in an execute_request's content, without its code."""


class _Content(msgspec.Struct):
    code: str
    silent: bool = False
    store_history: bool = True
    allow_stdin: bool = False
    stop_on_error: bool = True
    user_expressions: Any = None


class _Metadata(msgspec.Struct):
    cell_id: Any = msgspec.field(name="cellId", default=None)


class _Shutdown(msgspec.Struct):
    restart: msgspec.Raw = msgspec.Raw(b"false")


class _SubshellHeader(msgspec.Struct):
    subshell_id: str | None = None


_content = msgspec.json.Decoder(_Content)
_metadata = json_decoder(_Metadata)
_shutdown = msgspec.json.Decoder(_Shutdown)
_subshell = msgspec.json.Decoder(_SubshellHeader)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Received:
    """A client's message, and the parts that the gateway has read.

    `cell`: the request of an execute_request, or why it can't be run. `restart`: whether a shutdown_request
    asks for another kernel.
    """

    message: Message
    cell: ExecuteRequest | InvalidInput | None = None
    restart: bool = False


def received(message: Message) -> Received:
    """Return the message and its parts. Slow for a large message: then call this in a thread."""
    if message.msg_type == "execute_request" and message.channel is Channel.SHELL:
        try:
            return Received(message, execute_request(message))
        except InvalidInput as error:
            return Received(message, error)
    return Received(message, restart=message.msg_type == "shutdown_request" and _wants_restart(message))


def _wants_restart(message: Message) -> bool:
    try:
        return bytes(_shutdown.decode(message.content_frame).restart) == b"true"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def execute_request(message: Message) -> ExecuteRequest:
    """Return the cell that `message` requests. Raises InvalidInput if it is too large or can't run."""
    if is_heavy(message.content_frame) and weigh(message.content_frame, MOST_WEIGHT) is None:
        raise InvalidInput("This execute_request has too many parts besides its code")
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
        expressions=_expressions(content.user_expressions),
        message=_without_abort(message) if content.stop_on_error else message,
    )


def _repaired(message: Message) -> _Content:
    try:
        return msgspec.convert(message.content(), _Content)
    except (MalformedMessage, msgspec.ValidationError) as error:
        raise InvalidInput(f"This execute_request can't be run: {error}") from error


def _cell_id(message: Message) -> str | None:
    if len(message.metadata_frame) > INLINE_BYTES or b'"cellId"' not in message.metadata_frame:
        return None
    cell_id = _metadata.decode(message.metadata_frame).cell_id
    return cell_id[:256] if isinstance(cell_id, str) else None


def _expressions(given: object) -> tuple[tuple[str, str], ...]:
    """Return the expressions that a kernel would evaluate; others are no text."""
    if not given or not isinstance(given, dict):
        return ()
    return tuple((name, each) for name, each in given.items() if isinstance(each, str))


def _without_abort(message: Message) -> Message:
    fields = _fields.decode(message.content_frame) | {"stop_on_error": msgspec.Raw(b"false")}
    return structs.replace(message, content_frame=_encode(fields))


def names_subshell(message: Message) -> bool:
    """Return whether the request is for a subshell, which runs beside the cells (JEP 91)."""
    if b'"subshell_id"' not in message.header_frame:
        return False
    try:
        return _subshell.decode(message.header_frame).subshell_id is not None
    except msgspec.ValidationError:
        return False
