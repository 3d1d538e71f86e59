"""A refusal or a failure as clients see it: RFC 9457's members and a stable `reason`.

``cellgate.errors`` maps errors to problems. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from cellgate.wire.base import Value


class Problem(Value, frozen=True, kw_only=True):
    """Why a request was refused or failed, `application/problem+json`."""

    type: Annotated[str, Meta(description="The URN `urn:cellgate:problem:` followed by the reason.")] = ""
    title: str = ""
    status: Annotated[int, Meta(description="The HTTP status code.")] = 0
    detail: Annotated[str, Meta(description="What happened and what to do about it, in words.")] = ""
    reason: Annotated[str, Meta(description="The reason as a stable word, for programs.")] = "internal_error"


class StreamProblem(Value, frozen=True, kw_only=True):
    """The last line of a stream that failed after its status line, or the answer to a refused command."""

    type: Literal["problem"] = "problem"
    title: str = ""
    status: int = 0
    detail: str = "The gateway's stream failed"
    reason: str = "internal_error"
    id: Annotated[
        str | int | UnsetType, Meta(description="The `id` of the refused command; absent if it had none.")
    ] = UNSET


def problem(reason: str, status: int, detail: str) -> Problem:
    """The problem with this reason."""
    return Problem(
        type=f"urn:cellgate:problem:{reason}",
        title=_title(reason),
        status=status,
        detail=detail,
        reason=reason,
    )


def stream_problem(
    reason: str,
    status: int,
    detail: str,
    *,
    id: str | int | UnsetType = UNSET,  # noqa: A002 - the wire's word
) -> StreamProblem:
    """The problem as a line of a stream."""
    return StreamProblem(title=_title(reason), status=status, detail=detail, reason=reason, id=id)


def _title(reason: str) -> str:
    return reason.replace("_", " ").capitalize()
