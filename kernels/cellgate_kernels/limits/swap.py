"""The swap space of this machine, from the text of /proc/swaps (proc(5)). It turns none on or off.

Without any, a frozen kernel keeps its memory. ``cellgate.sessions.sleepers`` and ``cellgate doctor`` ask.
"""

from __future__ import annotations

from pathlib import Path

KIB = 1024
_FIELDS = 3


def size_of_swap(swaps: str) -> int:
    """Return the bytes of all swap space, given the text of /proc/swaps."""
    found = (line.split() for line in swaps.splitlines()[1:])
    return KIB * sum(int(words[2]) for words in found if len(words) >= _FIELDS and words[2].isdecimal())


def has_swap(root: Path = Path("/")) -> bool:
    """Return whether this machine has swap space now. `root`: the folder of the system's files. Blocks."""
    try:
        return size_of_swap((root / "proc/swaps").read_text(errors="replace")) > 0
    except OSError:
        return False
