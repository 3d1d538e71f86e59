"""Has the pages of memory that cells write to copied before a cell writes to them.

After a fork each page is copied when the kernel writes to it for the first time, which takes more than a
microsecond. A cell as small as ``1+1`` writes to two thousand pages, mostly counts of references, so after
each checkpoint a cell would take some milliseconds longer. These pages are nearly the same from cell to cell.
So this finds out which ones were written to between two forks, and has the system copy them after those that
follow, while nobody waits. What was copied in advance can't be told from what was written to, so now and then
nothing is copied, and they are found out anew: often at first, later seldom.

The system tells and copies by itself (pagemap of proc(5), MADV_POPULATE_WRITE of madvise(2), since Linux
5.14); where it does not, this does nothing. All of it runs in the thread that answers requests for forks.
"""

import ctypes
import os
import re

PAGE = os.sysconf("SC_PAGESIZE")
ENTRY = 8
"""Bytes of a page's entry in pagemap."""
EXCLUSIVE = re.compile(rb"\x81+")
"""The highest bytes of entries: there, in memory, of no file, and mapped by this process alone."""
MADV_POPULATE_WRITE = 23

MOST_LOOKED_AT = 512 * 1024 * 1024
"""Bytes of memory of which is found out what was written to, the smallest areas first."""
MOST_PAGES = 4096
"""More than these are not copied in advance: most of them are data that the next cell does not write to."""
FIRST, LONGEST = 2, 32
"""After so many forks the pages are found out anew, the first time and at last."""


class WrittenPages:
    """The pages that cells write to. Call `look` before each fork, `forked` and `copy` after it."""

    def __init__(self):
        # Each as its first address and the number of bytes.
        self.written = []
        # Forks until the pages are found out anew; 0: they were not copied after the last one.
        self.left = 0
        self.turns = FIRST
        self.was_forked = False

    def look(self):
        """Find out what was written to since the last fork, if nothing was copied in advance then."""
        if not self.was_forked or self.left:
            return
        try:
            found = list(exclusive(private_areas()))
        except OSError:
            found = []
        count = sum(size for _, size in found) // PAGE
        self.written = found if count <= MOST_PAGES else []
        self.left = self.turns
        self.turns = min(2 * self.turns, LONGEST)

    def forked(self):
        """Note a fork."""
        self.was_forked = True
        self.left = max(0, self.left - 1)

    def copy(self):
        """Copy the pages that cells write to, unless it is to be found out which ones they are."""
        if not self.left or not self.written:
            return
        try:
            areas = private_areas()
        except OSError:
            return
        library = ctypes.CDLL(None)
        for address, size in inside(self.written, areas):
            library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_POPULATE_WRITE)


def private_areas():
    """Return areas of memory that this process can write to and that belong to it alone, by their addresses.

    Each as its first address and the one after its end. Writing in advance to what is shared, as with a file,
    would be seen by others. Raises OSError.
    """
    areas = []
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - nothing more is imported
        for line in maps:
            place, mode, _ = line.split(None, 2)
            if mode.startswith(b"rw") and mode.endswith(b"p"):
                start, end = place.split(b"-")
                areas.append((int(start, 16), int(end, 16)))
    return areas


def exclusive(areas):
    """Yield the parts of these areas that no other process has too. Raises OSError."""
    looked_at = 0
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123
        for start, end in sorted(areas, key=length):
            looked_at += end - start
            if looked_at > MOST_LOOKED_AT:
                return
            pagemap.seek(start // PAGE * ENTRY)
            highest = pagemap.read((end - start) // PAGE * ENTRY)[ENTRY - 1 :: ENTRY]
            for found in EXCLUSIVE.finditer(highest):
                yield start + PAGE * found.start(), PAGE * (found.end() - found.start())


def length(area):
    """Return the bytes of an area."""
    return area[1] - area[0]


def inside(parts, areas):
    """Yield the parts that still lie in one of the areas, by their addresses."""
    waiting = iter(areas)
    start = end = 0
    for address, size in sorted(parts):
        while end < address + size:
            start, end = next(waiting, (1 << 64, 1 << 64))
        if start <= address:
            yield address, size
