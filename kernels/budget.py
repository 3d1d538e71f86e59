"""The bytes of kernels' messages that the gateway holds and can't use yet, counted for all kernels together.

A kernel may announce a great message and never end it. What came of it has to be kept meanwhile, so every
decoder of a socket counts it here, and so does whoever keeps whole messages that wait to be read. Beyond the
total the oldest of these is given up, until the rest fits. So whoever never ends is the first to lose, nobody
waits for anybody, and one message that is no longer than the total can always come in.
It knows no sockets and no messages.
"""

from __future__ import annotations

from typing import Protocol

from kernels.limits import MIB

MOST_HELD = 256 * MIB


class Holder(Protocol):
    """Whoever holds bytes."""

    def give_up(self) -> None:
        """Drop what is held, and remember that it is missing. Called at most once for what is held."""


class ReceiveBudget:
    """One for the whole gateway. Use it on the loop's thread.

    `held`: the bytes of all holders. `given_up`: how many holders had to give up so far.
    """

    def __init__(self, total: int = MOST_HELD) -> None:
        self.total = total
        self.held = 0
        self.given_up = 0
        # In the order in which they began to hold something: the first is the oldest.
        self._sizes: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """`holder` holds `size` bytes now, in all. The oldest holders give up while that is too much."""
        self.held += size - self._sizes.get(holder, 0)
        self._sizes[holder] = size
        while self.held > self.total:
            oldest = next(iter(self._sizes))
            self.release(oldest)
            self.given_up += 1
            oldest.give_up()

    def release(self, holder: Holder) -> None:
        """`holder` holds nothing any more."""
        self.held -= self._sizes.pop(holder, 0)

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._sizes
