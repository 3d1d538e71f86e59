"""What a principal's sessions use at the gateways of a cluster: values, and the seam to the cluster.

``usage`` adds what is used at the others to what is used here. Their database has it, through
``cluster.uses``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cellgate.quotas.quotas import Quotas

TINY: Final = 1e-9
"""Processors by which sums of fractions may differ."""
CPU_DIGITS: Final = 6
"""Decimals of a processor that count, so that a sum without all of its parts is exactly zero."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What live sessions use together: their number, `memory` and `disk` in bytes, and `cpus`."""

    sessions: int = 0
    memory: int = 0
    cpus: float = 0.0
    disk: int = 0

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        """Return the use with another one or, with the sign -1, without one that is a part of it."""
        return Sums(
            self.sessions + sign * other.sessions,
            self.memory + sign * other.memory,
            round(self.cpus + sign * other.cpus, CPU_DIGITS),
            self.disk + sign * other.disk,
        )

    def exceeds(self, quotas: Quotas) -> bool:
        """Return whether it is more than a quota allows."""
        sums = (self.sessions, self.memory, self.cpus, self.disk)
        return any(is_above(used, limit) for used, limit in zip(sums, quotas.of_sums, strict=True))


def is_above(used: float, limit: float | None) -> bool:
    """Return whether a sum is above a limit, if there is one."""
    return limit is not None and used > limit + TINY


NOTHING: Final = Sums()


class ClusterUses(Protocol):
    """Knows what each gateway of a cluster uses. All methods belong to one event loop."""

    async def of_others(self, principals: Sequence[str]) -> Mapping[str, Sums]:
        """Return what principals use at all other gateways, of those that use something there.

        Raises StorageError.
        """

    async def first(self, after: str, limit: int) -> Mapping[str, Sums]:
        """Return what the first principals, by name, behind `after` use at all other gateways, of those that
        use something there. Raises StorageError.
        """

    async def publish(self, principal: str, own: Sums, most: Quotas) -> bool:
        """Replace what this gateway uses, unless that would exceed a quota together with the others' use.

        Return whether it was replaced. Raises StorageError.
        """

    def changed(self, principal: str) -> None:
        """Publish the principal's use soon, whatever the quotas are. Returns at once, and raises nothing."""
