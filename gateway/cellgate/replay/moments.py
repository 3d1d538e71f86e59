"""The times of cells' runs, and whether a time that a cell printed belongs to its run.

Pure. A time belongs to the run only if it is between the start of the run and the end of the cell that shows
it. A time without a zone is read as UTC, which kernels use, and as local time, which kernels without
isolation use. ``normalise`` finds times in text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

SLACK = timedelta(seconds=1)
"""Tolerance between two clocks: the time printed by the kernel is compared with the gateway's."""


@dataclass(frozen=True, slots=True)
class Window:
    """From the start of the first cell to the end of the cell in question; both are timezone-aware."""

    begin: datetime
    end: datetime

    def holds(self, told: datetime, precision: timedelta) -> bool:
        """Return whether the clock showed this time during the run. `precision`: its last digit's unit."""
        return any(
            self.begin - SLACK < each + precision and each <= self.end + SLACK for each in _instants(told)
        )

    def holds_time(self, told: time, precision: timedelta) -> bool:
        """Like `holds`, for a time without a date."""
        days = {self.begin.date(), self.end.date()}
        return any(self.holds(datetime.combine(day, told), precision) for day in days)

    def holds_date(self, told: date) -> bool:
        """Return whether the run took place on this day, at least in part."""
        return self.holds(datetime.combine(told, time()), timedelta(days=1))


def moment(told: object) -> datetime | None:
    """Return an RFC 3339 time in UTC; None for anything else."""
    if not isinstance(told, str):
        return None
    try:
        found = datetime.fromisoformat(told)
        if found.tzinfo is None or not 1970 <= found.year < 9999:
            return None
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def window(begin: datetime | None, end: datetime | None) -> Window | None:
    """Return the window, if both its ends are known and in order."""
    if begin is None or end is None or end < begin:
        return None
    return Window(begin, end)


def _instants(told: datetime) -> Iterator[datetime]:
    if not 1970 < told.year < 9999:
        return
    if told.tzinfo is not None:
        yield told
        return
    yield told.replace(tzinfo=UTC)
    yield told.astimezone()
