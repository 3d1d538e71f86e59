"""Checks whether a request for a session may use the live session of that key.

No request gets a session of another kernel, network, workspace or way of making checkpoints than it asked
for. Limits, variables, secrets and metadata are compared, too, where a client names all that it wants: doors
add metadata of their own, and the Jupyter protocol finds a session by its path alone. ``registry`` calls
these checks once it has found the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from cellgate.errors import Conflict
from cellgate.execution.limits import SessionLimits, named_limits
from cellgate.record.rows import SessionRow
from cellgate.sessions.model import AUTO, named_in
from cellgate.sessions.state import SessionCore
from cellgate.wire.models import SessionBody
from cellgate_kernels.specs.catalog import KernelspecCatalog

S = TypeVar("S", bound=SessionCore)

MOST_NAMED = 5
MOST_LENGTH = 64


def check_agreement(
    session: S, body: SessionBody, kernels: KernelspecCatalog, sharer: SessionRow | None, *, exact: bool
) -> S:
    """Return the session if it is what `body` asks for. Raises Conflict that names each difference.

    `kernels`: finds the kernel for a body that names a language. `sharer`: the session whose workspace is
    asked for. `exact`: it must also have every limit, variable, secret and field of metadata of `body`; it
    may have more.
    """
    if (difference := _of_another_kind(session, body, kernels, sharer)) is not None:
        raise Conflict(
            f"Session {session.row.key!r} exists with {difference}; delete it first, or choose another key"
        )
    differences = _differences(session, body) if exact else ()
    if different := [f"{part} ({_listed(names)})" for part, names in differences if names]:
        raise Conflict(
            f"Session {session.row.key!r} exists with other {', '.join(different)}; delete it first, choose"
            " another key, or leave out what it was created with"
        )
    return session


def names_kernel(body: SessionBody) -> bool:
    """Return whether the body names a kernel, as an environment does."""
    return not (body.kernel is None and body.language is None and body.environment is None)


def _of_another_kind(
    session: SessionCore, body: SessionBody, kernels: KernelspecCatalog, sharer: SessionRow | None
) -> str | None:
    """Name the property of a session that contradicts the request; None if they agree."""
    if sharer is not None and sharer.folder != session.row.folder:
        return "another workspace"
    kernel = session.row.kernel
    if _chosen(session, body, kernels) != kernel:
        return f"kernel {kernel!r}"
    network = "allow" if session.slot.profile.egress else "none"
    if body.network not in (None, network):
        return f"network {network!r}"
    if body.checkpoint not in (None, AUTO if session.undo.automatic else "none"):
        return "other `checkpoint`"
    return None


def _chosen(session: SessionCore, body: SessionBody, kernels: KernelspecCatalog) -> str:
    """Return the kernelspec that the body asks for; the session's own if it names none."""
    kernel, asked = session.row.kernel, body.environment
    if asked is not None:
        if asked.lower() == kernel and named_in(session.row) and kernel not in kernels.environments():
            return kernel  # it goes on with an environment that has been removed since
        return kernels.choose_environment(asked, body.kernel, body.language)
    return kernels.choose(body.kernel, body.language, kernel) if names_kernel(body) else kernel


def _differences(session: SessionCore, body: SessionBody) -> Iterator[tuple[str, list[str]]]:
    had = dict(session.slot.profile.env)
    yield "env", [name for name, value in (body.env or {}).items() if had.get(name) != value]
    if body.limits is not None:
        limits = SessionLimits.from_wire(session.row.limits).to_wire()
        asked = named_limits(SessionLimits.from_wire(session.row.limits), body.limits).to_wire()
        yield "limits", [name for name, value in asked.items() if limits[name] != value]
    secrets = () if session.slot.secrets is None else session.slot.secrets.names
    yield "secrets", [name for name in body.secrets or () if name not in secrets]
    metadata, missing = session.row.metadata or {}, object()
    given = (body.metadata or {}).items()
    yield "metadata", [name for name, value in given if metadata.get(name, missing) != value]


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= MOST_LENGTH else f"{name[:MOST_LENGTH]}..." for name in names[:MOST_NAMED]]
    return ", ".join(shown) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
