"""Displays that later cells of a replay change, as they do in a notebook.

Pure. A notebook shows in each place what was last shown there, and an output of nbformat does not say which
place it is. So each new run tells the names of its places, and what it last showed in those of earlier cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cellgate_kernels.protocol.outputs import OutputArea


class NewDisplay(msgspec.Struct, frozen=True):
    """What a place shows: its forms by MIME type, and their metadata."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


class Displays:
    """The places that the cells of one replay have shown something in so far."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def end_cell(self, area: OutputArea) -> tuple[list[str | None], dict[str, NewDisplay]]:
        """Return names of the places of a cell's outputs, and what it last showed in earlier cells' places.

        An output in no place that has a name has None.
        """
        names = area.display_ids()
        last = area.last_shown()
        changes = {name: NewDisplay(*last[name]) for name in sorted(self._known & last.keys())}
        self._known.update(name for name in names if name is not None)
        return names, changes


def settled(
    outputs: Sequence[dict[str, Any]], places: Sequence[str | None], later: Mapping[str, NewDisplay]
) -> list[dict[str, Any]]:
    """Return the outputs of a cell after others have changed its places. `later`: what these show in the end.

    `places`: the names of the outputs' places; there may be outputs behind them.
    """
    found = [later.get(name) if name is not None else None for name in places]
    changed = [
        output if display is None or "data" not in output else {**output, **msgspec.structs.asdict(display)}
        for output, display in zip(outputs, found, strict=False)
    ]
    return [*changed, *outputs[len(changed) :]]
