"""Settings of the registry of sessions and of the retention of their records. Only values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellgate.execution.limits import SessionLimits
from cellgate_kernels.base.options import BYTES, option

if TYPE_CHECKING:
    from cellgate.sessions.parts import SessionSettings


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Defaults of sessions. `cull_interval` in seconds."""

    session: SessionSettings
    limits: SessionLimits = field(default_factory=SessionLimits)
    default_kernel: str = option("python3", "The kernelspec of sessions that ask for none.")
    cull_interval: float = 5.0


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Limits of records. `age`: seconds since last use. `size`: bytes. None: none. `interval`: seconds."""

    age: float | None = None
    size: int | None = option(
        None,
        "Size of the record above which the oldest records of ended sessions are removed; default: no limit.",
        name="retention_size",
        unit=BYTES,
    )
    interval: float = 600.0
