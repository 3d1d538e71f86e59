"""The names of a session's workspace, as cells and requests use them. Pure."""

from __future__ import annotations

from typing import Final

WORKSPACES: Final = ("/workspace", "/mnt/data", "/home/user")
"""Where the workspace is in sandboxes and containers; models write the last two for other systems."""
UNFIT_PATH: Final = (
    "A path is relative to the workspace, or begins with /workspace/; it has no '..', empty name or NUL"
)
"""What is said of another one."""


def is_workspaces(path: str, *names: str) -> bool:
    """Return whether a path begins with one of these names of the workspace, by default with any."""
    return any(path == each or path.startswith(f"{each}/") for each in names or WORKSPACES)


def in_workspace(path: str) -> str:
    """Return a path without what leads to the workspace: ``./`` or a name of it; empty for the workspace.

    Whoever parses a path calls it, once: a second time it could take away what is to be refused.
    """
    found = next((each for each in WORKSPACES if is_workspaces(path, each)), "")
    place = len(found) + 1 if found else 0
    while path.startswith("./", place):
        place += 2
        while path.startswith("/", place):
            place += 1
    return "" if path[place:] == "." else path[place:]
