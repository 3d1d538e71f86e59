"""The limits of a session: those of its request, the gateway's defaults, and the operator's ceilings.

Ceilings are the gateway's, for everybody, lowered by the quotas of the principal. Every request for limits
ends here: `merge_limits` for a session's, `Ceilings.check_timeout` for a cell's. Only values and their
checks; ``cellgate_kernels.base.resources`` has the limits of one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from cellgate.quotas.quotas import Quotas
from cellgate.wire.models import LimitsBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.options import SECONDS, option
from cellgate_kernels.base.resources import MOST_BYTES, ResourceLimits, parse_size

MAX_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """A session's limits: its kernel's resources, times in seconds, and what follows an idle time."""

    resources: ResourceLimits = field(default_factory=ResourceLimits)
    cell_timeout: float = option(
        60.0, "Seconds a cell may run unless its request says otherwise.", unit=SECONDS, least=0.01
    )
    idle_timeout: float = option(
        1800.0, "Seconds unused until a session falls asleep, or ends.", unit=SECONDS, least=0.1
    )
    lifetime: float = option(86400.0, "Seconds until a session ends, used or not.", unit=SECONDS, least=1)
    on_idle: Literal["sleep", "end"] = "sleep"
    """What follows the `idle_timeout`; a session that can't sleep ends in any case."""

    def to_wire(self) -> dict[str, Any]:
        """Return the flat object on the wire; sizes in bytes."""
        times = {name: getattr(self, name) for name in ("cell_timeout", "idle_timeout", "lifetime")}
        return {**asdict(self.resources), **times, "on_idle": self.on_idle}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> SessionLimits:
        """Return the limits from `to_wire`'s object; a limit that is missing there has its default."""
        known = {field.name: wire[field.name] for field in fields(cls) if field.name in wire}
        named = {field.name for field in fields(ResourceLimits)} & wire.keys()
        return cls(ResourceLimits(**{name: wire[name] for name in named}), **known)


def check_seconds(value: float, name: str) -> float:
    """Return a duration above zero and at most 30 days, or InvalidInput."""
    if not math.isfinite(value) or not 0 < value <= MAX_SECONDS:
        raise InvalidInput(f"{name} must be above 0 and at most {MAX_SECONDS:.0f} seconds")
    return float(value)


@dataclass(frozen=True, slots=True)
class LimitCeilings:
    """The highest limits that may be requested; sizes in bytes, times in seconds. By default all are allowed.

    `own`: the names of ceilings that are the principal's own, lower than the gateway's.
    """

    resources: ResourceLimits = field(
        default_factory=lambda: ResourceLimits(MOST_BYTES, 1024.0, 1_000_000, MOST_BYTES)
    )
    cell_timeout: float = MAX_SECONDS
    lifetime: float = MAX_SECONDS
    own: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("cell_timeout", "lifetime"):
            check_seconds(getattr(self, name), f"max_{name}")

    def to_wire(self) -> dict[str, Any]:
        """Return the flat object on the wire."""
        return {**asdict(self.resources), "cell_timeout": self.cell_timeout, "lifetime": self.lifetime}

    def lowered_by(self, quotas: Quotas) -> LimitCeilings:
        """Return the lower of each of these limits and the principal's own."""
        everybody = self.to_wire()
        lower = {
            name: own
            for name, most in everybody.items()
            if (own := getattr(quotas, f"max_{name}")) is not None and own < most
        }
        if not lower:
            return self
        times = {name: lower.pop(name) for name in ("cell_timeout", "lifetime") if name in lower}
        resources = replace(self.resources, **lower)
        return replace(self, resources=resources, own=frozenset({*lower, *times}), **times)

    def check(self, limits: SessionLimits) -> SessionLimits:
        """Return the limits, or InvalidInput that names the first one above its ceiling."""
        for name, value in self._above(limits).items():
            raise InvalidInput(self._refusal(f"limits.{name}", name, value))
        return limits

    def check_timeout(self, timeout: float) -> float:
        """Return a cell's own `timeout`, or InvalidInput when it is invalid or above its ceiling."""
        if check_seconds(timeout, "timeout") > self.cell_timeout:
            raise InvalidInput(self._refusal("timeout", "cell_timeout", timeout))
        return float(timeout)

    def lower(self, limits: SessionLimits) -> tuple[SessionLimits, list[str]]:
        """Return the limits, lowered to their ceilings, and a description of each lowered one for the log."""
        above = self._above(limits)
        if not above:
            return limits, []
        most = self.to_wire()
        resources = {name: most[name] for name in above if hasattr(limits.resources, name)}
        times = {name: most[name] for name in above if name not in resources}
        lowered = replace(limits, resources=replace(limits.resources, **resources), **times)
        changes = [
            f"{name} from {_plain(value)} to max_{name}, {_plain(most[name])}"
            for name, value in above.items()
        ]
        return lowered, changes

    def _above(self, limits: SessionLimits) -> dict[str, float]:
        given = limits.to_wire()
        return {name: given[name] for name, most in self.to_wire().items() if given[name] > most}

    def _refusal(self, field_name: str, name: str, value: float) -> str:
        most = self.to_wire()[name]
        unit = {"memory": " bytes", "disk": " bytes", "cell_timeout": " s", "lifetime": " s"}.get(name, "")
        whose = "the principal's" if name in self.own else "this gateway's"
        return (
            f"{field_name} is {_plain(value)}{unit}, above {whose} ceiling max_{name}, which is"
            f" {_plain(most)}{unit}"
        )


def _plain(value: float) -> str:
    """Return the number as text, without an exponent if it is whole, as sizes are."""
    return str(int(value)) if float(value).is_integer() else f"{value:.15g}"


def merge_limits(defaults: SessionLimits, body: LimitsBody, ceilings: LimitCeilings) -> SessionLimits:
    """Return the gateway's defaults, overridden by the request. Raises InvalidInput."""
    return ceilings.check(named_limits(defaults, body))


def lowered_limits(defaults: SessionLimits, body: LimitsBody, ceilings: LimitCeilings) -> SessionLimits:
    """Like `merge_limits`, but values above a ceiling are lowered to it: for limits from a record, which are
    not a caller's request. Raises InvalidInput.
    """
    return ceilings.lower(named_limits(defaults, body))[0]


def named_limits(defaults: SessionLimits, body: LimitsBody) -> SessionLimits:
    """Return `defaults` with the limits that a request names. Raises InvalidInput."""
    resources: dict[str, Any] = {}
    for name in ("memory", "disk"):
        size = getattr(body, name)
        if size is not None:
            resources[name] = parse_size(size, name=f"limits.{name}")
    for name in ("cpus", "pids"):
        count = getattr(body, name)
        if count is not None:
            resources[name] = count
    times: dict[str, float] = {}
    for name in ("cell_timeout", "idle_timeout", "lifetime"):
        seconds = getattr(body, name)
        if seconds is not None:
            times[name] = check_seconds(seconds, f"limits.{name}")
    on_idle = defaults.on_idle if body.on_idle is None else body.on_idle
    changed = replace(defaults.resources, **resources)
    return replace(defaults, resources=changed, on_idle=on_idle, **times)
