"""The parts of a regular expression that can make it take more than linear time, whatever the text.

They are found in the expression's parsed form, so the verdict is the same on every machine. Python's engine
backtracks: where a text fits in several ways, it tries all of them before it gives up. An endless repeat can
give back characters to what follows it. A repeat in a repeat can divide a text among its turns in many ways.
A search that fails begins anew at the next character, which can be inside the endless repeat that it has just
gone through. (Davis and others, "The impact of regular expression denial of service (ReDoS) in practice",
2018.)

The rules compare sets of single characters, so they also refuse some expressions that are linear. Possessive,
atomic and bounded repeats are refused only if a search can begin anew inside them. Nothing here knows what an
expression is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from tests.support.parsed_patterns import CATEGORIES, REPEATS, Nodes, children

ENDLESS = 1000
"""The number of turns from which on a repeat counts as endless."""
MANY = 10
"""The number of turns from which on a repeat of something that varies has too many ways to divide a text."""
ABOVE_LATIN = "\u0130\u017f\u03c0\u0663\u2003\u212a\u4e2d\U0001f600"
"""Characters that stand for all above U+00FF: letters with odd cases, a digit, a space, others."""
GIVES_BACK = "a repeat that could match what follows it"
NESTED = "an endless repeat in another"
ALIKE = "alternatives that begin alike, in an endless repeat"
BEGINS_ANEW = "a search that can begin anew inside an endless repeat"
WRONG = "a possessive repeat of a group, which Python before 3.11.5 gets wrong: make it atomic"
"""See https://github.com/python/cpython/issues/106052."""

Characters = frozenset[str]
NONE: Characters = frozenset()

_OF_ONE = (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY)
_AT_START = (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING)


@dataclass(frozen=True, slots=True)
class Next:
    """How a text can go on from a place in an expression."""

    first: Characters
    """The characters that can come next."""
    can_end: bool
    """Whether the expression can be over here."""
    can_fail: bool
    """Whether some text does not fit from here on."""


NOTHING = Next(NONE, can_end=True, can_fail=False)


@dataclass(frozen=True, slots=True)
class Before:
    """How a search comes to a place in an expression."""

    passed: tuple[Characters, ...] = ()
    """The sets of characters of which it has passed one each."""
    begins_after: Characters | None = None
    """The characters behind which the expression can begin; None: all."""
    only_at_start: bool = False
    """Whether the expression begins at the text's start alone."""


def faults(pattern: re.Pattern[Any], *, searches: bool, whole: bool) -> list[str]:
    """Return the rules that an expression breaks, each once.

    `searches`: the expression is tried at every place of a text, as by `re.Pattern.search`. `whole`: it must
    fit up to the text's end, as by `re.Pattern.fullmatch`.
    """
    judge = _Judge(pattern, searches)
    end = Next(NONE, can_end=True, can_fail=whole)
    return list(dict.fromkeys(judge.walk(judge.tree, end, Before(), in_loop=False)))


