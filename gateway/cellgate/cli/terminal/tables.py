"""Lists for people and for programs: a table on a terminal, the same lines unfolded in a pipe, or JSON.

rich is imported with the first table: what prints none starts quicker.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

_CONTROLS = re.compile(r"[\x7f-\x9f]")
"""Control characters that JSON lets stand, and that terminals obey."""

PIPE_WIDTH = 10_000
"""Columns of a line that goes to a program: nothing is folded there."""


def make_table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; the columns in `right` are for numbers."""
    from rich.table import Table  # noqa: PLC0415 - see above

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Write the table to stdout."""
    from rich.console import Console  # noqa: PLC0415 - see above

    console = Console(
        width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False
    )
    console.print(table)


def as_json(value: Any) -> str:
    """`value` as indented JSON."""
    return without_controls(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def json_line(value: Any) -> str:
    """`value` as JSON, with the end of its line."""
    return without_controls(msgspec.json.encode(value).decode()) + "\n"


def without_controls(text: str) -> str:
    """JSON as it is, but for control characters that a terminal would obey."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
