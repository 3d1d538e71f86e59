"""How many cells of a replay were compared and, if none was, why: for its page and its command. Pure.

It goes by the cells, not by the report's verdict: that of an older gateway is ``equal`` where none was.
"""

from __future__ import annotations

from typing import Final

from cellgate.wire.answers import NotebookReport, ReplayReport

Report = ReplayReport | NotebookReport

_MOST_NAMED: Final = 5
"""Cells that are named with a reason, and reasons that are named."""


def compared(report: Report) -> int:
    """Return how many cells were compared, without a branch's inherited ones."""
    return report.same + report.different + report.unjudged


def why_none(report: Report) -> str:
    """Return a sentence that no cell was compared, with the reasons."""
    own = [cell for cell in report.cells if not cell.inherited]
    if not own:
        of_others = "all are of the session that its own was branched from"
        return f"No cell was compared: {of_others if report.cells else 'there are none'}."
    numbers: dict[str, list[int]] = {}
    for cell in own:
        numbers.setdefault((cell.reason or "It was skipped.").removesuffix("."), []).append(cell.cell)
    told = [f"{reason} ({_named(those)})" for reason, those in list(numbers.items())[:_MOST_NAMED]]
    return f"No cell was compared. {'. '.join(told)}."


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_NAMED])) + (", ..." if len(numbers) > _MOST_NAMED else "")
    return f"cell {shown}" if len(numbers) == 1 else f"cells {shown}"
