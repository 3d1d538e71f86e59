"""Jupyter's own idea of a session: a document's path and the kernel that it uses.

In memory only: it is the front end's memory of what is open, gone with the kernel. The record and the
kernels are ``session``', which are something else. It knows kernels by their ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NotebookSession:
    """A document that is open with a kernel."""

    principal: str
    path: str
    name: str
    type: str
    kernel_id: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class NotebookSessions:
    """All of them. Bounded by the kernels: an entry goes when its kernel has gone, one kernel has few."""

    def __init__(self) -> None:
        self._entries: dict[str, NotebookSession] = {}

    def of(self, principal: str, kernel_ids: Collection[str]) -> list[NotebookSession]:
        """The principal's, whose kernels live; others of the principal are forgotten."""
        mine = [entry for entry in self._entries.values() if entry.principal == principal]
        for entry in mine:
            if entry.kernel_id not in kernel_ids:
                self.remove(entry)
        return [entry for entry in mine if entry.id in self._entries]

    def put(self, entry: NotebookSession) -> None:
        """Add it, or replace the one of its id."""
        self._entries[entry.id] = entry

    def remove(self, entry: NotebookSession) -> None:
        """Forget it."""
        self._entries.pop(entry.id, None)
