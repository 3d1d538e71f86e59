"""Compares what is asked of a session with the live session of that key.

Whoever asks for a session with limits, variables, secrets or metadata must not go on with one that has
others. Kernel, network, checkpoints and workspace are compared by ``registry``, for everybody; the rest only
where a client says all that it wants: doors add metadata of their own, and the Jupyter protocol finds a
session by its path alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from cellgate.errors import Conflict
from cellgate.execution.limits import SessionLimits, named_limits
from cellgate.sessions.session import Session
from cellgate.wire.models import SessionBody

MOST_NAMED = 5
MOST_LENGTH = 64


def check_agreement(session: Session, body: SessionBody) -> None:
    """Raise Conflict unless the session has every limit, variable, secret and field of metadata of `body`.

    The message names what differs, without values. The session may have more than `body` asks for.
    """
    different = [f"{part} ({_listed(names)})" for part, names in _differences(session, body) if names]
    if different:
        raise Conflict(
            f"Session {session.row.key!r} exists with other {', '.join(different)}; delete it first, choose"
            " another key, or leave out what it was created with"
        )


def _differences(session: Session, body: SessionBody) -> Iterator[tuple[str, list[str]]]:
    had = dict(session.slot.profile.env)
    yield "env", [name for name, value in (body.env or {}).items() if had.get(name) != value]
    if body.limits is not None:
        limits = SessionLimits.from_wire(session.row.limits).to_wire()
        asked = named_limits(SessionLimits.from_wire(session.row.limits), body.limits).to_wire()
        yield "limits", [name for name, value in asked.items() if limits[name] != value]
    secrets = () if session.slot.secrets is None else session.slot.secrets.names
    yield "secrets", [name for name in body.secrets or () if name not in secrets]
    metadata = session.row.metadata or {}
    missing = object()
    yield (
        "metadata",
        [name for name, value in (body.metadata or {}).items() if metadata.get(name, missing) != value],
    )


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= MOST_LENGTH else f"{name[:MOST_LENGTH]}..." for name in names[:MOST_NAMED]]
    return ", ".join(shown) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
