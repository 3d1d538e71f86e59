"""Entries of the installation's audit trail, as values: their types, and what they consist of.

``trail_writer`` makes those about acts and refusals; the store makes those about records, and keeps all of
them in one chain. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BEGUN = "record_begun"
PURGED = "record_purged"
DAMAGED = "record_damaged"
ACT = "act"
"""A change of users or tokens. `number` and `done_at`: the act's own, in the file of users and tokens."""
ACCESS = "access"
"""Somebody who may do so asked for another principal's sessions."""
REFUSED = "refused"
"""Requests that were refused for want of a token, a permission or an allowed Host or Origin."""
LOST = "entries_lost"
"""Entries that there was no room for."""
OF_NO_RECORD = frozenset({DAMAGED, ACT, ACCESS, REFUSED, LOST})
"""Types of entries that say nothing about whether there is a session's record."""


@dataclass(frozen=True, slots=True)
class TrailRow:
    """One entry. `body`: its JSON as it is hashed and stored."""

    seq: int
    type: str
    body: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry before it is in the trail. `fields`: what its body says besides number, type and time."""

    type: str
    fields: Mapping[str, Any] = field(default_factory=dict)
