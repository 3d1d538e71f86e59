"""Jupyter's own sessions: a document's path and the kernel that it uses.

In memory only: front ends use it to remember what is open, and an entry goes when its kernel does. These are
not the sessions of ``session``, which have a record and a kernel; here kernels are known by id only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotebookSession:
    """A document opened with a kernel."""

    principal: str
    path: str
    name: str
    type: str
    kernel_id: str
    id: str


MOST_OF_ONE = 200
"""Documents that one principal may have open; the oldest are forgotten first."""


class NotebookSessions:
    """All open documents, by principal. Entries go with their kernel, or when there are too many."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, NotebookSession]] = {}

    def of(self, principal: str, kernel_ids: Collection[str]) -> list[NotebookSession]:
        """Return a principal's entries with live kernels, and remove the principal's other entries."""
        known = self._entries.get(principal, {})
        for entry in tuple(known.values()):
            if entry.kernel_id not in kernel_ids:
                self.remove(entry)
        return list(known.values())

    def put(self, entry: NotebookSession) -> None:
        """Add an entry, or replace the one with the same id."""
        mine = self._entries.setdefault(entry.principal, {})
        mine[entry.id] = entry
        if len(mine) > MOST_OF_ONE:
            del mine[next(iter(mine))]

    def remove(self, entry: NotebookSession) -> None:
        """Remove an entry, if it is there."""
        mine = self._entries.get(entry.principal, {})
        mine.pop(entry.id, None)
        if not mine:
            self._entries.pop(entry.principal, None)
