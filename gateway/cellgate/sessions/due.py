"""Tells when a session ends by itself: its lifetime is over, or it was not used for too long. Pure.

A session that falls asleep when it was not used for too long ends with its lifetime only.

``registry`` ends sessions by it, and the wire's model shows it. Moments are of the loop's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cellgate.execution.limits import SessionLimits
from cellgate.wire.answers import SessionEnd

Cause = Literal["idle_timeout", "lifetime"]


@dataclass(frozen=True, slots=True)
class Due:
    """The end of a session that is not used until then."""

    moment: float
    cause: Cause

    def to_wire(self, moment: float, wall: float) -> SessionEnd:
        """Return the wire's form, given the time of both clocks now; whole seconds, never earlier."""
        return SessionEnd(at=on_wire(self.moment, moment, wall), cause=self.cause)


def on_wire(due_at: float, moment: float, wall: float) -> str:
    """Return a moment of the loop's clock as the wire has it, given the time of both clocks now."""
    at = datetime.fromtimestamp(math.ceil(wall + due_at - moment), UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def due(
    limits: SessionLimits,
    started: float,
    idle_since: float | None,
    most_lifetime: float = math.inf,
    *,
    sleeps: bool = False,
) -> Due:
    """Return the earlier end of a session that `started` at a moment and is idle since another, if it is.

    `sleeps`: whether it falls asleep instead of ending for being idle.
    """
    life = Due(started + min(limits.lifetime, most_lifetime), "lifetime")
    if idle_since is None or sleeps:
        return life
    idle = Due(idle_since + limits.idle_timeout, "idle_timeout")
    return min(life, idle, key=lambda each: each.moment)
