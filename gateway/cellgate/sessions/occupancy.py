"""What occupies a session at a moment, and what may not be done with it as long: one table for all of it.

It knows how to ask and no more: ``session`` says how each occupant is seen. What is done about a refusal,
such as a line in the queue or an error, is up to who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType

Occupant = Enum(
    "Occupant",
    "CELL BESIDE QUEUED RESTART REPLACING HELD EXPLORED DUE CHECKPOINTS"
    " PACKAGES PROGRAMS PORTS CLIENTS ENDING",
)
"""What can occupy a session; several may at once.

`QUEUED`: anything waits in the queue, a `RESTART` included, or has ended there and is not recorded yet.
`HELD`: a branch, a checkpoint or an exploration is being made of it, or its kernel is asked something. `DUE`:
the checkpoint after its last cell is not made yet. `CHECKPOINTS`: automatic ones that live.
"""

Act = Enum("Act", "SEND BESIDE TAKE KEEP HOLD IDLE REVIVE")
"""What somebody wants to do with a session.

`SEND` a new cell at once; run one `BESIDE` others; `TAKE` the next cell from the queue; `KEEP` a checkpoint
after one; `HOLD` it for a branch, a checkpoint or a question; let its idle time `IDLE` away; `REVIVE` its
kernel without a cell.
"""

_O = Occupant
FORBIDDING: Mapping[Act, tuple[Occupant, ...]] = MappingProxyType(
    {
        Act.SEND: (_O.REPLACING, _O.CELL, _O.BESIDE, _O.QUEUED, _O.RESTART, _O.HELD, _O.DUE, _O.ENDING),
        Act.BESIDE: (_O.HELD, _O.ENDING),
        Act.TAKE: (_O.HELD, _O.ENDING),
        Act.KEEP: (_O.CELL, _O.HELD, _O.ENDING),
        # It waits for another hold.
        Act.HOLD: (
            *(_O.ENDING, _O.EXPLORED, _O.CELL, _O.BESIDE, _O.QUEUED, _O.RESTART, _O.REPLACING, _O.PACKAGES),
        ),
        # The time runs while a kernel is replaced for a client that has gone.
        Act.IDLE: (
            *(_O.CELL, _O.BESIDE, _O.QUEUED, _O.RESTART, _O.PACKAGES, _O.CLIENTS, _O.PROGRAMS, _O.PORTS),
            _O.HELD,
        ),
        # What was lost can be gone back to while there are checkpoints: a new kernel would end them.
        Act.REVIVE: (_O.REPLACING, _O.CELL, _O.RESTART, _O.ENDING, _O.CHECKPOINTS),
    }
)
"""The occupants that forbid each act; of several, the first is the reason."""


class Occupancy:
    """The occupants of one session. `seen`: whether each of them is there now."""

    def __init__(self, seen: Mapping[Occupant, Callable[[], object]]) -> None:
        self._seen = seen
        self._against = {act: [(each, seen[each]) for each in FORBIDDING[act]] for act in Act}

    def forbids(self, act: Act) -> Occupant | None:
        """Return what forbids this now, or None. A quick cell asks, so no more is looked at than needed."""
        for occupant, is_there in self._against[act]:
            if is_there():
                return occupant
        return None

    def has(self, occupant: Occupant) -> bool:
        """Return whether this one is there."""
        return bool(self._seen[occupant]())
