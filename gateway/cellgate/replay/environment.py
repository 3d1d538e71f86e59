"""Whether the environment of a replay is that of the record: the Python version and the package lock.

Pure. The lock is in the notebook's ``metadata.cellgate`` (`python`, `packages`); that of the replay is what
its kernel told the gateway before anybody used it. A notebook without a lock is replayed all the same, and
the report says that it is not known. A notebook may come from anywhere: names and versions count only if they
fit their grammars, and how many don't is compared too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cellgate_kernels.environment import count, distributions, is_python

HASH_SEED = "PYTHONHASHSEED"
LEFT_OUT = "packages whose names or versions can't be read"
_SEED = re.compile(r"[0-9]{1,10}")


class Agreement(StrEnum):
    """How the two environments are to each other."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Lock:
    """A Python version and the versions of packages by their normalised names.

    `left_out`: how many packages there are whose names or versions are none.
    """

    python: str
    packages: Mapping[str, str]
    left_out: int = 0


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
    known, left_out = distributions(packages)
    python = told.get("python")
    return Lock(
        python if isinstance(python, str) and is_python(python) else "",
        {package.canonical: package.version for package in known},
        left_out + count(told.get("packages_left_out")),
    )


def recorded_lock(notebook: Mapping[str, Any]) -> Lock | None:
    """The lock in a notebook of ours."""
    metadata = notebook.get("metadata")
    return lock_of(metadata.get("cellgate")) if isinstance(metadata, dict) else None


def recorded_seed(notebook: Mapping[str, Any]) -> str | None:
    """The ``PYTHONHASHSEED`` of the recorded kernel; None when it is not told or no kernel starts with it."""
    metadata = notebook.get("metadata")
    known = metadata.get("cellgate") if isinstance(metadata, dict) else None
    told = known.get("hash_seed") if isinstance(known, dict) else None
    fits = isinstance(told, str) and _SEED.fullmatch(told) and int(told) < 2**32
    return str(told) if fits else None


def variables_for(seed: str | None, usual: str) -> dict[str, str] | None:
    """The environment of a replay's session, so that its kernel has the recorded seed; None for the usual."""
    return None if seed is None or seed == usual else {HASH_SEED: seed}


def seeds_report(recorded: str | None, usual: str) -> dict[str, str | None]:
    """Both seeds, as they are in a report."""
    return {"recorded": recorded, "now": recorded or usual}


def compare_locks(recorded: Lock | None, now: Lock | None) -> EnvironmentCheck:
    """What differs between the lock of the record and that of the replay."""
    if recorded is None or now is None:
        return EnvironmentCheck(Agreement.UNKNOWN)
    changes = [] if recorded.python == now.python else [Change("python", recorded.python, now.python)]
    for name in sorted(recorded.packages.keys() | now.packages.keys()):
        before, after = recorded.packages.get(name), now.packages.get(name)
        if before != after:
            changes.append(Change(name, before, after))
    if recorded.left_out != now.left_out:
        changes.append(Change(LEFT_OUT, str(recorded.left_out), str(now.left_out)))
    return EnvironmentCheck(Agreement.DIFFERENT if changes else Agreement.SAME, tuple(changes))
