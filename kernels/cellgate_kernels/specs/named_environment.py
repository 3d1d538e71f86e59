"""The name and the digest of an environment that an operator has added, as its kernelspec says them.

``added_environments`` makes the kernelspec; the ``catalog``, kernels and the record repeat both. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.specs.languages import find_language

METADATA = "cellgate_environment"
"""The key of a kernelspec's metadata that has the environment's name and digest."""
LISTED = ("standard", "minimal")
"""Environments that Cellgate has lists for; ``environments`` has the lists."""
RESERVED = frozenset({"python3", "bash", "deno", *LISTED, "own"})
"""Names of kernelspecs and environments that come with Cellgate."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SHOWN = 40
_SHORT = 12


class NamedEnvironment(msgspec.Struct, frozen=True):
    """An environment's name, and the digest of what it was made of: its lock, Python and platform."""

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:_SHORT]})"

    def is_valid(self) -> bool:
        """Return whether both have their form."""
        return bool(_NAME.fullmatch(self.name) and _DIGEST.fullmatch(self.digest))


def check_name(name: str) -> str:
    """Return a new environment's name. Raises InvalidInput if it has not the form, or is reserved."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:_SHOWN]!r} can't be the name of an environment, which has 1 to 40 of a-z 0-9 . _ - and"
            " begins with a letter or a digit"
        )
    if name in RESERVED or find_language(name) is not None:
        raise InvalidInput(f"{name!r} can't be the name of an environment: it is one of Cellgate's own")
    return name


def read_named(told: object) -> NamedEnvironment | None:
    """Return the environment that JSON values name, as a record has them; None if there is none."""
    if not isinstance(told, Mapping):
        return None
    try:
        found = msgspec.convert(told, NamedEnvironment)
    except msgspec.ValidationError:
        return None
    return found if found.is_valid() else None


def named_environment(metadata: Mapping[str, Any]) -> NamedEnvironment | None:
    """Return the environment that a kernelspec's metadata names. Raises ValueError if it is damaged."""
    if METADATA not in metadata:
        return None
    found = read_named(metadata[METADATA])
    if found is None:
        raise ValueError(f"its metadata has {METADATA} without a name and a digest")
    return found
