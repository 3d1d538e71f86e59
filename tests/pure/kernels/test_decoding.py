"""Numbers that take long to read: they cost what their bytes cost, wherever others' JSON is decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cellgate_kernels.codec.decoding import json_decoder, python_float
from cellgate_kernels.codec.structure import INLINE_BYTES, is_heavy
from cellgate_kernels.protocol.messages import MalformedMessage, read_content
from tests.support.growth import calls

SLOW = [b"1e-310", b"5e-324", b"1.7976931348623157e308", b"1.2345678901234567890123e-300"]


@pytest.mark.parametrize("number", SLOW)
def test_floats_at_the_ends_of_the_range_are_read_at_the_cost_of_others(number: bytes) -> None:
    """Python makes each, not msgspec, which takes thirty times as long for these."""
    frame = b'{"data":[' + b",".join([number] * 2000) + b"]}"
    assert read_content(frame)["data"] == [float(number)] * 2000
    assert calls(python_float, lambda: read_content(frame)) == 2000


def test_what_is_read_on_the_loop_holds_few_numbers() -> None:
    frame = b'{"data":[' + b",".join([b"1e-310"] * 9_000) + b"]}"
    assert len(frame) < INLINE_BYTES
    assert is_heavy(frame)


@pytest.mark.parametrize("number", [b"1e400", b"-1e400"])
def test_a_number_out_of_range_is_no_number(number: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="out of range"):
        json_decoder(dict[str, Any]).decode(b'{"a":%b}' % number)
    with pytest.raises(MalformedMessage):
        read_content(b'{"a":%b}' % number)


@pytest.mark.parametrize(
    "number", [b"0.1", b"1.0", b"-0.0", b"1e22", b"2.2250738585072011e-308", b"0.30000000000000004"]
)
def test_floats_are_those_of_python(number: bytes) -> None:
    value = read_content(b'{"a":%b}' % number)["a"]
    assert (type(value), repr(value)) == (float, repr(float(number)))
