"""Why a body or a query is refused: in JSON's words, with the place, and with what was probably meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cellgate.http.message import decode
from cellgate.http.queries import read_query
from cellgate.http.unfit import MOST_SHOWN
from cellgate.wire import models
from cellgate.wire.base import Body
from cellgate.wire.models import (
    BlocksBody,
    BranchBody,
    Command,
    ExecuteBody,
    ExploreBody,
    InspectBody,
    SessionBody,
    WidgetBody,
)
from cellgate.wire.queries import EventsQuery
from cellgate_kernels.base.errors import LONGEST_MISTYPED, InvalidInput, nearest

CELL = "code, on_disconnect, wait, cell_id, timeout, stdin, silent, env, language, tables, packages"
LIMITS = "memory, cpus, pids, disk, cell_timeout, idle_timeout, on_idle, lifetime"


def refusal(kind: type[Any], body: bytes) -> str:
    """What the client is told, without the beginning that is always the same."""
    with pytest.raises(InvalidInput) as refused:
        decode(body, kind)
    beginning, _, why = refused.value.message.partition(": ")
    assert beginning == "The request body does not fit"
    return why


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (
            ExecuteBody,
            b'{"code": "1", "timout": 5}',
            "`timout`; did you mean `timeout`? Known fields: " + CELL,
        ),
        (ExecuteBody, b'{"code": "1", "deadline": 5}', "`deadline`. Known fields: " + CELL),
        (
            SessionBody,
            b'{"limits": {"mem": 1}}',
            "`limits.mem`; did you mean `memory`? Known fields: " + LIMITS,
        ),
        (
            BlocksBody,
            b'{"blocks": [{"language": "bash", "cod": ""}]}',
            "`blocks[0].cod`; did you mean `code`? Known fields: language, code",
        ),
        (Command, b'{"execute": {"cod": ""}}', "`execute.cod`; did you mean `code`? Known fields: " + CELL),
        (
            Command,
            b'{"exec": {}}',
            "`exec`; did you mean `execute`? Known fields: execute, interrupt, input, id",
        ),
    ],
)
def test_an_unknown_field_is_told_with_the_one_that_was_meant_and_all_that_there_are(
    kind: type[Any], body: bytes, told: str
) -> None:
    assert refusal(kind, body) == f"unknown field {told}"


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (ExecuteBody, b'{"code": "1", "timeout": "5"}', "timeout must be a number, not a string"),
        (ExecuteBody, b'{"code": "1", "timeout": true}', "timeout must be a number, not a boolean"),
        (ExecuteBody, b'{"code": "1", "timeout": 1e400}', "timeout is a number out of range"),
        (ExecuteBody, b'{"code": 1}', "code must be a string, not a number"),
        (ExecuteBody, b'{"code": null}', "code must be a string, not null"),
        (ExecuteBody, b'{"code": "1", "silent": 0}', "silent must be true or false, not a number"),
        (ExecuteBody, b'{"code": "1", "stdin": {}}', "stdin must be an array, not an object"),
        (ExecuteBody, b"{}", "code is missing"),
        (ExecuteBody, b"[]", "it must be an object, not an array"),
        (ExploreBody, b'{"cells": ["1", "2", "3", 4]}', "cells[3] must be a string, not a number"),
        (
            BlocksBody,
            b'{"blocks": [{"language": "r", "code": []}]}',
            "blocks[0].code must be a string, not an array",
        ),
        (BlocksBody, b'{"blocks": [{"language": "r"}]}', "blocks[0].code is missing"),
        (SessionBody, b'{"env": {"A": 1}}', "a value in env must be a string, not a number"),
        (SessionBody, b'{"metadata": {"a": {"b": 1e400}}}', "a value in metadata is a number out of range"),
        (SessionBody, b'{"network": "all"}', 'network must be "allow" or "none"'),
        (SessionBody, b'{"session": 1}', "session must be a string, not a number"),
        (SessionBody, b'{"kernel": []}', "kernel must be a string, not an array"),
        (SessionBody, b'{"env": ["A=B"]}', "env must be an object, not an array"),
        (SessionBody, b'{"limits": "512m"}', "limits must be an object, not a string"),
        (SessionBody, b'{"metadata": []}', "metadata must be an object, not an array"),
        (ExecuteBody, b'{"code": "1", "wait": null}', "wait must be true or false, not null"),
        (ExecuteBody, b'{"code": "1", "stdin": [1]}', "stdin[0] must be a string, not a number"),
        (SessionBody, b'{"network": 1}', 'network must be "allow" or "none", not a number'),
        (
            SessionBody,
            b'{"limits": {"memory": []}}',
            "limits.memory must be a whole number or a string, not an array",
        ),
        (InspectBody, b'{"code": "1", "detail": 2}', "detail must be 0 or 1"),
        (BranchBody, b'{"seed": -1}', "seed must be a whole number of at least 0"),
        (
            BranchBody,
            b'{"seed": 1.0}',
            "seed must be a whole number, not a number with a decimal point or an exponent",
        ),
        (Command, b'{"execute": {"code": true}}', "execute.code must be a string, not a boolean"),
        (WidgetBody, b'{"buffer_paths": [[]]}', "buffer_paths[0] must be an array of at least 1 values"),
        (
            WidgetBody,
            b'{"buffers": [' + b'"",' * 1000 + b'""]}',
            "buffers must be an array of at most 1000 values",
        ),
    ],
)
def test_a_wrong_value_is_told_by_its_place_in_the_words_of_json(
    kind: type[Any], body: bytes, told: str
) -> None:
    assert refusal(kind, body) == told


def bodies() -> list[type[Body]]:
    """All bodies that clients send."""
    classes = [each for each in vars(models).values() if isinstance(each, type)]
    return [each for each in classes if issubclass(each, Body) and each is not Body]


def values(field: msgspec.structs.FieldInfo) -> Iterator[object]:
    """Values of each of JSON's types for a field, also inside of an array and of an object."""
    plain = [None, True, 1, -1, 1.5, 10**30, "x", [], {}]
    yield from plain
    for value in plain:
        yield [value]
        yield {"key": value}
        yield {field.name: value}
        yield [{field.name: value}]


