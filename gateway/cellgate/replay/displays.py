"""Displays that later cells of a replay change, as they do in a notebook.

Pure. A notebook shows in each place the last value shown there, but an output of nbformat does not name its
place. So each new run reports the names of its places, and its last values in the places of earlier cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from cellgate_kernels.protocol.outputs import OutputArea


class NewDisplay(msgspec.Struct, frozen=True):
    """The content of a place: its forms by MIME type, and their metadata."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


class Displays:
    """The places in which the cells of one replay have shown a value so far."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def end_cell(self, area: OutputArea) -> tuple[list[str | None], dict[str, NewDisplay]]:
        """Return the names of the places of a cell's outputs, and its last values in earlier cells' places.

        The name is None for an output in a place without a name.
        """
        names = area.display_ids()
        last = area.last_shown()
        changes = {name: NewDisplay(*last[name]) for name in sorted(self._known & last.keys())}
        self._known.update(name for name in names if name is not None)
        return names, changes


def settled(
    outputs: Sequence[dict[str, Any]], places: Sequence[str | None], later: Mapping[str, NewDisplay]
) -> list[dict[str, Any]]:
    """Return the outputs of a cell after later cells have changed its places to the values in `later`.

    `places`: the names of the outputs' places; further outputs may follow those.
    """
    found = [later.get(name) if name is not None else None for name in places]
    changed = [
        output if display is None or "data" not in output else {**output, **msgspec.structs.asdict(display)}
        for output, display in zip(outputs, found, strict=False)
    ]
    return [*changed, *outputs[len(changed) :]]
