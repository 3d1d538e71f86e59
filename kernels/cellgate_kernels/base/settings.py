"""Settings of the pool and of containers. Only values: ``pool`` and ``provisioners`` apply them."""

from __future__ import annotations

from dataclasses import dataclass

from cellgate_kernels.base.options import SECONDS, option

IMAGE = "cellgate/kernel:latest"
SOCKET = "unix:///var/run/docker.sock"
"""The container engine's default address."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Limits of a pool. Durations in seconds.

    `size`, `burst_size`, `tell_interval`: see ``pool``. `claim_timeout`: until a claim's kernel starts.
    `refill_pause`: the delay of the next warm kernel's start after a claim, while others are warm: a start
    would compete with the first cell for a processor.
    """

    size: int | None = option(
        None, "Warm kernels kept ready; default: 2, or 1 where they are forked.", name="pool_size", least=0
    )
    burst_size: int | None = option(
        None,
        "The most warm kernels kept ready after a burst of sessions; default: 8, or 2 where they are forked.",
        least=0,
    )
    burst_window: float = 10.0
    max_kernels: int = option(
        64, "The most kernels that exist at once; 0: one for each 256 MiB of memory, from 4 to 512.", absent=0
    )
    concurrent_starts: int = option(2, "Kernels that start at once; 0: 2, or 4 with a fork server.", absent=0)
    claim_timeout: float = option(
        30.0, "Seconds that a request waits for a kernel when none is free.", unit=SECONDS, least=0.1
    )
    refill_pause: float = 0.0
    retry_delay: float = 1.0
    max_retry_delay: float = 60.0
    tell_interval: float = 1.0


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """An operator's settings for containers of kernels. Sources of `mounts` are on the engine's host."""

    image: str = option(IMAGE, "The image of kernels in containers.", metavar="NAME")
    runtime: str = option("", "The engine's runtime, such as runsc; default: its own.", metavar="NAME")
    network: str = option("", "The container engine's network for kernels; default: none at all.")
    mounts: tuple[str, ...] = option(
        (),
        "Additional folders for kernels in containers: SOURCE:TARGET or SOURCE:TARGET:rw.",
        metavar="MOUNT",
    )

    @property
    def isolation(self) -> str:
        """The wall between a kernel and the host: ``gvisor`` under runsc, else ``container``."""
        return "gvisor" if "runsc" in self.runtime else "container"

    @property
    def network_mode(self) -> str:
        """The engine's network for a kernel."""
        return self.network or "none"
