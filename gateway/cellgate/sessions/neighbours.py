"""Maps kernels to sessions, for sessions whose kernels share a sandbox or a workspace folder.

A kernel knows the ids of the others in its sandbox; this module knows the sessions of these kernels, and of
each folder. The socket of a way to a network belongs to the sandbox, so one session's proxy serves all of its
kernels. When that session leaves, another one's proxy takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cellgate_kernels.kernel.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A session with a kernel. `serve`: serves the sandbox's way to a network; returns whether it can."""

    session: str
    serve: Callable[[], bool]


class Neighbours:
    """The sessions of all kernels in use, by the kernel's id."""

    def __init__(self) -> None:
        self._found: dict[str, Neighbour] = {}
        self._in_folder: dict[Path, dict[str, Neighbour]] = {}

    def arrive(self, kernel: Kernel, neighbour: Neighbour) -> None:
        """Store the session that has got this kernel."""
        self._found[kernel.id] = neighbour
        self._in_folder.setdefault(kernel.workspace, {})[kernel.id] = neighbour

    def leave(self, kernel: Kernel) -> None:
        """Remove the session that had this kernel."""
        self._found.pop(kernel.id, None)
        inside = self._in_folder.get(kernel.workspace, {})
        inside.pop(kernel.id, None)
        if not inside:
            self._in_folder.pop(kernel.workspace, None)

    def of(self, kernel: Kernel) -> list[Neighbour]:
        """Return the sessions whose kernels share its sandbox."""
        found = (self._found.get(each) for each in kernel.shares_sandbox_with)
        return [neighbour for neighbour in found if neighbour is not None]

    def in_workspace_of(self, kernel: Kernel) -> list[Neighbour]:
        """Return the sessions whose kernels have the same workspace folder."""
        inside = self._in_folder.get(kernel.workspace, {})
        return [neighbour for each, neighbour in inside.items() if each != kernel.id]
