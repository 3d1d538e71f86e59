"""A progress bar for slow operations: a large file being transferred, or an export being made.

It gets numbers of bytes from the client and knows neither the gateway nor what is transferred.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from cellgate.cli.base import UsageError, expanded
from cellgate.cli.terminal.escaping import printed_line
from cellgate.client.calls import Progress as Teller
from cellgate.client.calls import ignore_progress

LARGE = 8 * 1024 * 1024


def target_of(name: str) -> Path:
    """Return the path of the file to write. Raises UsageError for ``-``, which often means stdout."""
    if name == "-":
        raise UsageError("- is no name of a file, and nothing goes to stdout: name one, such as ./-")
    return expanded(name)


@contextmanager
def transfer(name: str, making: str | None = None) -> Iterator[Teller]:
    """Show a bar for a large transfer, if there is a terminal to draw it on.

    `making`: what the gateway does before the first byte; if given, the bar is shown from the start.
    """
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield ignore_progress
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(making or printed_line(name), visible=making is not None, total=None)

        def tell(done: int, total: int | None) -> None:
            shown = making is not None or max(done, total or 0) >= LARGE
            bar.update(task, description=printed_line(name), completed=done, total=total, visible=shown)

        yield tell
