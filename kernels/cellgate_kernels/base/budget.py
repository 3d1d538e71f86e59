"""Bytes that many holders keep in memory, under one limit for all of them together.

Each holder counts its bytes here, for a principal or for nobody in particular. Above the total, one holder
after another gives up until the rest fits. Holders of the principal with the most bytes go first, and no
principal may have more than three quarters. The budget's owner decides which of a principal's holders goes
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cellgate_kernels.base.resources import MIB

MOST_HELD = 256 * MIB


class Holder(Protocol):
    """Something that holds bytes."""

    def give_up(self) -> None:
        """Drop the held bytes, and remember that they are missing. Called at most once for the same bytes."""


Sizes = Mapping[Holder, int]
"""The holders and their bytes, in the order in which they began to hold some."""


def oldest(sizes: Sizes) -> Holder:
    """Return the longest holder: one that never finishes is the first to go."""
    return next(iter(sizes))


def largest(sizes: Sizes) -> Holder:
    """Return the holder with the most bytes; of several, the oldest."""
    return max(sizes, key=sizes.__getitem__)


class ByteBudget:
    """Use it on the loop's thread. `first` chooses which of a principal's holders gives up first.

    `held`: the bytes of all holders. `given_up`: the number of holders that have had to give up.
    """

    def __init__(self, total: int, first: Callable[[Sizes], Holder]) -> None:
        self.total = total
        self.held = 0
        self.given_up = 0
        self._first = first
        self._sizes: dict[Holder, int] = {}
        self._whose: dict[Holder, str] = {}
        self._sums: dict[str, int] = {}

    @property
    def most_of_one(self) -> int:
        """The most bytes that one principal may have."""
        return self.total * 3 // 4

    def held_by(self, whose: str) -> int:
        """Return the bytes of a principal's holders."""
        return self._sums.get(whose, 0)

    def hold(self, holder: Holder, size: int, whose: str = "") -> None:
        """Set `holder`'s bytes to `size` in all. Holders, even this one, give up while that is too much.

        `whose`: the principal that it counts for; by default nobody, without a limit of its own.
        """
        if holder in self._sizes:
            self._count(self._whose[holder], -self._sizes[holder])
        self._sizes[holder] = size
        self._whose[holder] = whose
        self.held += size
        self._sums[whose] = self._sums.get(whose, 0) + size
        # Nobody has too much as long as all together have little.
        if 4 * self.held <= 3 * self.total:
            return
        while whose and self.held_by(whose) > self.most_of_one:
            self._end_first(whose)
        while self.held > self.total:
            self._end_first(max(self._sums, key=self._sums.__getitem__))

    def _count(self, whose: str, size: int) -> None:
        self.held += size
        left = self._sums.get(whose, 0) + size
        if left:
            self._sums[whose] = left
        else:
            self._sums.pop(whose, None)

    def _end_first(self, whose: str) -> None:
        first = self._first(
            {holder: size for holder, size in self._sizes.items() if self._whose[holder] == whose and size}
        )
        self.release(first)
        self.given_up += 1
        first.give_up()

    def release(self, holder: Holder) -> None:
        """Set `holder`'s bytes to zero."""
        size = self._sizes.pop(holder, None)
        if size is not None:
            self._count(self._whose.pop(holder), -size)

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._sizes


class ReceiveBudget(ByteBudget):
    """The budget for kernel messages that the gateway holds and can't use yet; one for the whole gateway.

    A kernel may announce a large message and never complete it. Its first bytes must be kept meanwhile, so
    every decoder counts them here, as well as complete messages that wait to be read. The oldest of the
    largest principal is given up first, so a message that fits into one's part always arrives.
    """

    def __init__(self, total: int = MOST_HELD) -> None:
        super().__init__(total, oldest)

    def part(self, owner: Owner) -> PartOfBudget:
        """Return this budget for a kernel of this owner."""
        return PartOfBudget(self, owner)


class Owner:
    """The principal of a kernel; nobody while it runs no user's code."""

    def __init__(self) -> None:
        self.name = ""


class PartOfBudget:
    """A budget for one kernel's holders."""

    def __init__(self, budget: ByteBudget, owner: Owner) -> None:
        self._budget = budget
        self._owner = owner

    def hold(self, holder: Holder, size: int) -> None:
        """Hold bytes for the owner; see `ByteBudget.hold`."""
        self._budget.hold(holder, size, self._owner.name)

    def release(self, holder: Holder) -> None:
        """Release a holder's bytes; see `ByteBudget.release`."""
        self._budget.release(holder)
