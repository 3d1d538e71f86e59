"""Paths in a sandbox. Pure.

Clients call the workspace by the home folder that they know, ``/home/user``, and programs of a sandbox see it
there too. The gateway itself sees nothing outside of it.
"""

from __future__ import annotations

import posixpath
from typing import Final

from cellgate.errors import NotFound
from cellgate.execution.checks import check_text
from cellgate.files.tree import MAX_PATH, Parts, parse_path
from cellgate_kernels.base.errors import InvalidInput

HOME: Final = "/home/user"
"""How clients call the workspace."""
OTHER_HOMES: Final = ("/workspace", "/mnt/data")
"""Other names of the workspace, in which programs see it too."""


def parse_home_path(text: str) -> Parts:
    """Return the names of a path below the home folder; none for the folder itself.

    Raises NotFound for a path elsewhere, and InvalidInput.
    """
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


def parse_program_path(text: str) -> str:
    """Return a path as programs of a sandbox take it: below the workspace relative to it, elsewhere as it is.

    Raises InvalidInput. Whether anything is there is not known.
    """
    try:
        return "/".join(parse_home_path(text))
    except NotFound:
        return posixpath.normpath(posixpath.join(HOME, check_text(text, "path", MAX_PATH)))


def program_path(path: str) -> str:
    """Return a path of `parse_program_path` as clients are told it."""
    return posixpath.join(HOME, path) if path else HOME


def home_path(parts: Parts) -> str:
    """Return a path of `parse_home_path` as clients are told it."""
    return "/".join((HOME, *parts))
