"""The decorator `operation`, which declares a handler's method: its request and its answers.

The declarations are not only documentation, from which ``openapi`` generates `/openapi.json`: `BaseHandler`
refuses query parameters that are not declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar, cast

from cellgate import errors
from cellgate.identity.principal import Permission
from cellgate.wire.base import Query
from cellgate.wire.queries import SessionQuery
from cellgate_kernels.base.errors import (
    BackendUnavailable,
    CellgateError,
    GatewayFault,
    ImageMissing,
    InvalidInput,
    KernelDied,
    KernelStartFailed,
    PoolExhausted,
)

F = TypeVar("F", bound=Callable[..., Any])
Errors = tuple[type[CellgateError], ...]

JSON, NDJSON, SSE = "application/json", "application/x-ndjson", "text/event-stream"
ANY_TYPE, BYTES, HTML, TEXT = "*/*", "application/octet-stream", "text/html", "text/plain"
FORM = "multipart/form-data"


class Format(StrEnum):
    """The formats of an answer that may be streamed, by media type."""

    JSON = JSON
    NDJSON = NDJSON
    SSE = SSE


ALWAYS: Errors = (InvalidInput, errors.Forbidden, errors.TooLarge, errors.UnsupportedMedia, GatewayFault)
"""Errors of any request, whatever its purpose."""
OF_A_PRINCIPAL: Errors = (
    errors.NotAuthenticated,
    errors.TooManyAttempts,
    errors.IdentityUnavailable,
    errors.OwnedElsewhere,
    errors.OwnerUnreachable,
    errors.OwnerLost,
    errors.PrincipalQuotaExceeded,
    errors.PrincipalQuotaExceededForNow,
)
"""Errors of any request that needs a token."""
READS: Errors = (errors.NotFound, errors.StorageError, errors.NoOpenFiles, errors.RecordGone)
"""Errors of reading a session and its record."""
WRITES: Errors = (*READS, errors.StorageFull, errors.NotRecorded, errors.ShuttingDown)
"""Errors of changing a session."""
STARTS: Errors = (
    *WRITES,
    errors.Draining,
    errors.NodeFull,
    PoolExhausted,
    KernelStartFailed,
    BackendUnavailable,
    ImageMissing,
    KernelDied,
)
"""Errors of a request for which a kernel may have to be started."""
RUNS: Errors = (*STARTS, errors.QueueFull)
"""Errors of running a cell."""
PACKAGES: Errors = (
    *(errors.PackagesNotAllowed, errors.PackageError, errors.PackageNotFound, errors.PackageConflict),
    *(errors.PackageIndexUnavailable, errors.QuotaExceeded, errors.QueueFull),
)
"""Errors of changing packages."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A JSON object that another standard describes; the document gives it a `name`."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a method. `content`: a type for each media type, None for texts and bytes.

    The first media type is the default if the request names none: generated clients use the first.
    """

    status: int
    description: str
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method. `body`: the type of the request's body, by media type. `headers`: the request's, described.

    `name`: a verb and its object, such as `run_cell`. Generated clients have a function of this name, so it
    must never change. `query`: its parameters, by default the common ones of requests about a session.
    `needs`: the permissions that its sender must have. `errors`: besides the common ones. `public`: needs no
    token.
    """

    name: str
    summary: str
    answers: tuple[Answer, ...]
    description: str = ""
    query: type[Query] = SessionQuery
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[Permission] = frozenset()
    errors: Errors = ()
    public: bool = False

    @property
    def all_errors(self) -> Errors:
        """All errors with which the operation may answer."""
        return (*ALWAYS, *(() if self.public else OF_A_PRINCIPAL), *self.errors)


def operation(
    name: str, summary: str, *answers: Answer, needs: Permission | tuple[Permission, ...] = (), **more: Any
) -> Callable[[F], F]:
    """Declare the decorated method. `more`: fields of `Operation`."""
    permissions = frozenset((needs,) if isinstance(needs, Permission) else needs)
    declared = Operation(name, summary, answers, needs=permissions, **more)

    def attach(method: F) -> F:
        method.operation = declared  # type: ignore[attr-defined]
        return requires(*permissions)(method)

    return attach


def requires(*permissions: Permission) -> Callable[[F], F]:
    """Declare a method's required permissions; without a declaration everybody is refused.

    The method is called only if the request was not refused; else its handler's `check` raises the refusal.
    It is not called either if another gateway has the session, which then answers.
    """

    def attach(method: F) -> F:
        @wraps(method)
        async def checked(handler: Any, *args: str) -> None:
            if handler.relay is not None:
                await handler.relay.finish()
                return
            handler.check()
            try:
                await method(handler, *args)
            except errors.OwnedElsewhere as error:
                await handler.hand_on(error)

        checked.needs = frozenset(permissions)  # type: ignore[attr-defined]
        return cast("F", checked)

    return attach


def needs_of(handler: object, method: str) -> frozenset[Permission] | None:
    """Return the permissions that a handler's method needs; None if it declares nothing."""
    declared = getattr(getattr(handler, method.lower(), None), "needs", None)
    return declared if isinstance(declared, frozenset) else None


def operation_of(handler: object, method: str) -> Operation | None:
    """Return the operation that a handler or its class declares for this method; None if there is none."""
    declared = getattr(getattr(handler, method.lower(), None), "operation", None)
    return declared if isinstance(declared, Operation) else None
