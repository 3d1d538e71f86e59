"""Encoding in steps: the same bytes, in parts that take little time each."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate_kernels.codec import encoding
from cellgate_kernels.codec.encoding import STEP, encode_in_steps
from tests.support.examples import examples

texts = st.text() | st.text(st.sampled_from('a"\\\n\x01é\U0001f600')).map(lambda text: text * 40)


class Part(msgspec.Struct):
    """A struct whose fields may be left out, and have other names in JSON."""

    text: Any = ""
    value: Any = msgspec.field(default=msgspec.UNSET, name="the value")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | texts,
    lambda children: (
        st.lists(children, max_size=20)
        | st.dictionaries(texts, children, max_size=8)
        | st.builds(Part, children)
        | st.builds(Part, texts, children)
    ),
    max_leaves=40,
)


@examples(200)
@given(value=values)
def test_it_is_what_the_encoder_makes(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "STEP", 7)
        patch.setattr(encoding, "_ITEMS", 3)
        assert b"".join(encode_in_steps(value)) == msgspec.json.encode(value)


@pytest.mark.parametrize(
    "value",
    [
        {"outputs": [{"data": {"text/plain": "\n" * 1_000_000}}]},
        {"data": {"text/html": "é" * 1_000_000}, "seq": 1},
        {"outputs": [{"output_type": "stream", "text": "x"}] * 100_000},
        {"error": Part(["x" * 100] * 100_000)},
        Part("", {"text": "x" * 1_000_000}),
        {"error": {"traceback": ["x" * 100] * 100_000}},
        ["x" * 1_000_000] * 3,
    ],
)
def test_no_part_is_long(value: Any) -> None:
    assert max(map(len, encode_in_steps(value))) <= 6 * STEP


def test_what_cant_be_encoded_is_told() -> None:
    for value in ({"data": {"a": "x" * STEP + "\ud800" + "x" * STEP}}, [object()]):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            encode_in_steps(value)
