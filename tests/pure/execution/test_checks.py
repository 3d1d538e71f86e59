"""Checks of values in requests: a refusal names the key that is at fault."""

from __future__ import annotations

from typing import Any

import pytest

from cellgate.execution.checks import MAX_METADATA_DEPTH, check_metadata
from cellgate_kernels.base.errors import InvalidInput


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("wrong", ["\ud800", ["\ud800"], nested(MAX_METADATA_DEPTH)])
def test_metadata_that_can_not_be_kept_is_named(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="see the key 'wrong'"):
        check_metadata({"right": "x", "wrong": wrong})
    check_metadata({"right": nested(3)})
