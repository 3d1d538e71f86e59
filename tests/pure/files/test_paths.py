"""Paths of a workspace, as requests name them."""

from __future__ import annotations

import tracemalloc

import pytest

from cellgate.files.tree import parse_path
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB


@pytest.mark.parametrize("unit", ["/", "a/", "a", "\u00e9", "\ud800"])
def test_a_name_of_any_length_is_measured_before_it_is_taken_apart(unit: str) -> None:
    text = unit * (8 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput):
            parse_path(text)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
