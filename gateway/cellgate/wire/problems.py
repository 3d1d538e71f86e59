"""A refusal or a failure as clients see it: RFC 9457's members and a stable `reason`.

``cellgate.errors`` maps errors to problems. Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from cellgate.wire.base import Value, say
from cellgate.wire.obstacle import Obstacle

QuotaName = Annotated[
    str | UnsetType, say("The principal's quota that is used up; absent for other reasons.")
]
QuotaLimit = Annotated[int | float | UnsetType, say("The limit of that quota; sizes in bytes.")]
QuotaUsed = Annotated[int | float | UnsetType, say("How much of that quota is used now.")]


@dataclass(frozen=True, slots=True)
class QuotaState:
    """Which quota of the principal refused a request."""

    quota: str
    limit: float
    used: float


Obstacles = Annotated[
    list[Obstacle] | UnsetType,
    say("With the reason `cannot_branch`: what stands in the way; absent for other reasons."),
]


class Problem(Value, frozen=True, kw_only=True):
    """Why a request was refused or failed, `application/problem+json`."""

    type: Annotated[str, say("The URN `urn:cellgate:problem:` followed by the reason.")] = ""
    title: str = ""
    status: Annotated[int, say("The HTTP status code.")] = 0
    detail: Annotated[str, say("What happened and what to do about it, in words.")] = ""
    reason: Annotated[str, say("The reason as a stable word, for programs.")] = "internal_error"
    quota: QuotaName = UNSET
    limit: QuotaLimit = UNSET
    used: QuotaUsed = UNSET
    obstacles: Obstacles = UNSET


class StreamProblem(Value, frozen=True, kw_only=True):
    """The last line of a stream that failed after its status line, or the answer to a refused command."""

    type: Literal["problem"] = "problem"
    title: str = ""
    status: int = 0
    detail: str = "The gateway's stream failed"
    reason: str = "internal_error"
    id: Annotated[str | int | UnsetType, say("The `id` of the refused command; absent if it had none.")] = (
        UNSET
    )
    quota: QuotaName = UNSET
    limit: QuotaLimit = UNSET
    used: QuotaUsed = UNSET


def problem(reason: str, status: int, detail: str, quota: QuotaState | None = None) -> Problem:
    """Return the problem with this reason."""
    return Problem(
        type=f"urn:cellgate:problem:{reason}",
        title=_title(reason),
        status=status,
        detail=detail,
        reason=reason,
        **_members(quota),
    )


def stream_problem(
    reason: str,
    status: int,
    detail: str,
    quota: QuotaState | None = None,
    *,
    id: str | int | UnsetType = UNSET,  # noqa: A002 - the wire's word
) -> StreamProblem:
    """Return the problem as a line of a stream."""
    return StreamProblem(
        title=_title(reason), status=status, detail=detail, reason=reason, id=id, **_members(quota)
    )


def _members(quota: QuotaState | None) -> dict[str, Any]:
    return {} if quota is None else asdict(quota)


def _title(reason: str) -> str:
    return reason.replace("_", " ").capitalize()
