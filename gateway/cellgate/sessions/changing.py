"""Changes a live session as its user asks: title, metadata and times. The new values are in the record.

``http.v1.sessions`` takes the request; ``terms`` has the ceilings.
"""

from __future__ import annotations

from cellgate.errors import Conflict
from cellgate.execution.checks import check_metadata, check_title
from cellgate.sessions.model import TITLE
from cellgate.sessions.session import Session
from cellgate.sessions.state import SessionState
from cellgate.sessions.terms import SessionTerms
from cellgate.wire.models import SessionChangeBody
from cellgate_kernels.kernel.kernel import Kernel


def change_session(session: Session, terms: SessionTerms, body: SessionChangeBody) -> None:
    """Change a live session as the body says, and record that if anything differs.

    Raises InvalidInput, Conflict for a session without a kernel, and StorageError.
    """
    row = session.row
    check_metadata(body.metadata)
    metadata = row.metadata if body.metadata is None else body.metadata
    if body.title is not None:
        title = check_title(body.title)
        rest = {name: value for name, value in (metadata or {}).items() if name != TITLE}
        metadata = {**rest, TITLE: title} if title else rest
        check_metadata(metadata)
    limits = terms.changed_limits(row.principal, session.limits, body.limits)
    if (metadata, limits) == (row.metadata, session.limits):
        return
    kernel = _kernel(session)
    if kernel is None:
        raise Conflict(f"Session {row.key!r} has no kernel now; change it once it has one")
    session.record.revise(metadata, limits, kernel)


def entitle(session: Session, title: str, *, rename: bool = True) -> None:
    """Give a session its document's title, and record that; without `rename` only if it has none.

    A session without a kernel keeps what it has: no event could tell of the change. Raises StorageError.
    """
    known, kernel = session.row.metadata or {}, _kernel(session)
    if kernel is not None and known.get(TITLE) != title and (rename or TITLE not in known):
        session.record.revise({**known, TITLE: title}, session.limits, kernel)


def _kernel(session: Session) -> Kernel | None:
    """Return the kernel of a session that goes on with it."""
    return None if session.state is SessionState.DEAD or session.ending else session.kernel
