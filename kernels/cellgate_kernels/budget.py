"""Bytes that many holders keep in memory, under one limit for all of them together.

Each holder counts its bytes here. Beyond the total, one holder after another gives up until the rest fits: no
holder waits for another. The budget's owner decides which goes first. This knows no sockets and no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cellgate_kernels.limits import MIB

MOST_HELD = 256 * MIB


class Holder(Protocol):
    """Something that holds bytes."""

    def give_up(self) -> None:
        """Drop what is held, and remember that it is missing. Called at most once for the same bytes."""


Sizes = Mapping[Holder, int]
"""The holders and their bytes, in the order in which they began to hold something."""


def oldest(sizes: Sizes) -> Holder:
    """The holder that has held something longest, so that one that never finishes is the first to go."""
    return next(iter(sizes))


def largest(sizes: Sizes) -> Holder:
    """The holder with the most bytes; of several, the oldest."""
    return max(sizes, key=sizes.__getitem__)


class ByteBudget:
    """Use it on the loop's thread. `first` chooses who gives up first.

    `held`: the bytes of all holders. `given_up`: how many holders have had to give up so far.
    """

    def __init__(self, total: int, first: Callable[[Sizes], Holder]) -> None:
        self.total = total
        self.held = 0
        self.given_up = 0
        self._first = first
        self._sizes: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """`holder` now holds `size` bytes in all. Holders, even this one, give up while that is too much."""
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
    """For kernel messages that the gateway holds and can't use yet; one for the whole gateway.

    A kernel may announce a large message and never complete it. The part that has arrived must be kept in the
    meantime, so every socket's decoder counts it here, and so do complete messages that wait to be read. The
    oldest is given up first, so a message no longer than the total can always be received.
    """

    def __init__(self, total: int = MOST_HELD) -> None:
        super().__init__(total, oldest)
