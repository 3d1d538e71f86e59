"""Jupyter's own notion of a session: a document's path and the kernel that it uses.

In memory only: front ends use it to remember what is open, and an entry goes when its kernel does. These are
not the sessions of ``session``, which have a record and a kernel; here kernels are known by id only.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NotebookSession:
    """A document opened with a kernel."""

    principal: str
    path: str
    name: str
    type: str
    kernel_id: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class NotebookSessions:
    """All open documents. The number of kernels limits them: entries go with their kernel, which has few."""

    def __init__(self) -> None:
        self._entries: dict[str, NotebookSession] = {}

    def of(self, principal: str, kernel_ids: Collection[str]) -> list[NotebookSession]:
        """The principal's entries whose kernels are alive; the principal's other entries are removed."""
        mine = [entry for entry in self._entries.values() if entry.principal == principal]
        for entry in mine:
            if entry.kernel_id not in kernel_ids:
                self.remove(entry)
        return [entry for entry in mine if entry.id in self._entries]

    def put(self, entry: NotebookSession) -> None:
        """Add an entry, or replace the one with the same id."""
        self._entries[entry.id] = entry

    def remove(self, entry: NotebookSession) -> None:
        """Remove an entry, if it is there."""
        self._entries.pop(entry.id, None)
