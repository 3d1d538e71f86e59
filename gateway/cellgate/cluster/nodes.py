"""The nodes of a cluster as its database shows them. Only values: ``membership`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from cellgate.errors import StorageError


class NodeState(StrEnum):
    """The state of a node. LATE: its last beat is older than half of a lease, DOWN: than a lease."""

    UP = "up"
    DRAINING = "draining"
    LATE = "late"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Load:
    """The kernels of a node. `capacity`: the most that it may have; `used`: by sessions, with those that wait
    for one; `warm`: for none.
    """

    capacity: int = 0
    used: int = 0
    warm: int = 0

    @property
    def is_full(self) -> bool:
        """Whether one more session would wait for a kernel of another one."""
        return self.used >= self.capacity


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its last beat showed it. `takeovers`: from other nodes, since its start."""

    id: str
    url: str
    state: NodeState
    load: Load
    takeovers: int
    beat_at: datetime

    @property
    def lives(self) -> bool:
        """Whether it serves, as far as is known."""
        return self.state is not NodeState.DOWN


def check_node(told: str) -> str:
    """Return the id of a node as the table ``owners`` has it: it names a gateway's folder on a shared disk.

    Raises StorageError if no gateway makes such an id.
    """
    if not (told.isascii() and told.isalnum()):
        raise StorageError(
            f"The cluster's database has {told[:40]!r} as the node of a session, which is no gateway's id:"
            " correct it in the table `owners`"
        )
    return told


def node_of(row: Sequence[Any], age: float) -> Node:
    """Return the node of a row of ``statements.LIST``, whose last beat is `age` seconds old."""
    name, url, known, capacity, used, warm, takeovers, lease, beat_at = row[:9]
    state = NodeState(known)
    if age > lease:
        state = NodeState.DOWN
    elif age > lease / 2 and state is NodeState.UP:
        state = NodeState.LATE
    return Node(name, url, state, Load(capacity, used, warm), takeovers, beat_at)
