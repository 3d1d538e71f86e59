"""The memory that is held for one client, under the budget of all clients. Pure.

``listener.streams`` counts its reads and writes here, and closes the connection on the budget's order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cellgate_kernels.base.budget import ByteBudget


class HeldMemory:
    """A body or a message until it is answered, writes not yet sent, and bytes that callers declare.

    `whose`: the owner of these bytes. `end`: called at most once, on the budget's order to give all up.
    """

    def __init__(self, budget: ByteBudget, whose: str, end: Callable[[], None]) -> None:
        self.whose = whose
        self._budget = budget
        # None once nothing is counted any more.
        self._end: Callable[[], None] | None = end
        self._incoming = self._owed = 0
        # Writes that the system has not fully taken: the end and the size of each, which is freed as a whole.
        self._unsent: deque[tuple[int, int]] = deque()
        self._unsent_bytes = self._written = self._flushed = 0

    @property
    def is_unread(self) -> bool:
        """Whether most bytes are writes that the client has not received."""
        return self._incoming <= self._unsent_bytes + self._owed

    def hold(self, count: int) -> None:
        """Count bytes of a body or a message as kept in memory."""
        self._incoming += count
        self._count()

    def release(self) -> None:
        """Stop counting bodies and messages."""
        if self._incoming:
            self._incoming = 0
            self._count()

    @contextmanager
    def owing(self, count: int) -> Iterator[None]:
        """Count `count` bytes of an answer that the caller keeps until the client has received them."""
        self._owed += count
        self._count()
        try:
            yield
        finally:
            self._owed -= count
            self._count()

    def wrote(self, size: int) -> None:
        """Count a write that the system did not accept whole; `took` was called for the accepted part."""
        self._written += size
        if self._flushed < self._written:
            self._unsent.append((self._written, size))
            self._unsent_bytes += size
            self._count()

    def took(self, count: int) -> None:
        """Note that the system has accepted so many of the written bytes."""
        self._flushed += count
        if self._unsent and self._unsent[0][0] <= self._flushed:
            while self._unsent and self._unsent[0][0] <= self._flushed:
                _, size = self._unsent.popleft()
                self._unsent_bytes -= size
            self._count()

    def close(self) -> None:
        """Stop counting all bytes."""
        self._end = None
        self._count()

    def give_up(self) -> None:
        """Stop counting all bytes, and pass the budget's order on."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def _count(self) -> None:
        held = 0 if self._end is None else self._incoming + self._unsent_bytes + self._owed
        if held:
            self._budget.hold(self, held, self.whose)
        else:
            self._budget.release(self)
