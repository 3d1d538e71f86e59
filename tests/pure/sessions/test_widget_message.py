"""Messages to widgets as requests have them: what is sent to a kernel, and what is refused before."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import msgspec
import pytest

from cellgate.http.message import decode, decode_heavy
from cellgate.sessions.widget_messages import MOST_BYTES, WidgetMessage, widget_message
from cellgate.wire.models import MOST_BUFFERS, WidgetBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.codec.structure import DEEPEST, is_heavy


def read(body: bytes) -> WidgetMessage:
    """Read a body as a request's is read."""
    found = decode_heavy(body, WidgetBody) if is_heavy(body) else decode(body, WidgetBody)
    return widget_message("c", found)


def sent(**fields: Any) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    message = read(json.dumps(fields).encode())
    return msgspec.json.decode(message.data), message.buffers


def refusal(body: bytes) -> str:
    with pytest.raises(InvalidInput) as refused:
        read(body)
    assert len(refused.value.message) < 300
    return refused.value.message


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_a_state_and_a_message_are_sent_as_jupyters_clients_send_them() -> None:
    state = {"state": {"value": 7}}
    assert sent(**state) == ({"method": "update", "buffer_paths": [], **state}, ())
    assert sent(content=None, buffers=["AQID"]) == ({"method": "custom", "content": None}, (b"\1\2\3",))


@pytest.mark.parametrize("path", [["new"], ["a"], ["a", "new"], ["a", "list", 0], ["a", "list", 1, "new"]])
def test_a_buffer_goes_to_a_place_of_the_state(path: list[str | int]) -> None:
    state = {"a": {"list": [None, {}]}}
    data, buffers = sent(state=state, buffer_paths=[path], buffers=["AQID"])
    assert data == {"method": "update", "state": state, "buffer_paths": [path]}
    assert buffers == (b"\1\2\3",)


@pytest.mark.parametrize(
    "path",
    [
        *(
            ["new", "b"],
            ["a", "list", 2],
            ["a", "list", -1],
            ["a", "list", "0"],
            ["a", 0],
            ["a", "list", 0, 0],
        ),
        *(["a", "text", 0], [0], ["a", "list", 10**30], ["a", "list", 1, 0], ["a", "none", "b"]),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: list[str | int]) -> None:
    state = {"a": {"list": [None, {}], "text": "xyz", "none": None}}
    body = {"state": state, "buffer_paths": [["x"], path], "buffers": ["", ""]}
    assert refusal(json.dumps(body).encode()) == "buffer_paths[1]: there is no such place in the state"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"state": {}, "buffer_paths": [["a"]]}', "1 paths for 0 buffers"),
        (b'{"state": {}, "buffers": ["AA=="]}', "0 paths for 1 buffers"),
        (b'{"state": {}, "buffer_paths": [["a"], ["a"]], "buffers": ["", ""]}', "the same"),
        (b'{"content": 1, "buffer_paths": [["a"]], "buffers": ["AA=="]}', "lead into a state"),
        (b'{"state": {}, "buffer_paths": [[]], "buffers": [""]}', "buffer_paths"),
        (b'{"state": {}, "buffer_paths": [[true]], "buffers": [""]}', "buffer_paths"),
        (b'{"state": {}, "buffer_paths": [[1.5]], "buffers": [""]}', "buffer_paths"),
        (b'{"state": {}, "buffer_paths": [["a"]], "buffers": ["="]}', "base64"),
        (b'{"state": {"a": NaN}}', "JSON"),
        (b'{"state": {"a": Infinity}}', "JSON"),
        (b'{"state": {"a": 1e999}}', "range"),
        (b'{"state": {"a": ' + b"9" * 5000 + b"}}", "range"),
        (b'{"state": {"a": "\\ud800"}}', "surrogate"),
        (b'{"state": {"a": ' + nested(DEEPEST - 1) + b"}}", "state is nested more than 99 levels deep"),
        (b'{"content": ' + nested(DEEPEST) + b"}", "content is nested more than 99 levels deep"),
        (b'{"content": ' + nested(900) + b"}", "nested"),
        (b'{"content": ' + nested(100_000) + b"}", "nested too deeply"),
        (b'{"content": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "nested too deeply"),
        (b'{"content": ' + nested(1_000_000) + b"}", "too many parts"),
        (b'{"content": "' + b"x" * MOST_BYTES + b'"}', f"more than {MOST_BYTES} bytes"),
        (b'{"state": {}, "buffers": [' + b'"",' * 1_000_000 + b'""]}', "too many parts"),
        (b'{"state": {}, "buffers": [' + b'"",' * MOST_BUFFERS + b'""]}', f"{MOST_BUFFERS}"),
        (b'{"state": {}, "buffer_paths": [' + b'["a"],' * MOST_BUFFERS + b'["a"]]}', f"{MOST_BUFFERS}"),
        (b'{"state": {}, "buffer_paths": [[' + b'"a",' * 100 + b'"a"]]}', "100"),
    ],
    ids=count(),
)
def test_hostile_bodies_are_refused(body: bytes, said: str) -> None:
    assert said in refusal(body)


def test_what_is_just_within_the_limits_is_sent() -> None:
    deep = json.loads(nested(DEEPEST - 2))
    assert sent(state={"a": deep})[0]["state"] == {"a": deep}
    names = [[str(number)] for number in range(MOST_BUFFERS)]
    assert len(sent(state={}, buffer_paths=names, buffers=[""] * MOST_BUFFERS)[1]) == MOST_BUFFERS
    assert sent(content="x" * (MOST_BYTES - 100))[0]["method"] == "custom"
    assert sent(state={"a": 10**100})[0]["state"] == {"a": 10**100}


def test_of_a_key_that_comes_twice_the_last_one_counts() -> None:
    assert msgspec.json.decode(read(b'{"state": {"a": 1, "a": 2}}').data)["state"] == {"a": 2}
