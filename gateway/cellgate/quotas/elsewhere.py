"""What a principal's sessions use at the other gateways of a cluster: values, and the seam to the cluster.

``usage`` adds it to what is used here. The gateways' database has it, through ``cluster.quota_shares``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cellgate.quotas.quotas import Quotas


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
            self.cpus + sign * other.cpus,
            self.disk + sign * other.disk,
        )


NOTHING: Final = Sums()


class UseElsewhere(Protocol):
    """Knows what each gateway of a cluster uses. All methods belong to one event loop."""

    async def others(self, principals: Sequence[str]) -> Mapping[str, Sums]:
        """Return what principals use at all other gateways, of those that use something there.

        Raises StorageError.
        """

    async def publish(self, principal: str, own: Sums, most: Quotas) -> bool:
        """Replace what this gateway uses, unless that would exceed a quota together with the others' use.

        Return whether it was replaced. Raises StorageError.
        """

    def changed(self, principal: str) -> None:
        """Publish the principal's use soon, whatever the quotas are. Returns at once, and raises nothing."""