class _Judge:
    """One expression under judgement."""

    def __init__(self, pattern: re.Pattern[Any], searches: bool) -> None:
        source, self._flags, self._searches = pattern.pattern, pattern.flags, searches
        text = source.decode("latin-1") if isinstance(source, bytes) else source
        above = "" if isinstance(source, bytes) else ABOVE_LATIN + text
        self._any = frozenset(map(chr, range(256))) | frozenset(above)
        # Flags that were written into the expression are found there again.
        self.tree: Nodes = list(parser.parse(text, pattern.flags & ~(re.DEBUG | re.LOCALE)))

    def walk(
        self, nodes: Nodes, after: Next, before: Before, *, in_loop: bool, atomic: bool = False
    ) -> Iterator[str]:
        """Judge nodes in their order.

        `in_loop`: they stand in a repeat of many turns. `atomic`: they are the whole of an atomic group.
        """
        for index, (op, argument) in enumerate(nodes):
            rest = self._next(nodes[index + 1 :], after)
            if op is codes.SUBPATTERN:
                yield from self.walk(argument[3], rest, before, in_loop=in_loop)
            elif op is codes.ATOMIC_GROUP:
                # What follows takes nothing back from it.
                inside = replace(rest, first=NONE)
                yield from self.walk(argument, inside, before, in_loop=in_loop, atomic=True)
            elif op in (codes.ASSERT, codes.ASSERT_NOT):
                yield from self.walk(argument[1], NOTHING, before, in_loop=in_loop)
            elif op is codes.BRANCH:
                yield from self._branch(argument[1], rest, before, in_loop)
            elif op in REPEATS:
                if op is codes.POSSESSIVE_REPEAT and not (
                    len(argument[2]) == 1 and argument[2][0][0] in _OF_ONE
                ):
                    yield WRONG
                keeps = op is codes.POSSESSIVE_REPEAT or (atomic and index == len(nodes) - 1)
                yield from self._repeat(argument, rest, before, keeps=keeps, in_loop=in_loop)
            before = self._behind(op, argument, before, rest)

    def _branch(self, branches: list[Nodes], rest: Next, before: Before, in_loop: bool) -> Iterator[str]:
        seen = NONE
        for each in branches:
            first = self._next(each, rest).first
            if in_loop and seen & first:
                yield ALIKE
            seen |= first
            yield from self.walk(each, rest, before, in_loop=in_loop)

    def _repeat(
        self, argument: Any, rest: Next, before: Before, *, keeps: bool, in_loop: bool
    ) -> Iterator[str]:
        """Judge a repeat. `keeps`: it gives nothing back."""
        least, most, body = argument
        endless, many = (most is codes.MAXREPEAT or most >= limit for limit in (ENDLESS, MANY))
        gives_back = not keeps and least != most
        begins = self._next(body, NOTHING)
        if gives_back and (endless or in_loop) and begins.first & rest.first:
            yield GIVES_BACK
        if gives_back and endless and in_loop:
            yield NESTED
        if endless and self._searches and rest.can_fail and self._begins_inside(self._used(body), before):
            yield BEGINS_ANEW
        follows = NONE if keeps else rest.first
        turn = replace(rest, first=follows | begins.first if most > 1 else follows)
        yield from self.walk(body, turn, before, in_loop=in_loop or many)

    def _begins_inside(self, inside: Characters, before: Before) -> bool:
        """Return whether what comes before a repeat can be found among the characters `inside` the repeat."""
        if before.only_at_start or not all(each & inside for each in before.passed):
            return False
        return before.begins_after is None or bool(before.begins_after & inside)

    def _behind(self, op: Any, argument: Any, before: Before, rest: Next) -> Before:
        """Return how a search comes to the place behind a node."""
        if before.passed or op not in (codes.AT, codes.ASSERT_NOT):
            return replace(before, passed=(*before.passed, *self._needed([(op, argument)])))
        if op is codes.ASSERT_NOT:
            looks_back = argument[0] < 0 and len(argument[1]) == 1
            refused = self._next(argument[1], NOTHING).first if looks_back else NONE
        elif argument in _AT_START:
            if not (argument is codes.AT_BEGINNING and self._flags & re.MULTILINE):
                return replace(before, only_at_start=True)
            refused = self._any - {"\n"}
        elif argument is codes.AT_BOUNDARY and not rest.can_end:
            words = self._members(codes.CATEGORY, codes.CATEGORY_WORD)
            refused = next((each for each in (words, self._any - words) if rest.first <= each), NONE)
        else:
            refused = NONE
        return replace(before, begins_after=(before.begins_after or self._any) - refused)

    def _needed(self, nodes: Nodes) -> Iterator[Characters]:
        """Yield the sets of characters of which a text must have one each to get past nodes."""
        for op, argument in nodes:
            if op in _OF_ONE:
                yield self._set(op, argument)
            elif op in REPEATS and argument[0]:
                yield from self._needed(argument[2])
            elif op is codes.SUBPATTERN:
                yield from self._needed(argument[3])
            elif op is codes.ATOMIC_GROUP:
                yield from self._needed(argument)
            elif op is codes.BRANCH and all(list(self._needed(each)) for each in argument[1]):
                yield frozenset().union(*(self._used(each) for each in argument[1]))

    def _used(self, nodes: Nodes) -> Characters:
        """Return all characters that nodes can match."""
        found = NONE
        for op, argument in nodes:
            if op in _OF_ONE:
                found |= self._set(op, argument)
            elif op is codes.GROUPREF:
                found |= self._any
            elif op not in (codes.ASSERT, codes.ASSERT_NOT):
                for inner in children(op, argument):
                    found |= self._used(inner)
        return found

    def _next(self, nodes: Nodes, after: Next) -> Next:
        """Return how a text can go on that has come to nodes, behind which it goes on as `after` says."""
        found = after
        for op, argument in reversed(nodes):
            found = self._next_of(op, argument, found)
        return found

    def _next_of(self, op: Any, argument: Any, after: Next) -> Next:
        if op in _OF_ONE:
            return Next(self._set(op, argument), can_end=False, can_fail=True)
        if op is codes.GROUPREF:
            return Next(self._any, can_end=True, can_fail=True)
        if op is codes.AT:
            return replace(after, can_fail=True)
        if op is codes.ASSERT:
            inside = self._next(argument[1], NOTHING)
            first = after.first if argument[0] < 0 or inside.can_end else inside.first & self._or_any(after)
            return Next(first, after.can_end, can_fail=True)
        if op is codes.ASSERT_NOT:
            return replace(after, can_fail=True)
        if op in REPEATS and not argument[0]:
            inside = self._next(argument[2], after)
            return Next(inside.first | after.first, after.can_end, after.can_fail)
        each = [self._next(inner, after) for inner in children(op, argument)]
        return Next(
            frozenset().union(*(one.first for one in each)),
            any(one.can_end for one in each),
            all(one.can_fail for one in each),
        )

    def _or_any(self, after: Next) -> Characters:
        return self._any if after.can_end else after.first

    def _set(self, op: Any, argument: Any) -> Characters:
        """Return the characters that a node of one character matches."""
        if op is codes.ANY:
            return self._any if self._flags & re.DOTALL else self._any - {"\n"}
        if op in (codes.LITERAL, codes.NOT_LITERAL):
            found = self._in_cases(frozenset(chr(argument)))
            return self._any - found if op is codes.NOT_LITERAL else found
        negated = argument[0][0] is codes.NEGATE
        found = NONE
        for kind, value in argument[negated:]:
            found |= self._members(kind, value)
        found = self._in_cases(found)
        return self._any - found if negated else found

    def _members(self, kind: Any, value: Any) -> Characters:
        if kind is codes.LITERAL:
            return frozenset(chr(value))
        if kind is codes.RANGE:
            return frozenset(each for each in self._any if value[0] <= ord(each) <= value[1])
        return frozenset(re.findall(CATEGORIES[value], "".join(self._any), self._flags & re.ASCII))

    def _in_cases(self, found: Characters) -> Characters:
        if not self._flags & re.IGNORECASE:
            return found
        return found | {each.swapcase() for each in found} | {each.lower() for each in found}
