"""What is told of JSON without decoding it, and the table of how large messages may be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate_kernels.base.resources import KIB, MIB
from cellgate_kernels.codec import structure
from cellgate_kernels.codec.structure import (
    CONTAINER_COST,
    DEEPEST,
    ELEMENT_COST,
    INLINE_BYTES,
    INLINE_CONTAINERS,
    LONG_NUMBER,
    MOST_CONTAINERS,
    MOST_ELEMENTS,
    MOST_LONG_NUMBERS,
    MOST_PASSED_OVER,
    can_be_passed_over,
    is_heavy,
    is_too_deep,
    weigh,
)
from cellgate_kernels.protocol.messages import DELIMITER, MOST_HEADER, Channel
from cellgate_kernels.protocol.outputs import OutputCaps
from cellgate_kernels.protocol.policy import MessagePolicy
from tests.support.examples import examples

tricky = st.text(alphabet='[]{},":\\ab\u00e9\n', max_size=30)
values = st.recursive(
    st.none() | st.integers() | tricky,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(tricky, inner, max_size=5),
    max_leaves=40,
)


def counted(value: Any) -> tuple[int, int]:
    """Containers and commas of a value, by walking it."""
    if not isinstance(value, (list, dict)):
        return 0, 0
    parts = [counted(part) for part in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(a for a, _ in parts), max(0, len(value) - 1) + sum(b for _, b in parts)


@examples()
@given(values, st.booleans(), st.integers(1, 40))
def test_what_is_in_strings_does_not_count(value: Any, ascii_only: bool, piece: int) -> None:
    frame = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "_SLICE", piece)
        assert structure._outside_of_strings(frame)[:2] == counted(value)


@pytest.mark.parametrize(
    ("frame", "heavy"),
    [
        (b'"' + b"x" * (INLINE_BYTES - 2) + b'"', False),
        (b'"' + b"x" * INLINE_BYTES + b'"', True),
        (b"[" + b"[]," * (INLINE_CONTAINERS + 1) + b"1]", True),
        (b"[" + b"1," * 1_900 + b"1]", False),
        (b"[" + b"1," * 2_100 + b"1]", True),
    ],
)
def test_what_is_heavy_is_not_read_on_the_loop(frame: bytes, heavy: bool) -> None:
    assert is_heavy(frame) is heavy


@pytest.mark.parametrize(
    ("frame", "weight"),
    [
        (b"[" + b"[]," * (MOST_CONTAINERS - 2) + b"[]]", CONTAINER_COST * MOST_CONTAINERS),
        (b"[" + b"[]," * MOST_CONTAINERS + b"[]]", None),
        (b"[" + b"1," * (MOST_ELEMENTS + 1) + b"1]", None),
        (b'["' + b"[,{" * MOST_ELEMENTS + b'"]', CONTAINER_COST),
        (b'"' + b'\\"[,' * MOST_ELEMENTS + b'"', 0),
        (b'""' * (2 * MOST_ELEMENTS + 3) + b"[" * (MOST_CONTAINERS + 1), None),
    ],
    ids=["as many as may be", "too many lists", "too many numbers", "a text", "escapes", "no JSON"],
)
def test_a_frame_is_weighed_by_what_would_be_made_of_it(frame: bytes, weight: int | None) -> None:
    found = weigh(frame)
    if weight is None:
        assert found is None
    else:
        assert found is not None
        assert weight <= found <= weight + ELEMENT_COST * MOST_CONTAINERS


@pytest.mark.parametrize("beside", [0, 5000])
@pytest.mark.parametrize("levels", [DEEPEST, DEEPEST + 1])
def test_nesting_is_bounded(levels: int, beside: int) -> None:
    value: Any = []
    for _ in range(levels - 2):
        value = [value]
    value = [value, *[[]] * beside, "]" * 10]
    assert is_too_deep(json.dumps(value).encode(), value) is (levels > DEEPEST)


POLICY = MessagePolicy(OutputCaps(text=10 * MIB, data=50 * MIB))


@pytest.mark.parametrize(
    ("channel", "msg_type", "most"),
    [
        (Channel.IOPUB, "status", 4 * KIB),
        (Channel.IOPUB, "clear_output", 4 * KIB),
        (Channel.IOPUB, "stream", 60 * MIB),
        (Channel.IOPUB, "error", 60 * MIB),
        (Channel.IOPUB, "display_data", 50 * MIB),
        (Channel.IOPUB, "comm_msg", 50 * MIB),
        (Channel.IOPUB, "somebody's own", 4 * MIB),
        (Channel.SHELL, "execute_reply", 16 * MIB),
        (Channel.SHELL, "kernel_info_reply", 256 * KIB),
        (Channel.STDIN, "input_request", MIB),
        (Channel.CONTROL, "interrupt_reply", 64 * KIB),
    ],
)
def test_the_table_of_bounds(channel: Channel, msg_type: str, most: int) -> None:
    for size in (most, most + 1):
        content = bytes(size)
        assert POLICY.allows(channel, msg_type, [b"{}", b"{}", b"{}", content]) is (size == most)
    header = json.dumps({"msg_id": "m", "msg_type": msg_type}).encode()
    frames = [b"topic", DELIMITER, b"signature", header, b"{}", b"{}"]
    assert POLICY.most_next(channel, frames) == most, "known before the content has come"
    assert most < POLICY.most_bytes(channel)


def test_headers_are_bounded_as_well() -> None:
    for place in range(2):
        parts = [b"{}", b"{}", b"{}", b"{}"]
        parts[place] = bytes(MOST_HEADER + 1)
        assert not POLICY.allows(Channel.IOPUB, "stream", parts)
    frames = [b"topic", DELIMITER, b"signature"]
    assert POLICY.most_next(Channel.IOPUB, frames[:1]) == MOST_HEADER
    assert POLICY.most_next(Channel.IOPUB, frames) == MOST_HEADER
    assert POLICY.most_next(Channel.IOPUB, [*frames, b"no header", b"{}", b"{}"]) == 0


def test_buffers_are_bounded_by_number_and_bytes() -> None:
    parts = [b"{}"] * 4
    assert POLICY.allows(Channel.IOPUB, "display_data", [*parts, *[b""] * 10_000])
    assert not POLICY.allows(Channel.IOPUB, "display_data", [*parts, *[b""] * 10_001])
    assert not POLICY.allows(Channel.IOPUB, "display_data", [*parts, bytes(30 * MIB), bytes(21 * MIB)])
    assert not POLICY.allows(Channel.IOPUB, "status", [*parts, b"x"])


def test_brackets_in_strings_hide_no_depth() -> None:
    """Taken together with those outside they look like a shallow value."""
    levels = 2 * DEEPEST
    deep = '["]",' * levels + "0" + ',"["]' * levels
    assert is_too_deep(deep.encode(), json.loads(deep))


@pytest.mark.parametrize("digits", [LONG_NUMBER, 1000, 4299])
@pytest.mark.parametrize("before", [0, 63, structure._SLICE - 100])
def test_many_long_numbers_are_too_complex(digits: int, before: int) -> None:
    """Four thousand digits are read and written at a third of a millisecond, with all others waiting."""
    number = b"7" * digits
    start, few = b'{"a":"%b","b":[' % (b"x" * before), b",".join([number] * MOST_LONG_NUMBERS)
    assert weigh(start + few + b"]}") is not None
    many = start + few + b"," + few + b"]}"
    assert is_heavy(many)
    assert weigh(many) is None


@pytest.mark.parametrize("text", ["0" * 100_000, "1234567 " * 100_000, "0" * 63 + "x"])
def test_digits_in_texts_are_not_numbers(text: str) -> None:
    assert weigh(json.dumps({"text": [text] * 30}).encode()) is not None


@pytest.mark.parametrize(
    ("frame", "passed"),
    [
        (b"[" + b"1," * (MOST_PASSED_OVER - 1) + b"1]", True),
        (b"[" + b"1," * MOST_PASSED_OVER + b"1]", False),
        (b"{" * (MOST_PASSED_OVER + 1), False),
        (b'"' + b"1,[{" * MOST_PASSED_OVER + b'"', True),
        (b'"' + b"1," * MOST_PASSED_OVER + b'\\",[' + b"1," * MOST_PASSED_OVER + b'",[', True),
    ],
    ids=["as many as may be", "elements", "containers", "a text", "a text with a quote"],
)
def test_json_of_many_parts_is_not_passed_on_unread(frame: bytes, passed: bool) -> None:
    """The decoder would hold the interpreter for long."""
    assert can_be_passed_over(frame) is passed
    assert can_be_passed_over(bytearray(frame)) is passed
