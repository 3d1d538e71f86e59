"""Sums of what cells used: what is asked of a store, the expressions that both kinds of SQL share, and the
rows as sums of the wire. Pure: the statements are each store's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cellgate.record.rows import FIGURES
from cellgate.wire.usage import KnownFigures, UsageSum
from cellgate_kernels.base.errors import InvalidInput

SUMS_AT_ONCE = 2
SUMS_WAITING = 32
SUMS_PATIENCE = 60.0
TOO_MANY = "Too many sums of usage are being made; try again later"
SUM_SECONDS = 20.0
"""The longest that one question may take: it reads a row a cell."""
TOO_LONG = f"Summing so many cells takes more than {SUM_SECONDS:g} s; ask for a shorter time"
PLACES = 6
"""Digits of a sum of seconds: microseconds, and no trace of the order in which floats were added."""


class SumBy(StrEnum):
    """What each sum is of."""

    PRINCIPAL = "principal"
    SESSION = "session"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class SumQuestion:
    """The cells that ended from `begin` on and before `end`, texts in the form of the record's times.

    `principal`: whose cells; None: everybody's. `prefix`: the beginning of their sessions' keys or, if
    `exact`, the whole key. `after`: the place of the last sum of the page before.
    """

    by: SumBy
    begin: str
    end: str
    principal: str | None = None
    prefix: str = ""
    exact: bool = False
    limit: int = 100
    after: str = ""


@dataclass(frozen=True, slots=True)
class PlacedSum:
    """A sum, and its place in the order of all: a name, a session's id or a day."""

    place: str
    sum: UsageSum


_TOTALS = {name: "max" if name == "memory_peak" else "sum" for name in FIGURES}
SUMMED = ", ".join(
    (
        "count(*)",
        f"count(*) - count(coalesce({', '.join(FIGURES)}))",
        *(f"{total}({name})" for name, total in _TOTALS.items()),
        *(f"count({name})" for name in FIGURES),
    )
)
"""What is selected of a group, after its three names: see `placed_sum`."""


def placed_sum(by: SumBy, values: tuple[Any, ...]) -> PlacedSum:
    """Return the sum of a group's columns: its place, principal and session, then `SUMMED`."""
    place, principal, session, cells, unknown, seconds = values[:6]
    names: dict[str, Any] = (
        {by.value: place} if by is not SumBy.SESSION else {"principal": principal, "session": session}
    )
    # PostgreSQL's sums of integers are decimal numbers.
    totals = (None if value is None else int(value) for value in values[6 : 5 + len(FIGURES)])
    summed: dict[str, Any] = dict(
        zip(FIGURES, (None if seconds is None else round(seconds, PLACES), *totals), strict=True)
    )
    known = KnownFigures(**dict(zip(FIGURES, values[5 + len(FIGURES) :], strict=True)))
    return PlacedSum(str(place), UsageSum(**names, **summed, cells=cells, unknown=unknown, known=known))


def too_long() -> InvalidInput:
    """Return the refusal of a question that takes too long."""
    return InvalidInput(TOO_LONG)
