"""What a cell used, as its end and its result say it, and what many cells used together.

``execution.cell_record`` measures it, and the record's stores sum it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, UnsetType, field

from cellgate.wire.base import Value, say


class CellUsage(Value, frozen=True, kw_only=True):
    """What all processes of the session used from the cell's start to its end; null where nobody knows.

    A program that an earlier cell started counts, too. The gateway reads this from the system, so no code of
    the session can change it; where it can't know everything, the session used at least that much.
    """

    cpu_seconds: Annotated[float | None, say("Processor time in seconds.")] = None
    memory_peak: Annotated[
        int | None, say("The most bytes of memory known to be in use at once, with cached files.")
    ] = None
    disk_written: Annotated[int | None, say("Bytes written to file systems on disks.")] = None
    network_sent: Annotated[int | None, say("Bytes sent to hosts.")] = None
    network_received: Annotated[int | None, say("Bytes received from hosts.")] = None


Usage = Annotated[
    CellUsage,
    say("What the session's processes used while it ran; absent if nothing is known, as without a kernel."),
]


class KnownFigures(Value, frozen=True, kw_only=True):
    """How many of the cells of a sum each figure is known of."""

    cpu_seconds: int = 0
    memory_peak: int = 0
    disk_written: int = 0
    network_sent: int = 0
    network_received: int = 0


class UsageSum(Value, frozen=True, kw_only=True):
    """What cells used together, of those where that is known; null where it is known of none."""

    principal: Annotated[str | UnsetType, say("Whose cells these are; absent if the sums are by day.")] = (
        UNSET
    )
    session: Annotated[
        str | UnsetType, say("The key of the cells' session; absent unless the sums are by session.")
    ] = UNSET
    day: Annotated[
        str | UnsetType, say("The day in UTC on which the cells ended; absent unless the sums are by day.")
    ] = UNSET
    cells: Annotated[int, say("How many cells ended.")] = 0
    unknown: Annotated[int, say("How many of the cells nothing is known of.")] = 0
    cpu_seconds: Annotated[float | None, say("The sum of their processor time, in seconds.")] = None
    memory_peak: Annotated[int | None, say("The largest of their peaks of memory, in bytes.")] = None
    disk_written: Annotated[int | None, say("The sum of what they wrote to disks, in bytes.")] = None
    network_sent: Annotated[int | None, say("The sum of what they sent to hosts, in bytes.")] = None
    network_received: Annotated[int | None, say("The sum of what they received, in bytes.")] = None
    known: Annotated[KnownFigures, say("How many of the cells each figure is known of.")] = KnownFigures()


class UsageSums(Value, frozen=True, kw_only=True):
    """A page of sums over a time, in order of what they are by; `next` is null on the last."""

    begin: Annotated[str, say("The time from which on cells count that ended, RFC 3339 in UTC.")] = field(
        name="from", default=""
    )
    end: Annotated[str, say("The time before which they must have ended, RFC 3339 in UTC.")] = field(
        name="to", default=""
    )
    by: Annotated[str, say("What each sum is of: `principal`, `session` or `day`.")] = ""
    sums: list[UsageSum] = []
    next: Annotated[str | None, say("The page after this one begins `after` this; null on the last.")] = None
