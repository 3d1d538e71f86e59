"""Which extras are installed: the commands that can run here, and the packages that others need.

It reads the distribution's metadata, so ``pyproject.toml`` is the only list of an extra's packages. What that
takes is imported then, and not before: most commands need no extra.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

SERVER = "server"
OF_THE_SERVER = frozenset({"serve", "setup", "doctor", "image", "record", "node", "user", "token", "secret"})
"""Commands that need the extra. All others need a gateway to talk to, or only a file."""


def missing(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed here."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - see above

    from packaging.requirements import Requirement  # noqa: PLC0415

    try:
        requirements = [Requirement(text) for text in requires("cellgate") or ()]
    except PackageNotFoundError:  # run from source, not installed
        return []
    of_extra = [
        each.name
        for each in requirements
        if each.marker is not None
        and each.marker.evaluate({"extra": extra})
        and not each.marker.evaluate({"extra": ""})
    ]
    return [name for name in of_extra if not _is_installed(name)]


def available(commands: Mapping[str, T]) -> dict[str, T]:
    """Return the commands that can run here."""
    left_out = OF_THE_SERVER if missing(SERVER) else frozenset()
    return {name: command for name, command in commands.items() if name not in left_out}


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
