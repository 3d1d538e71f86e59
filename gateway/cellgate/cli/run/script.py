"""What makes a run of a Python script like one of ``python script.py``: its arguments, its exit code. Pure.

The kernel's own ``sys.argv`` is that of ipykernel, and a cell that leaves with ``sys.exit(0)`` has failed for
a notebook. ``run`` sends what this says, and takes the end of a cell for what it says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from cellgate.client import ErrorInfo

_NUMBER = re.compile(r"-?[0-9]{1,20}")
_ASKS = re.compile(r"\b(?:__file__|argv|argparse|optparse|getopt|click|typer|fire|docopt|absl|exit|quit)\b")
_FAREWELL = "To exit: use 'exit', 'quit'"
"""How IPython's warning after ``sys.exit()`` begins: it is about a prompt."""
_BY_WORD = {"": 0, "None": 0, "False": 0, "True": 1}


def asks(code: str) -> bool:
    """Return whether a script's code may look at its arguments or its own path, or leave with an exit code.

    Only then is it prepared: the preparation is in the record, and in the notebook of a session that stays.
    """
    return _ASKS.search(code) is not None


def preparing(name: str, arguments: Sequence[str], *, fresh: bool) -> str:
    """Code for the kernel that makes `arguments` those of the script `name`, and `__file__` its path there.

    The script's place in the session is where the files beside it are: the working folder.
    In a `fresh` session, which ends with the script, ``exit()`` is as in a script too: IPython's ends the
    kernel.
    """
    lines = [
        f"__import__('sys').argv[:] = {[name, *arguments]!r}",
        f"__file__ = __import__('os').path.abspath({PurePath(name).name!r})",
        f"__import__('warnings').filterwarnings('ignore', message={_FAREWELL!r})",
    ]
    if fresh:
        lines.append("exit = quit = __import__('sys').exit")
    return "\n".join(lines)


def exit_code(error: ErrorInfo | None) -> int | None:
    """Return the exit code that Python would give for this error of a script; None if it asks for none."""
    if error is None or error.ename != "SystemExit":
        return None
    if error.evalue in _BY_WORD:
        return _BY_WORD[error.evalue]
    return int(error.evalue) & 0xFF if _NUMBER.fullmatch(error.evalue) else 1


def farewell(error: ErrorInfo) -> str:
    """Return the text that the script gave to `sys.exit`; empty if it gave none."""
    known = error.evalue in _BY_WORD or _NUMBER.fullmatch(error.evalue)
    return "" if known else error.evalue


def wants_a_person(error: ErrorInfo | None) -> str | None:
    """Return a hint for a cell that ended because its debugger got no commands; None for others."""
    if error is None or error.ename != "BdbQuit":
        return None
    return (
        "breakpoint() starts a debugger, which needs a person who types: run this code at the prompt of "
        "cellgate console, or in a notebook"
    )
