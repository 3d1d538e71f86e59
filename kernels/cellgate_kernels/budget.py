"""Bytes that many hold in memory, under one bound for all of them together.

Who holds some counts them here. Beyond the total one holder after the other is given up until the rest fits:
nobody waits for anybody. Which of them is given up first is the owner's rule. It knows no sockets and no
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cellgate_kernels.limits import MIB

MOST_HELD = 256 * MIB


class Holder(Protocol):
    """Whoever holds bytes."""

    def give_up(self) -> None:
        """Drop what is held, and remember that it is missing. Called at most once for what is held."""


Sizes = Mapping[Holder, int]
"""The holders and their bytes, in the order in which they began to hold something."""


def oldest(sizes: Sizes) -> Holder:
    """Who has held something for longest: whoever never ends is the first to lose."""
    return next(iter(sizes))


def largest(sizes: Sizes) -> Holder:
    """Who holds most, and of several the oldest."""
    return max(sizes, key=sizes.__getitem__)


class ByteBudget:
    """Use it on the loop's thread. `first`: who gives up first.

    `held`: the bytes of all holders. `given_up`: how many holders had to give up so far.
    """

    def __init__(self, total: int, first: Callable[[Sizes], Holder]) -> None:
        self.total = total
        self.held = 0
        self.given_up = 0
        self._first = first
        self._sizes: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """`holder` holds `size` bytes now, in all. Others, or itself, give up while that is too much."""
        self.held += size - self._sizes.get(holder, 0)
        self._sizes[holder] = size
        while self.held > self.total:
            first = self._first(self._sizes)
            self.release(first)
            self.given_up += 1
            first.give_up()

    def release(self, holder: Holder) -> None:
        """`holder` holds nothing any more."""
        self.held -= self._sizes.pop(holder, 0)

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._sizes


class ReceiveBudget(ByteBudget):
    """Of kernels' messages that the gateway holds and can't use yet; one for the whole gateway.

    A kernel may announce a great message and never end it. What came of it has to be kept meanwhile, so every
    decoder of a socket counts it here, and so does whoever keeps whole messages that wait to be read. The
    oldest is given up first, and one message that is no longer than the total can always come in.
    """

    def __init__(self, total: int = MOST_HELD) -> None:
        super().__init__(total, oldest)
