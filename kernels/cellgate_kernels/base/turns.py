"""A fair order of turns among claimants that wait for the same thing. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with one turn as the unit of service. The
claimant whose turn is due first is next, in a virtual time that advances with the turns; its following turn
is due later by 1 divided by its weight. One claimant's items are served in order of arrival. A claimant that
was absent is due now, not earlier: absence earns nothing, and a newcomer is served after at most one turn of
each other. A claimant that has just had a turn is due later even if it left meanwhile. Each operation takes
O(log n) steps for n claimants; `order` takes O(n) before its first item.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

LEAST_WEIGHT = 0.001
MOST_WEIGHT = 1000.0
TURN = 1_000_000
"""The virtual time of a turn at weight 1: whole numbers stay exact, however large they grow."""
MOST_REMEMBERED = 10_000
"""Most absent claimants, with a recent turn, that are remembered; beyond, the first due one is dropped."""
SLACK = 16
"""Stale entries that are kept even if few claimants wait."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A taker of turns. With `weight` 2 it gets twice the turns of one with weight 1."""

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError for a weight that is not between LEAST_WEIGHT and MOST_WEIGHT."""
        if not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            raise ValueError(f"A weight is a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}")

    @property
    def turn(self) -> int:
        """The virtual time by which each turn delays the next one."""
        return round(TURN / self.weight)


@dataclass(slots=True)
class _Line(Generic[T]):
    """One claimant's waiting items. `due`: when its next turn is; among equals, the lowest `joined` is first.

    `absent_until`: its `due` while it is absent.
    """

    claimant: Claimant
    due: int
    joined: int = 0
    absent_until: int = -1
    items: OrderedDict[T, None] = field(default_factory=OrderedDict)

    @property
    def entry(self) -> tuple[int, int, str]:
        return self.due, self.joined, self.claimant.name


class TurnOrder(Generic[T]):
    """Items that wait, each for its claimant. An item waits at most once."""

    def __init__(self) -> None:
        self._now = 0
        self._lines: dict[str, _Line[T]] = {}
        self._line_of: dict[T, _Line[T]] = {}
        # An entry that no longer matches its line is stale, and skipped.
        self._waiting: list[tuple[int, int, str]] = []
        self._absent: list[tuple[int, str]] = []
        self._joined = itertools.count()

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, item: object) -> bool:
        return item in self._line_of

    @property
    def claimants(self) -> int:
        """The number of known claimants: waiting ones, and ones remembered from their last turns."""
        return len(self._lines)

    def add(self, claimant: Claimant, item: T) -> None:
        """Let an item wait. The claimant's weight counts from now on."""
        line = self._line(claimant)
        line.items[item] = None
        self._line_of[item] = line
        if len(line.items) == 1:
            line.due = max(line.due, self._now)
            self._join(line)

    def first(self) -> T | None:
        """Return the item whose turn it is; None if nothing waits."""
        line = self._first_line()
        return None if line is None else next(iter(line.items))

    def take(self, item: T) -> None:
        """Serve an item: a turn of its claimant, even if the item was not the first."""
        first = self._first_line()
        assert first is not None
        self._advance(first.due)
        line = self._line_of.pop(item)
        del line.items[item]
        self._charge(line)

    def remove(self, item: T) -> None:
        """Remove a waiting item, without a turn."""
        line = self._line_of.pop(item)
        del line.items[item]
        if not line.items:
            self._leave(line)

    def served(self, claimant: Claimant) -> None:
        """Count a claimant's service without a wait as a turn."""
        line = self._line(claimant)
        line.due = max(line.due, self._now)
        first = self._first_line()
        self._advance(line.due if first is None else min(line.due, first.due))
        self._charge(line)

    def order(self) -> Iterator[T]:
        """Yield the items in their order if none is added or removed. Use the result before any change."""
        lines = {entry: line for entry in self._waiting if (line := self._line_at(entry)) is not None}
        heap = list(lines)
        heapq.heapify(heap)
        upcoming = {line.claimant.name: iter(line.items) for line in lines.values()}
        turns = {line.claimant.name: line.claimant.turn for line in lines.values()}
        later = itertools.count(max((joined for _, joined, _ in heap), default=0) + 1)
        while heap:
            due, _, name = heap[0]
            item = next(upcoming[name], None)
            if item is None:
                heapq.heappop(heap)
                continue
            yield item
            heapq.heapreplace(heap, (due + turns[name], next(later), name))

    def _line(self, claimant: Claimant) -> _Line[T]:
        line = self._lines.get(claimant.name)
        if line is None:
            line = self._lines[claimant.name] = _Line(claimant, self._now)
        line.claimant = claimant
        return line

    def _line_at(self, entry: tuple[int, int, str]) -> _Line[T] | None:
        """Return the line that this entry stands for; None if it is stale."""
        line = self._lines.get(entry[2])
        return line if line is not None and line.items and line.entry == entry else None

    def _first_line(self) -> _Line[T] | None:
        while self._waiting:
            line = self._line_at(self._waiting[0])
            if line is not None:
                return line
            heapq.heappop(self._waiting)
        return None

    def _join(self, line: _Line[T]) -> None:
        line.joined = next(self._joined)
        if len(self._waiting) > 2 * len(self._lines) + SLACK:
            self._waiting = [entry for entry in self._waiting if self._line_at(entry) is not None]
            heapq.heapify(self._waiting)
        heapq.heappush(self._waiting, line.entry)

    def _charge(self, line: _Line[T]) -> None:
        """Charge the line for its turn: the next one is due later."""
        line.due += line.claimant.turn
        if line.items:
            self._join(line)
        else:
            self._leave(line)

    def _leave(self, line: _Line[T]) -> None:
        """Remember an empty line until its claimant would be due like a new one."""
        if line.due <= self._now:
            del self._lines[line.claimant.name]
            return
        if line.absent_until == line.due:
            return
        line.absent_until = line.due
        heapq.heappush(self._absent, (line.due, line.claimant.name))
        if len(self._absent) > MOST_REMEMBERED:
            self._forget()

    def _advance(self, moment: int) -> None:
        self._now = max(self._now, moment)
        while self._absent and self._absent[0][0] <= self._now:
            self._forget()

    def _forget(self) -> None:
        due, name = heapq.heappop(self._absent)
        line = self._lines.get(name)
        if line is None or line.absent_until != due:
            return
        line.absent_until = -1
        if not line.items:
            del self._lines[name]
