"""The contents of a kernel's messages as fields of events; content that breaks the protocol is repaired.

Pure and stateless: each function reads the content of one message. A kernel runs user code, so content may
have any shape: content with a clear meaning is used, other content is ignored. ``execution`` interprets the
messages of a cell. Source: jupyter-client's "Messaging in Jupyter".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import structs

from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.protocol.messages import MalformedMessage, Message, TooComplex
from cellgate_kernels.protocol.outputs import KernelEvent

MOST_KINDS = 1000
"""The most MIME types of one output. Each must be checked, and no real output has as many."""

WIDGETS = "jupyter.widget"
"""The target of widgets' comms."""

_SHOWN = frozenset({"display_data", "execute_result", "update_display_data"})
_JSON_MIME = re.compile(r"application/(.*\+)?json")


def with_plain_text(message: Message) -> Message:
    """Return the message, with an empty `text/plain` if an output has none: clients index this field.

    Only these rare messages are decoded and encoded again; all others pass unchanged.
    """
    large = message.decoded is not None
    if message.msg_type not in _SHOWN or (not large and b'"text/plain"' in message.content_frame):
        return message
    try:
        content = message.content()
    except MalformedMessage:
        return message
    data = content.get("data")
    if not isinstance(data, dict) or "text/plain" in data:
        return message
    content["data"] = {**data, "text/plain": ""}
    return structs.replace(message, content_frame=b"".join(encode_in_steps(content)))


def content_of(message: Message) -> dict[str, Any]:
    """Return the content, or an empty one when it is invalid."""
    try:
        return message.content()
    except MalformedMessage:
        return {}


def fields_of(message: Message) -> dict[str, Any] | None:
    """Return the fields of the event for an output message; None when there is nothing to show.

    Raises TooComplex when the content is too large or complex to be read.
    """
    try:
        content = message.content()
    except TooComplex:
        raise
    except MalformedMessage:
        content = {}
    return _FIELDS[message.header.msg_type](content)


def text_of(value: Any) -> str:
    """Return a string for any value that stands in its place, such as nbformat's list of lines."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return msgspec.json.encode(value).decode()


def count_of(value: Any) -> int | None:
    """Return an execution_count; None if it is not a valid one."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def _stream(content: dict[str, Any]) -> dict[str, Any] | None:
    text = text_of(content.get("text"))
    return {"name": "stderr" if content.get("name") == "stderr" else "stdout", "text": text} if text else None


def _display(content: dict[str, Any]) -> dict[str, Any] | None:
    data, metadata, transient = content.get("data"), content.get("metadata"), content.get("transient")
    if not isinstance(data, dict):
        return None
    if len(data) > MOST_KINDS:
        raise TooComplex(f"an output of {len(data)} MIME types")
    data = {mime: value if _JSON_MIME.fullmatch(mime) else text_of(value) for mime, value in data.items()}
    fields: dict[str, Any] = {"data": data, "metadata": metadata if isinstance(metadata, dict) else {}}
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    if display_id and isinstance(display_id, str):
        fields["display_id"] = display_id
    return fields


def _update(content: dict[str, Any]) -> dict[str, Any] | None:
    fields = _display(content)
    return fields if fields is not None and "display_id" in fields else None


def _result(content: dict[str, Any]) -> dict[str, Any] | None:
    fields = _display(content)
    return {"execution_count": count_of(content.get("execution_count")), **fields} if fields else None


def _clear(content: dict[str, Any]) -> dict[str, Any]:
    return {"wait": bool(content.get("wait"))}


def error_of(content: dict[str, Any]) -> dict[str, Any]:
    """`ename`, `evalue` and `traceback` of an error or of a reply with one."""
    lines = content.get("traceback")
    return {
        "ename": text_of(content.get("ename")),
        "evalue": text_of(content.get("evalue")),
        "traceback": [text_of(line) for line in lines] if isinstance(lines, list) else [],
    }


def pages_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a display for each page of a reply: the output of ``obj?`` and ``%pdoc``.

    Source: "Messaging in Jupyter", section "Payloads". Raises TooComplex.
    """
    payload = content.get("payload")
    pages = [page for page in payload if isinstance(page, dict)] if isinstance(payload, list) else []
    shown = [_display(page) for page in pages if page.get("source") == "page"]
    return [fields for fields in shown if fields is not None and fields["data"]]


def comm_event(message: Message) -> KernelEvent | None:
    """Return the event for a widget's state or its change; None for custom messages and other comms.

    Raises TooComplex when its content is too large or complex to be read.
    """
    event_type = message.header.msg_type
    try:
        fields = _comm(event_type, message.content())
    except TooComplex:
        raise
    except MalformedMessage:
        return None
    if fields is not None and event_type != "comm_close":
        # Buffers become base64 when the event is encoded as JSON, in a thread if they are large.
        fields["buffers"] = list(message.buffers)
    return None if fields is None else KernelEvent(event_type, fields)


def _comm(event_type: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Return a comm's fields if it is a widget's: comm_open names the target, later messages have a state."""
    comm_id, data = content.get("comm_id"), content.get("data")
    if not isinstance(comm_id, str) or not comm_id:
        return None
    if event_type == "comm_close":
        return {"comm_id": comm_id}
    if not isinstance(data, dict) or not isinstance(data.get("state"), dict):
        return None
    if event_type == "comm_msg":
        return {"comm_id": comm_id, "data": data}
    target = content.get("target_name")
    return {"comm_id": comm_id, "target_name": target, "data": data} if target == WIDGETS else None


def _input(content: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": text_of(content.get("prompt")), "password": content.get("password") is True}


_FIELDS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "stream": _stream,
    "display_data": _display,
    "update_display_data": _update,
    "execute_result": _result,
    "clear_output": _clear,
    "error": error_of,
    "input_request": _input,
}


def printable(text: str, most: int) -> str:
    """Return the first `most` characters of a text, with a question mark for each that can't be shown."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)
