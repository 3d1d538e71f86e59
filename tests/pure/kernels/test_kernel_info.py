"""Of a kernel_info_reply a few words are kept, whatever the kernel sends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate_kernels.protocol.kernel_info import MOST_CHARACTERS, known_info
from tests.support.examples import examples

USUAL = {
    "protocol_version": "5.4",
    "implementation": "ipython",
    "implementation_version": "9.1.0",
    "language_info": {
        "name": "python",
        "version": "3.11.2",
        "mimetype": "text/x-python",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
        "file_extension": ".py",
    },
}


def test_what_is_usual_is_kept_and_nothing_else() -> None:
    told = {**USUAL, "status": "ok", "banner": "x" * 10**6, "help_links": [], "supported_features": ["a"]}
    assert known_info(told) == USUAL
    assert known_info({"language_info": {"name": "R", "codemirror_mode": "r", "x": [1]}}) == {
        "language_info": {"name": "R", "codemirror_mode": "r"}
    }


@pytest.mark.parametrize(
    "value", ["a\nb", "a\x1b[31m", "", "x" * (MOST_CHARACTERS + 1), 5, None, ["a"], {"a": "b"}, "a\u2028b"]
)
def test_a_word_that_is_none_is_left_out(value: object) -> None:
    assert known_info({"implementation": value, "language_info": {"name": value}}) == {"language_info": {}}


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"a": {"b": "c"}},
        {"a": 2**60},
        {"a": [1]},
        {str(n): n for n in range(17)},
        {"a": "x\n"},
        5,
        "x" * 300,
    ],
)
def test_a_mode_that_is_none_is_left_out(mode: object) -> None:
    assert known_info({"language_info": {"codemirror_mode": mode}}) == {"language_info": {}}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
FIELDS = st.sampled_from([*USUAL, *USUAL["language_info"], "banner"])  # type: ignore[list-item]


@examples(200)
@given(st.dictionaries(FIELDS, ANYTHING | st.dictionaries(FIELDS, ANYTHING)))
def test_what_is_kept_is_small_whatever_is_told(told: dict[str, Any]) -> None:
    kept = known_info(told)
    assert len(msgspec.json.encode(kept)) < 64 * 1024
    assert known_info(kept) == kept
