"""Terminals of a sandbox's programs: a program of Python that gives another one a terminal. Pure.

Programs beside a kernel have pipes. Here one of them is ``pty.spawn``, which passes bytes on between its
pipes and the terminal; the program in the terminal ends with it, by SIGHUP. A terminal gets another size by
a further program, which finds the terminal as the input of the first one's child.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from cellgate.doors.base import Asked

_SPAWN: Final = (
    "import os, pty, sys; code = os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:]));"
    " sys.exit(code if code >= 0 else 128 - code)"
)
_BEGIN: Final = 'stty rows "$1" cols "$2"; shift 2; exec "$@"'
# A terminal that is just made gets its first size from the program's own words, which come to an end first.
_RESIZE: Final = """
import fcntl, os, struct, sys, termios, time
begin = sys.argv.pop().encode()
pid, rows, cols = map(int, sys.argv[1:])
late = time.monotonic() + 5
while time.monotonic() < late:
    for other in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{other}/stat") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
            if parent != pid:
                continue
            with open(f"/proc/{other}/cmdline", "rb") as file:
                words = file.read()
            # There are none while a program is being replaced by another.
            if not words or begin in words:
                continue
            terminal = os.open(f"/proc/{other}/fd/0", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            continue
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        sys.exit()
    time.sleep(0.01)
sys.exit("no program is in the terminal")
"""
Length = Annotated[int, Meta(ge=1, le=10_000)]


class TerminalSize(Asked, frozen=True):
    """How many letters a terminal shows."""

    rows: Length = 24
    cols: Length = 80


class TerminalBody(Asked, frozen=True):
    """The terminal that a program is to have."""

    size: TerminalSize = TerminalSize()


def is_in_terminal(argv: Sequence[str]) -> bool:
    """Return whether these words are of a program that `in_terminal` gave a terminal."""
    return list(argv[:3]) == ["python3", "-c", _SPAWN]


def resizing(pid: int, size: tuple[int, int]) -> tuple[str, ...]:
    """Return the words that give so many rows and columns to the terminal of the program with this id."""
    rows, cols = size
    return ("python3", "-c", _RESIZE, str(pid), str(rows), str(cols), _BEGIN)


def in_terminal(argv: Sequence[str], terminal: TerminalBody) -> list[str]:
    """Return the words that start a program in a terminal of this size."""
    size = terminal.size
    return ["python3", "-c", _SPAWN, "sh", "-c", _BEGIN, "sh", str(size.rows), str(size.cols), *argv]
