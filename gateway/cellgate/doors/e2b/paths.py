"""Paths of a sandbox: its home folder ``/home/user`` is the workspace, and nothing else is found. Pure."""

from __future__ import annotations

import posixpath
from typing import Final

from cellgate.errors import NotFound
from cellgate.files.tree import MAX_PATH, Parts, parse_path
from cellgate_kernels.base.errors import InvalidInput

HOME: Final = "/home/user"
"""The workspace's name there, and in sandboxes here too."""
OTHER_HOMES: Final = ("/workspace", "/mnt/data")
"""Other names of the workspace, in which programs see it too."""


def parse_home_path(text: str) -> Parts:
    """Return the names of a path below the home folder; none for the folder itself. Raises NotFound."""
    if len(text) > MAX_PATH:
        raise InvalidInput(f"A path has at most {MAX_PATH} bytes")
    path = HOME + text[1:] if text == "~" or text.startswith("~/") else posixpath.join(HOME, text)
    path = posixpath.normpath(path).replace("//", "/", 1)
    for home in (HOME, *OTHER_HOMES):
        if path == home:
            return ()
        if path.startswith(f"{home}/"):
            return parse_path(path.removeprefix(f"{home}/"))
    raise NotFound(f"{text[:200]!r} is not there: a sandbox has the files below {HOME} here")


def parse_file_path(text: str) -> Parts:
    """Return the names of a path of which something may be made or removed. Raises NotFound, InvalidInput."""
    parts = parse_home_path(text)
    if not parts:
        raise InvalidInput(f"{HOME} itself can't be replaced, moved or removed")
    return parts


def home_path(parts: Parts) -> str:
    """Return the path as it is told."""
    return "/".join((HOME, *parts))