@pytest.mark.parametrize("kind", bodies(), ids=lambda kind: kind.__name__)
def test_no_refusal_is_in_the_words_of_the_decoder(kind: type[Body]) -> None:
    told = []
    for field in msgspec.structs.fields(kind):
        for value in values(field):
            try:
                decode(json.dumps({field.encode_name: value}).encode(), kind)
            except InvalidInput as refused:
                told.append(refused.message)
    assert told
    for word in ("Expected", " got ", "Object", "Invalid", "not what", "another value", "`str", "$"):
        assert [message for message in told if word in message] == []


# ---- hostile names -----------------------------------------------------------------------------------------


def test_a_long_name_is_cut_and_not_compared() -> None:
    name = "timeout" * 100_000
    told = refusal(ExecuteBody, json.dumps({name: 1}).encode())
    assert told == f"unknown field `{name[:MOST_SHOWN]}...`. Known fields: {CELL}"
    assert nearest("timeou" + "t" * LONGEST_MISTYPED, ["timeout"]) is None


def test_control_characters_of_a_name_are_shown_and_not_obeyed() -> None:
    assert refusal(ExecuteBody, b'{"a\\u001b[31m\\n\\u202e": 1}').startswith(
        r"unknown field `a\x1b[31m\n\u202e`. Known"
    )


@pytest.mark.parametrize(
    "name",
    [
        "x` - at `$.execute",
        "x` - at `$.none.of[...].these[7]",
        "` - at `$",
        "",
        "`",
        " - at `",
        "x` - at `key` in `$.id",
    ],
)
def test_a_name_like_the_end_of_a_refusal_is_refused_like_any_other(name: str) -> None:
    assert refusal(Command, json.dumps({name: 1}).encode()).startswith("unknown field `")


# ---- queries -----------------------------------------------------------------------------------------------


def test_an_unknown_query_parameter_is_told_likewise() -> None:
    with pytest.raises(InvalidInput) as refused:
        read_query({"principle": [b"ada"]}, EventsQuery)
    assert refused.value.message == (
        "The query does not fit: unknown parameter `principle`; did you mean `principal`?"
        " Known parameters: principal, after"
    )
    with pytest.raises(
        InvalidInput, match=r"unknown parameter `x{60}\.\.\.`\. Known parameters: principal, after"
    ):
        read_query({"x" * 8000: [b""]}, EventsQuery)
