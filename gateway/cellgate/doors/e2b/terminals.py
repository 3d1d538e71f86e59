"""Terminals of a sandbox's programs: a program of Python that gives another one a terminal. Pure.

Programs beside a kernel have pipes. Here one of them is ``pty.spawn``, which passes bytes on between its
pipes and the terminal; the program in the terminal ends with it, by SIGHUP.
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
Length = Annotated[int, Meta(ge=1, le=10_000)]


class TerminalSize(Asked, frozen=True):
    """How many letters a terminal shows."""

    rows: Length = 24
    cols: Length = 80


class TerminalBody(Asked, frozen=True):
    """The terminal that a program is to have."""

    size: TerminalSize = TerminalSize()


def in_terminal(argv: Sequence[str], terminal: TerminalBody) -> list[str]:
    """Return the words that start a program in a terminal of this size."""
    size = terminal.size
    return ["python3", "-c", _SPAWN, "sh", "-c", _BEGIN, "sh", str(size.rows), str(size.cols), *argv]
