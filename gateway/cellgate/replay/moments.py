"""When cells ran, and whether a time that a cell printed is one of its run.

Pure. A time counts as the run's only if it lies between the beginning of the run and the end of the cell that
shows it. A time without a zone is taken as UTC, which kernels have, or as the zone of this machine, which
kernels without isolation have. ``normalise`` finds times in text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

SLACK = timedelta(seconds=1)
"""Two clocks: the kernel's time is printed, the gateway's is compared."""


@dataclass(frozen=True, slots=True)
class Window:
    """From the first cell's begin to the end of the cell in question; both aware."""

    begin: datetime
    end: datetime

    def holds(self, told: datetime, precision: timedelta) -> bool:
        """Whether the clock showed this within the run; `precision` is the worth of its last digit."""
        return any(
            self.begin - SLACK < each + precision and each <= self.end + SLACK for each in _instants(told)
        )

    def holds_time(self, told: time, precision: timedelta) -> bool:
        """The same of a time without a date."""
        days = {self.begin.date(), self.end.date()}
        return any(self.holds(datetime.combine(day, told), precision) for day in days)

    def holds_date(self, told: date) -> bool:
        """Whether the day is one of the run's."""
        return self.holds(datetime.combine(told, time()), timedelta(days=1))


def moment(told: object) -> datetime | None:
    """A time of RFC 3339, in UTC; None for what is none."""
    if not isinstance(told, str):
        return None
    try:
        found = datetime.fromisoformat(told)
        return None if found.tzinfo is None or not 1970 <= found.year < 9999 else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def window(begin: datetime | None, end: datetime | None) -> Window | None:
    """The window, if both its ends are known and in order."""
    return None if begin is None or end is None or end < begin else Window(begin, end)


def _instants(told: datetime) -> Iterator[datetime]:
    if not 1970 < told.year < 9999:
        return
    if told.tzinfo is not None:
        yield told
        return
    yield told.replace(tzinfo=UTC)
    yield told.astimezone()
