"""Entries of the installation's audit trail, as values: their types and fields.

``trail_writer`` makes entries about acts and refusals; the store makes entries about records, and keeps all
of them in one chain. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BEGUN = "record_begun"
PURGED = "record_purged"
DAMAGED = "record_damaged"
ACT = "act"
"""A change of users or tokens. `number` and `done_at` are the act's in the file of users and tokens."""
ACCESS = "access"
"""An authorised access to another principal's sessions."""
REFUSED = "refused"
"""Requests that were refused because a token, a permission or an allowed Host or Origin was missing."""
LOST = "entries_lost"
"""Entries for which there was no room."""
OF_NO_RECORD = frozenset({DAMAGED, ACT, ACCESS, REFUSED, LOST})
"""Types of entries that are not about the existence of a session's record."""


@dataclass(frozen=True, slots=True)
class TrailRow:
    """One entry. `body`: its JSON as it is hashed and stored."""

    seq: int
    type: str
    body: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry before it is in the trail. `fields`: its body without number, type and time."""

    type: str
    fields: Mapping[str, Any] = field(default_factory=dict)
