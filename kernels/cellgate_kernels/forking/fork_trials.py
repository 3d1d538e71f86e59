"""Experience with zygotes in containers: which kinds work, and when a failed kind may be tried again.

A kernelspec whose zygote failed gets containers of one kernel each for some minutes. ``shared_containers``
starts the zygotes and reports the outcome here. Nothing is kept beyond this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.forking.forker import is_read_early
from cellgate_kernels.forking.messages import NotForked

logger = logging.getLogger(__name__)

RETRY_AFTER = 300.0
RETRY_SOON = 20.0
"""Seconds before a failed kind of zygote is tried again, if the cause may pass soon."""
_MOST_TOLD = 100
_MOST_FAILED = 100

Kind = tuple[str, ResourceLimits]
"""The kernelspec and the limits of a zygote's kernels."""


class ForkTrials:
    """The zygotes that worked and those that failed; `divides`, whether their cgroups could be divided."""

    def __init__(self) -> None:
        self.divides: bool | None = None
        """Whether kernels have cgroups of their own; None before the first container."""
        self._read: dict[str, frozenset[str]] = {}
        self._failed: dict[Kind, tuple[str, float]] = {}
        self._told: set[str] = set()

    def forks(self, kernelspec: str, limits: ResourceLimits | None = None) -> bool:
        """Return whether kernels of this kernelspec are forked, as far as is known.

        With limits: a client may have chosen ones with which no zygote works. Without: for any limits.
        """
        if limits is not None:
            return not self.why_not((kernelspec, limits))
        return kernelspec in self._read or not any(
            name == kernelspec and self.why_not((name, those)) for name, those in self._failed
        )

    def why_not(self, kind: Kind) -> str:
        """Return why no kernel of this kind is forked at present; empty if some may be."""
        why, until = self._failed.get(kind, ("", 0.0))
        return why if asyncio.get_running_loop().time() < until else ""

    def check(self, kernelspec: str, changed: Sequence[str]) -> None:
        """Raise NotForked for variables that an interpreter is known to read before it forks."""
        for name in changed:
            if is_read_early(name) or name in self._read.get(kernelspec, frozenset()):
                raise NotForked(f"the variable {name} was read before the fork")

    def learned(self, kind: Kind, names: frozenset[str]) -> None:
        """Note that a zygote of this kind works, and has read these variables."""
        self._read[kind[0]] = names
        self._failed.pop(kind, None)

    def failed(self, kind: Kind, why: str, retry_after: float = RETRY_AFTER) -> None:
        """Note that no zygote of this kind works at present."""
        self._failed.pop(kind, None)
        while len(self._failed) >= _MOST_FAILED:
            del self._failed[next(iter(self._failed))]
        self._failed[kind] = why, asyncio.get_running_loop().time() + retry_after
        self.tell(why, logging.WARNING)

    def tell(self, why: str, level: int = logging.INFO) -> None:
        """Log once why kernels get containers of their own."""
        if why not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(why)
            logger.log(level, "A kernel gets a container of its own, as others may: %s", why)

    def undivided(self, why: str) -> None:
        """Note that kernels can have no cgroups of their own."""
        if self.divides is not False:
            logger.warning(
                "The kernels of a principal's container share its limits, which are those of one kernel: %s",
                why,
            )
        self.divides = False
