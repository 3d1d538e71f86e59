"""A part of a limit that somebody holds for a while, and gives back once. Pure."""

from __future__ import annotations

from collections.abc import Callable


class Reservation:
    """A part of a limit, held until `release`, which may be called more than once."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Give the part back."""
        give_back = self._give_back
        self._give_back = None
        if give_back is not None:
            give_back()
