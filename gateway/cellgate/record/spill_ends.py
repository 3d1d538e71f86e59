"""The ends of spilled files: each is closed in a thread, then its bytes are gone from the ledger.

The system takes long to free a large file, a third of a second for a gigabyte: on the loop, everybody would
wait for it. It knows unnamed files and their spaces; ``spill`` and ``jobs`` are what ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cellgate.record.spill_ledger import Space, on_loop
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane, work_for


class SpillEnds:
    """Ends files in threads of `lane`. Call `finished` before the lane is closed."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._tasks = Supervisor()

    def end(self, close: Callable[[], object] | None, space: Space) -> None:
        """Call what closes the file, if there is one, and give its space back. From any thread."""
        if close is None:
            space.close()
        elif on_loop():
            space.leave(space.held)
            self._start(close, space, space.close)
        else:
            try:
                close()
            finally:
                space.close()

    def free(self, work: Callable[[], object], space: Space, count: int) -> None:
        """Call what frees so many bytes of what the space has. On the loop."""
        space.leave(count)
        self._start(work, space, partial(space.gone, count))

    def _start(self, work: Callable[[], object], space: Space, done: Callable[[], None]) -> None:
        self._tasks.start(self._run(work, space, done), "end of a spilled file")

    async def _run(self, work: Callable[[], object], space: Space, done: Callable[[], None]) -> None:
        # Those whose file it is wait for it, not those for whom it gave way.
        work_for(space.principal)
        try:
            await self.lane.run(work)
        finally:
            done()

    async def finished(self) -> None:
        """Return when all are gone."""
        await self._tasks.finished()
