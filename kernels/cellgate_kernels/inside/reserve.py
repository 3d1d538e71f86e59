"""Memory that is put aside for the moment when a cell has taken all that there is.

Where a limit makes allocations fail (RLIMIT_DATA, in a sandbox), a cell that fills a list to the brim gets a
MemoryError, and what says so needs memory too: IPython for the traceback, the streams for what the cell had
printed before. It knows nothing of either: who needs memory calls `Reserve.free`, or goes `through` it.
Where a kernel is killed for its memory instead (a cgroup's limit), it is of no use, and costs nothing.
"""

import mmap
from contextlib import suppress

SIZE = 8 * 1024 * 1024


class Reserve:
    """Pages that count as taken, and that nobody has touched."""

    def __init__(self):
        self.pages = None

    def hold(self, *_):
        """Take them, if they are there to be had."""
        if self.pages is None:
            with suppress(OSError, MemoryError):
                self.pages = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def free(self):
        """Give them back; return whether there were any."""
        pages, self.pages = self.pages, None
        if pages is not None:
            pages.close()
        return pages is not None

    def through(self, call, *arguments):
        """Return the call's result; without memory for it the call is repeated with these pages."""
        try:
            return call(*arguments)
        except MemoryError:
            if not self.free():
                raise
        return call(*arguments)
