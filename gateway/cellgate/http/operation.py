"""What a method of a handler takes and answers, said beside its code: the source of `/openapi.json`.

The decorator `operation` stands above the method. What it says is not only for readers: `BaseHandler` refuses
query parameters that it does not name. ``openapi`` makes the document of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cellgate.wire.base import Query
from cellgate.wire.errors import (
    Forbidden,
    NoOpenFiles,
    NotAuthenticated,
    NotFound,
    NotRecorded,
    QueueFull,
    RecordGone,
    ShuttingDown,
    StorageError,
    StorageFull,
    TooLarge,
    UnsupportedMedia,
)
from cellgate_kernels.errors import (
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

ALWAYS: Errors = (InvalidInput, Forbidden, TooLarge, UnsupportedMedia, GatewayFault)
"""What any request may be refused with, before or apart from what it asks for."""
READS: Errors = (NotFound, StorageError, NoOpenFiles, RecordGone)
"""What comes of looking at a session and its record."""
WRITES: Errors = (*READS, StorageFull, NotRecorded, ShuttingDown)
"""What comes of changing a session."""
STARTS: Errors = (*WRITES, PoolExhausted, KernelStartFailed, BackendUnavailable, ImageMissing, KernelDied)
"""What comes of a request that may have a kernel started for it."""
RUNS: Errors = (*STARTS, QueueFull)
"""What comes of running a cell."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One way a method answers. `content`: a type for each media type, None where no type describes it."""

    status: int
    description: str
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method. `body`: what the request's body is, by media type. `headers`: of the request, described.

    `errors` besides those of every operation. `public`: needs no token.
    """

    summary: str
    answers: tuple[Answer, ...]
    description: str = ""
    query: type[Query] = Query
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    errors: Errors = ()
    public: bool = False

    @property
    def all_errors(self) -> Errors:
        """What it may be refused with."""
        return (*ALWAYS, *(() if self.public else (NotAuthenticated,)), *self.errors)


def operation(summary: str, *answers: Answer, **more: Any) -> Callable[[F], F]:
    """Declare the method below. `more`: fields of `Operation`."""
    declared = Operation(summary, answers, **more)

    def attach(method: F) -> F:
        method.operation = declared  # type: ignore[attr-defined]
        return method

    return attach


def operation_of(handler: object, method: str) -> Operation | None:
    """What a handler, or its class, declares for this method; None where it has nothing to say."""
    declared = getattr(getattr(handler, method.lower(), None), "operation", None)
    return declared if isinstance(declared, Operation) else None
