"""What a cell used, as its end and its result say it. ``execution.cell_record`` measures it."""

from __future__ import annotations

from typing import Annotated

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
