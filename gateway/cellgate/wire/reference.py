"""The page docs/reference/events.md, made from the event structs; ``make reference`` writes it.

A test fails when the file is out of date. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from cellgate.wire.events import EVENTS, OF_EXECUTIONS, OF_SESSIONS, Event, type_of

_HEAD = """
# Events

This page is generated from `gateway/cellgate/wire/events.py` by `make reference`; change it there.

What happens in a session is a row of its record, and each row is an event. The same JSON is hashed, stored,
streamed by `GET /v1/sessions/{s}/events` and by streamed executions, sent over the WebSocket, downloaded by
`GET /v1/sessions/{s}/audit`; [HTTP API](api.md#events) says how to follow it. A client must ignore fields and
types that it does not know. Optional fields are left out where they have nothing to say; all others are sent.

Every event begins with these fields:
"""


def reference() -> str:
    """Return the reference of events as Markdown."""
    common = [each.name for each in msgspec.structs.fields(Event)]
    parts = [_HEAD.strip(), "", *_table(Event, skip=())]
    groups: tuple[tuple[str, tuple[type[Event], ...]], ...] = (
        ("Events of an execution", OF_EXECUTIONS),
        ("Events of a session", OF_SESSIONS),
    )
    for title, kinds in groups:
        parts += ["", f"## {title}"]
        for kind in kinds:
            parts += ["", f"### `{type_of(kind)}`", "", _prose(kind), "", *_table(kind, skip=common)]
    parts += ["", "## Values in events"]
    for value in _values():
        parts += ["", f"### {value.__name__}", "", _prose(value), "", *_table(value, skip=())]
    return "\n".join(parts) + "\n"


def _prose(kind: type[Any]) -> str:
    """Return the docstring, each paragraph on one line."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


def _table(kind: type[msgspec.Struct], *, skip: Any) -> Iterator[str]:
    described = cast("msgspec.inspect.StructType", msgspec.inspect.type_info(kind))
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for each in described.fields:
        if each.name not in skip:
            type_name, meaning = _described(each.type)
            mark = " (optional)" if _may_be_left_out(each) else ""
            yield f"| `{each.encode_name}`{mark} | {type_name} | {meaning} |"


def _may_be_left_out(described: msgspec.inspect.Field) -> bool:
    """Return whether its default is UNSET: msgspec then says that it is optional, and reports no default."""
    defaults = (described.default, described.default_factory)
    return not described.required and defaults == (msgspec.NODEFAULT, msgspec.NODEFAULT)


def _described(kind: msgspec.inspect.Type) -> tuple[str, str]:
    """Return a type's name, and its description."""
    match kind:
        case msgspec.inspect.Metadata(type=inner, extra_json_schema=extra):
            name, meaning = _described(inner)
            return name, (extra or {}).get("description", meaning)
        case msgspec.inspect.UnionType(types=types):
            found = [_described(each) for each in types]
            names = sorted((name for name, _ in found), key=lambda name: name == "null")
            return " or ".join(names), next((meaning for _, meaning in found if meaning), "")
        case msgspec.inspect.ListType(item_type=item):
            return f"array of {_described(item)[0]}", ""
        case msgspec.inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})", ""
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values), ""
    return _NAMES[type(kind)], ""


_NAMES = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.NoneType: "null",
    msgspec.inspect.DictType: "object",
}


def _values() -> list[type[msgspec.Struct]]:
    """Return the structs that are used in fields of events."""
    found: dict[str, type[msgspec.Struct]] = {}
    for described in msgspec.inspect.multi_type_info(EVENTS):
        waiting: list[Any] = [each.type for each in cast("msgspec.inspect.StructType", described).fields]
        while waiting:
            kind = waiting.pop()
            if isinstance(kind, msgspec.inspect.StructType):
                found[kind.cls.__name__] = kind.cls
                waiting += [each.type for each in kind.fields]
            waiting += [getattr(kind, name) for name in ("type", "item_type") if hasattr(kind, name)]
            waiting += getattr(kind, "types", ())
    return [found[name] for name in sorted(found)]
