"""What came of alternatives to a session's next cell, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UnsetType

from cellgate.cli.terminal.escaping import printed, printed_line
from cellgate.client.values import Alternative, Exploration


def alternative_lines(found: Exploration) -> Iterator[str]:
    """Yield each alternative's number, end and text, in the order given."""
    for number, each in enumerate(found.results, 1):
        if number > 1:
            yield ""
        yield f"[{number}] {printed_line(_end_of(each))}"
        if each.text:
            yield printed(each.text).rstrip("\n")


def _end_of(each: Alternative) -> str:
    if not isinstance(each.problem, UnsetType):
        return f"{each.branch}: {each.problem.detail}"
    if each.branch == "skipped":
        return "skipped: the exploration was over or stopped before"
    how = each.status if each.status in {"ok", "error"} or not each.cause else f"{each.status}, {each.cause}"
    where = "record" if each.branch == "ended" else each.branch
    return f"{how} ({where}: {each.session})"
