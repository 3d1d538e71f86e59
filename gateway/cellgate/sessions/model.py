"""The wire's model of a session, made of its row and of what only a live one knows. Pure."""

from __future__ import annotations

from typing import Any

from cellgate.record.rows import SessionRow


def session_model(
    row: SessionRow, *, kernel_id: str | None = None, queue_length: int = 0, problem: str | None = None
) -> dict[str, Any]:
    """The wire's model of a session, live or ended. `problem`: why it is not recorded any more, if so."""
    model = {
        "session": row.key,
        "kernel": row.kernel,
        "kernel_id": kernel_id,
        "state": row.state,
        "cause": row.cause,
        "isolation": row.isolation,
        "created_at": row.created_at,
        "last_activity": row.last_activity,
        "execution_count": row.execution_count,
        "queue_length": queue_length,
        "limits": row.limits,
        "metadata": row.metadata,
        "head": row.head.hex(),
    }
    return model if problem is None else {**model, "problem": problem}
