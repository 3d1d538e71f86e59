"""The parsed form of a regular expression, as Python's own parser gives it: what all that read it need."""

from __future__ import annotations

from collections.abc import Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from types import MappingProxyType
from typing import Any

Nodes = Sequence[tuple[Any, Any]]
"""A sequence of operations, each with its argument."""

REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
CATEGORIES = MappingProxyType(
    {
        codes.CATEGORY_DIGIT: r"\d",
        codes.CATEGORY_NOT_DIGIT: r"\D",
        codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_NOT_SPACE: r"\S",
        codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_WORD: r"\W",
    }
)
"""The expression for a single character of each category."""


def children(op: Any, argument: Any) -> list[Nodes]:
    """Return the sequences inside an operation; none for one of a single character."""
    if op in REPEATS:
        return [argument[2]]
    if op is codes.SUBPATTERN:
        return [argument[3]]
    if op is codes.ATOMIC_GROUP:
        return [argument]
    if op is codes.BRANCH:
        return list(argument[1])
    if op is codes.GROUPREF_EXISTS:
        return [each or [] for each in argument[1:]]
    if op in (codes.ASSERT, codes.ASSERT_NOT):
        return [argument[1]]
    return []
