"""The results of a benchmark: figures with targets, the statistics behind them, and their table.

It measures nothing. The modules named after a figure do (``roundtrip``, ``starts``, ``cpu``, ``flood``,
``memory``, ``record`` and others), and ``__main__`` prints their results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MB = 1_000_000
MIB = 1024 * 1024


class Bound(StrEnum):
    """Which side of its target a figure has to be on."""

    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Target:
    """The value a figure must reach, in the figure's unit."""

    bound: Bound
    value: float

    def met_by(self, value: float) -> bool:
        """Whether `value` reaches the target; equality does."""
        return value <= self.value if self.bound is Bound.AT_MOST else value >= self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. Without a target it is for comparison only. `details` goes into the JSON."""

    name: str
    value: float
    unit: str
    target: Target | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        return None if self.target is None else self.target.met_by(self.value)


def at_most(value: float) -> Target:
    """A target that smaller values meet."""
    return Target(Bound.AT_MOST, value)


def at_least(value: float) -> Target:
    """A target that larger values meet."""
    return Target(Bound.AT_LEAST, value)


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The smallest sample that at least `fraction` of all samples do not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Count, p50, p95, minimum and maximum of durations given in seconds; returned in milliseconds."""
    points = {"p50": 0.5, "p95": 0.95, "min": 0.0, "max": 1.0}
    return {"n": len(seconds)} | {
        f"{name}_ms": round(quantile(seconds, at) * 1000, 3) for name, at in points.items()
    }


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table with aligned columns."""
    rows: list[tuple[str, ...]] = [("figure", "value", "target", "met")]
    for figure in figures:
        target = (
            "" if figure.target is None else f"{figure.target.bound} {figure.target.value:g} {figure.unit}"
        )
        met = {True: "yes", False: "NO", None: ""}[figure.met]
        rows.append((figure.name, f"{figure.value:.3g} {figure.unit}", target.strip(), met))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )
