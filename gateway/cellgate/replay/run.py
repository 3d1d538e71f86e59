"""Runs a notebook's cells again, on behalf of the gateway itself or of a client.

It runs cells through the runner that it is given, and compares nothing; ``report`` does that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from cellgate.errors import EnvironmentDiffers
from cellgate.replay.cells import RecordedCell
from cellgate.replay.environment import Agreement, EnvironmentCheck
from cellgate.replay.report import NewRun

Runner = Callable[[RecordedCell], Awaitable[NewRun]]
Listener = Callable[[RecordedCell, NewRun | None], Awaitable[None]]


def refuse_other_environment(check: EnvironmentCheck, *, anyway: bool, why: str | None = None) -> None:
    """Raise EnvironmentDiffers when the locks differ, unless `anyway` is set.

    `why`: the reason the recorded packages could not be installed, if so.
    """
    if check.agreement is Agreement.DIFFERENT and not anyway:
        reason = f" Its packages could not be installed: {why}." if why else ""
        raise EnvironmentDiffers(
            f"The kernel's environment is not the recorded one: {check.summary()}.{reason}"
            " Restore it, or replay anyway (anyway: true, --anyway)"
        )


async def run_cells(cells: Iterable[RecordedCell], run: Runner, listen: Listener) -> None:
    """Run all cells that had run, in order, even after one fails; `listen` gets None for the others.

    What a cell that is not run would have been seeded with is the next one's.
    """
    seeds: tuple[int, ...] = ()
    for cell in cells:
        seeds += cell.seeds
        if cell.skip is None:
            await listen(cell, await run(replace(cell, seeds=seeds)))
            seeds = ()
        else:
            await listen(cell, None)
