"""The wire's model of a session, built from its row and from what only a live session knows. Pure."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from cellgate.record.rows import SessionRow
from cellgate.wire.answers import SessionModel
from cellgate.wire.events import Missing

TITLE = "title"
"""The key of a session's metadata with what it is about, such as the path of its notebook."""


def has_network(row: SessionRow) -> bool:
    """Whether the session's newest kernel could reach what its principal's policy names."""
    return row.environment.get("network") == "allow"


def session_model(
    row: SessionRow,
    *,
    kernel_id: str | None = None,
    queue_length: int = 0,
    problem: str | None = None,
    missing: Missing | UnsetType = UNSET,
) -> SessionModel:
    """The wire's model of a session, live or ended.

    `problem`: why it is no longer recorded, if so. `missing`: what it had before
    its last end and does not have now.
    """
    title = (row.metadata or {}).get(TITLE)
    return SessionModel(
        session=row.key,
        title=title if isinstance(title, str) else None,
        principal=row.principal,
        kernel=row.kernel,
        kernel_id=kernel_id,
        state=row.state,
        cause=row.cause,
        isolation=row.isolation,
        created_at=row.created_at,
        last_activity=row.last_activity,
        execution_count=row.execution_count,
        queue_length=queue_length,
        limits=row.limits,
        network="allow" if has_network(row) else "none",
        metadata=row.metadata,
        seq=row.head_seq,
        head=row.head.hex(),
        problem=UNSET if problem is None else problem,
        missing=missing,
    )
