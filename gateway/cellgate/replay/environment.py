"""Compares the environment of a replay with the recorded one: the Python version and the package lock.

Pure. The recorded lock is in the notebook's ``metadata.cellgate`` (`python`, `packages`); the replay's is
the report of its kernel to the gateway before its first use. A notebook without a lock can still be
replayed, and the report says that the environment is unknown. A notebook may come from anywhere: only valid
names and versions count, and the number of invalid ones is compared too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cellgate.wire.answers import Changed, EnvironmentReport, Pair
from cellgate_kernels.kernel.environment import count, distributions, is_python
from cellgate_kernels.specs.named_environment import NamedEnvironment, read_named

HASH_SEED = "PYTHONHASHSEED"
NAMED = "environment (digest)"
LEFT_OUT = "packages whose names or versions can't be read"
_SEED = re.compile(r"[0-9]{1,10}")


class Agreement(StrEnum):
    """The result of comparing two environments."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EnvironmentLock:
    """A Python's and its packages' versions by normalised name. `left_out`: the number of invalid ones.

    `named`: the environment, if it is one that an operator has added.
    """

    python: str
    packages: Mapping[str, str]
    left_out: int = 0
    named: NamedEnvironment | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """The result of comparing two locks."""

    agreement: Agreement
    changes: tuple[Changed, ...] = ()

    def report(self) -> EnvironmentReport:
        """Return the result in the form of the report."""
        return EnvironmentReport(agreement=self.agreement, changes=list(self.changes))

    def summary(self) -> str:
        """Return the first changes, for a person."""
        shown = [f"{c.name} {c.recorded or 'absent'} -> {c.now or 'absent'}" for c in self.changes[:5]]
        more = len(self.changes) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def lock_of(told: Any) -> EnvironmentLock | None:
    """Return the lock in a recorded description of an environment; None if there is none."""
    if not isinstance(told, dict) or not isinstance(packages := told.get("packages"), dict):
        return None
    known, left_out = distributions(packages)
    python = told.get("python")
    return EnvironmentLock(
        python if isinstance(python, str) and is_python(python) else "",
        {package.canonical: package.version for package in known},
        left_out + count(told.get("packages_left_out")),
        read_named(told.get("environment")),
    )


def recorded_lock(notebook: Mapping[str, Any]) -> EnvironmentLock | None:
    """Return the lock in a Cellgate notebook."""
    metadata = notebook.get("metadata")
    return lock_of(metadata.get("cellgate")) if isinstance(metadata, dict) else None


def recorded_seed(notebook: Mapping[str, Any]) -> str | None:
    """Return the recorded kernel's ``PYTHONHASHSEED``; None if it is missing or invalid."""
    metadata = notebook.get("metadata")
    known = metadata.get("cellgate") if isinstance(metadata, dict) else None
    told = known.get("hash_seed") if isinstance(known, dict) else None
    fits = isinstance(told, str) and _SEED.fullmatch(told) and int(told) < 2**32
    return str(told) if fits else None


def variables_for(seed: str | None, usual: str) -> dict[str, str] | None:
    """Return variables that give a kernel the recorded seed; None if it is usual or unknown."""
    if seed is None or seed == usual:
        return None
    return {HASH_SEED: seed}


def seeds_report(recorded: str | None, usual: str) -> Pair:
    """Return both seeds in the form of the report."""
    return Pair(recorded=recorded, now=recorded or usual)


def compare_locks(recorded: EnvironmentLock | None, now: EnvironmentLock | None) -> EnvironmentCheck:
    """Return the differences between the recorded lock and the replay's."""
    if recorded is None or now is None:
        return EnvironmentCheck(Agreement.UNKNOWN)
    changes = []
    if recorded.python != now.python:
        changes.append(Changed(name="python", recorded=recorded.python, now=now.python))
    for name in sorted(recorded.packages.keys() | now.packages.keys()):
        before, after = recorded.packages.get(name), now.packages.get(name)
        if before != after:
            changes.append(Changed(name=name, recorded=before, now=after))
    if recorded.left_out != now.left_out:
        left_out = Changed(name=LEFT_OUT, recorded=str(recorded.left_out), now=str(now.left_out))
        changes.append(left_out)
    if changes and recorded.named != now.named:
        # Not a difference by itself: another lock can have the same versions.
        before, after = (None if each is None else str(each) for each in (recorded.named, now.named))
        changes.insert(0, Changed(name=NAMED, recorded=before, now=after))
    return EnvironmentCheck(Agreement.DIFFERENT if changes else Agreement.SAME, tuple(changes))
