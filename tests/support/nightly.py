"""Parameters of which only some values are tried before each change; ``make test-nightly`` tries all."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def at_night(*values: Any) -> Any:
    """One set of parameters, which is tried by ``make test-nightly`` alone."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def mostly_nightly(
    values: Iterable[T], each_change: Container[T], name: Callable[[T], str] | None = None
) -> list[Any]:
    """The values as parameters: those that are not in `each_change` are nightly. `name` gives their ids."""
    return [
        pytest.param(
            value,
            marks=[] if value in each_change else pytest.mark.nightly,
            id=None if name is None else name(value),
        )
        for value in values
    ]
