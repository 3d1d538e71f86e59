"""Computes what a resumed session gets: what it had before, if still available, and a list of the rest.

Pure. A request's own limits or variables replace all former ones. `registry` knows the former ones from the
row and the events of the session's last life, and from memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from cellgate.execution.limits import LimitCeilings, SessionLimits
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import LastLife
from cellgate.sessions.model import has_network
from cellgate.sessions.variables import Variables
from cellgate.wire.events import Loss, Missing
from cellgate.wire.models import SessionBody
from cellgate_kernels.kernel.kernel import KernelProfile

SEED = "PYTHONHASHSEED"
"""The one variable whose value is recorded."""


@dataclass(frozen=True, slots=True)
class Past:
    """A session before it is resumed. `variables`: the ones still in memory, if any.

    `default_seed`: the hash seed of such a kernel without variables of its session; None if unknown.
    `removed_secrets`: its secrets that were removed since. `may_reach`: whether its principal's sessions may
    have a network now.
    """

    row: SessionRow
    life: LastLife
    variables: Variables | None
    default_seed: str | None
    removed_secrets: frozenset[str] = frozenset()
    may_reach: bool = False


@dataclass(frozen=True, slots=True)
class Resumption:
    """The parts of a resumed session. `loss`: to be announced; its files are known once it has a kernel."""

    profile: KernelProfile
    limits: SessionLimits
    loss: Loss


def resume(
    past: Past, body: SessionBody, profile: KernelProfile, limits: SessionLimits, ceilings: LimitCeilings
) -> Resumption:
    """Return the next life of a session. `profile` and `limits`: a new session's with this `body`."""
    before = _missing_before(past.life)
    lower: dict[str, float] = {}
    if body.limits is None:
        limits, lower = _former_limits(past, ceilings)
        lower = {**({} if isinstance(before.limits, UnsetType) else before.limits), **lower}
        profile = replace(profile, limits=limits.resources)
    gone: set[str] = set()
    if body.env is None:
        variables, gone = _former_variables(past)
        gone |= {*_given(before.env)} - {name for name, _ in variables}
        profile = replace(profile, env=variables)
    if body.secrets is None:
        gone |= past.removed_secrets
    reached = body.network is None and (has_network(past.row) or before.network is True)
    if reached and past.may_reach:
        profile = replace(profile, egress=True)
    packages = {*past.life.packages, *_given(before.packages)}
    missing = Missing(
        env=sorted(gone) or UNSET,
        packages=sorted(packages) or UNSET,
        limits=lower or UNSET,
        network=(reached and not past.may_reach) or UNSET,
    )
    ended = past.row.state == "ended" and past.row.cause is not None
    cause = past.row.cause if ended else None
    return Resumption(
        profile,
        limits,
        Loss(cause=UNSET if cause is None else cause, missing=UNSET if missing == Missing() else missing),
    )


def _missing_before(life: LastLife) -> Missing:
    """Return what the last life lacked, if no cell has reported it."""
    loss = life.unannounced
    return Missing() if loss is None or isinstance(loss.missing, UnsetType) else loss.missing


def _given(names: Iterable[str] | UnsetType) -> Iterable[str]:
    return () if isinstance(names, UnsetType) else names


def _former_limits(past: Past, ceilings: LimitCeilings) -> tuple[SessionLimits, dict[str, float]]:
    """Return the former limits under today's ceilings, and the former values of those that were lowered."""
    former = SessionLimits.from_wire(past.row.limits)
    limits, _ = ceilings.lower(former)
    now = limits.to_wire()
    return limits, {name: value for name, value in former.to_wire().items() if now[name] < value}


def _former_variables(past: Past) -> tuple[Variables, set[str]]:
    """Return the former variables with known values, and the names of the others."""
    if past.variables is not None:
        return past.variables, set()
    environment = past.row.environment
    seed = environment.get("hash_seed")
    known = () if seed is None or seed == past.default_seed or past.default_seed is None else ((SEED, seed),)
    return known, {*environment.get("env", ())}
