"""Texts on which a regular expression takes its longest: made from the expression itself.

For each part of it that may repeat without end, texts in which just that part repeats, in which all up to it
repeats, and in which a last character keeps the whole from fitting: the ways in which an expression is tried
from every place, or in every split, for nothing. It knows nothing of what the expressions are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from tests.support.parsed_patterns import CATEGORIES, REPEATS, Nodes, children

ENDLESS = 100
"""How often something may repeat at least to count as repeating without end."""
ALPHABET = " a1A.,-_\"'/\\<>=:;{}()[]#@!%&*+?|~^$\t\n\r0fexyzZ\x00\x1b\x80é"
"""The characters of the texts, preferred first."""
ENDS = ("", "\x00", "\n", "x", " ", "!")


@dataclass(frozen=True, slots=True)
class Text:
    """A text that grows: `before`, then as many of `pump` as fit, then `after`."""

    before: str
    pump: str
    after: str

    def of(self, size: int) -> str:
        """The text of about so many characters."""
        return self.before + self.pump * max(1, size // len(self.pump)) + self.after


def near_misses(pattern: re.Pattern[Any]) -> list[Text]:
    """Return the texts for an expression, each once."""
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    # Flags that were written into the expression are found there again.
    tree = parser.parse(source, pattern.flags & ~(re.DEBUG | re.LOCALE))
    found: dict[Text, None] = {Text("", " ", end): None for end in ENDS}
    for full in (False, True):
        whole = _sample(tree, full)
        for part in {whole, whole[:-1], whole[1:]} - {""}:
            found |= dict.fromkeys(Text("", part, end) for end in ENDS)
        for before, body in _endless(tree, full, ""):
            for pump in _pumps(body, full):
                found |= dict.fromkeys(Text(before, pump, end) for end in ENDS)
                found |= dict.fromkeys(Text("", before + pump, end) for end in ENDS[:2])
                found |= dict.fromkeys(Text("", before + pump * 3, end) for end in ENDS[:2])
                found |= dict.fromkeys(Text("", pump + before, end) for end in ENDS[:2])
    return list(found)


def _endless(nodes: Nodes, full: bool, before: str) -> Iterator[tuple[str, Nodes]]:
    """The bodies that may repeat without end, each with what fits all before it."""
    for node in nodes:
        op, argument = node
        for inner in children(op, argument):
            yield from _endless(inner, full, before)
        if op in REPEATS and argument[1] is not codes.MAXREPEAT and argument[1] < ENDLESS:
            pass
        elif op in REPEATS:
            yield before, argument[2]
        before += _sample([node], full)


def _pumps(body: Nodes, full: bool) -> list[str]:
    """What fits the body once: of a single set, several of its characters."""
    if len(body) == 1 and body[0][0] in (codes.IN, codes.ANY, codes.NOT_LITERAL):
        return [letter for letter in ALPHABET if _fits(body[0], letter)][:6]
    return [sample] if (sample := _sample(body, full)) else []


def _sample(nodes: Nodes, full: bool) -> str:
    """A text that the nodes fit: without what may be missing, or `full`, with all of it once."""
    return "".join(_sample_of(op, argument, full) for op, argument in nodes)


def _sample_of(op: Any, argument: Any, full: bool) -> str:
    if op is codes.LITERAL:
        return chr(argument)
    if op in (codes.IN, codes.ANY, codes.NOT_LITERAL):
        return next((letter for letter in ALPHABET if letter != " " and _fits((op, argument), letter)), "")
    if op in REPEATS:
        least, most, body = argument
        return _sample(body, full) * (max(least, 1) if full and most else least)
    if op is codes.BRANCH:
        return _sample(argument[1][-1 if full else 0], full)
    if op in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
        return "".join(_sample(inner, full) for inner in children(op, argument))
    return ""


def _fits(node: tuple[Any, Any], letter: str) -> bool:
    op, argument = node
    if op is codes.ANY:
        return letter != "\n"
    if op is codes.NOT_LITERAL:
        return chr(argument) != letter
    negated = argument[0][0] is codes.NEGATE
    return any(_is_in(kind, value, letter) for kind, value in argument) != negated


def _is_in(kind: Any, value: Any, letter: str) -> bool:
    if kind is codes.LITERAL:
        return chr(value) == letter
    if kind is codes.RANGE:
        return value[0] <= ord(letter) <= value[1]
    if kind is codes.CATEGORY:
        return re.fullmatch(CATEGORIES[value], letter) is not None
    return False
