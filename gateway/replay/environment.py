"""Whether the environment of a replay is that of the record: the Python version and the package lock.

Pure. The lock is in the notebook's ``metadata.cellgate`` (`python`, `packages`); that of the replay is what
its kernel told the gateway before anybody used it. A notebook without a lock is replayed all the same, and
the report says that it is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_SEPARATORS = re.compile(r"[-_.]+")


class Agreement(StrEnum):
    """How the two environments are to each other."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Lock:
    """A Python version and the versions of packages by their normalised names."""

    python: str
    packages: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs; None where one side has none of it."""

    name: str
    recorded: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """What comparing two locks found."""

    agreement: Agreement
    changes: tuple[Change, ...] = ()

    def summary(self) -> str:
        """The first changes, for a person."""
        shown = [f"{c.name} {c.recorded or 'absent'} -> {c.now or 'absent'}" for c in self.changes[:5]]
        more = len(self.changes) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def lock_of(told: Any) -> Lock | None:
    """The lock in what the record tells of an environment; None where there is none."""
    if not isinstance(told, dict) or not isinstance(packages := told.get("packages"), dict):
        return None
    known = {
        _SEPARATORS.sub("-", name).lower(): version
        for name, version in packages.items()
        if isinstance(name, str) and isinstance(version, str)
    }
    return Lock(str(told.get("python") or ""), known)


def recorded_lock(notebook: Mapping[str, Any]) -> Lock | None:
    """The lock in a notebook of ours."""
    metadata = notebook.get("metadata")
    return lock_of(metadata.get("cellgate")) if isinstance(metadata, dict) else None


def compare_locks(recorded: Lock | None, now: Lock | None) -> EnvironmentCheck:
    """What differs between the lock of the record and that of the replay."""
    if recorded is None or now is None:
        return EnvironmentCheck(Agreement.UNKNOWN)
    changes = [] if recorded.python == now.python else [Change("python", recorded.python, now.python)]
    for name in sorted(recorded.packages.keys() | now.packages.keys()):
        before, after = recorded.packages.get(name), now.packages.get(name)
        if before != after:
            changes.append(Change(name, before, after))
    return EnvironmentCheck(Agreement.DIFFERENT if changes else Agreement.SAME, tuple(changes))
