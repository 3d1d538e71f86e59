"""The gateway's view of traces: reports of requests, claims and cells, and of the request behind each.

A `Tracer` makes no spans: it is used unless an operator switches traces on, and costs one call.
``server.tracing`` makes spans. Reports have ids and causes, never code, output, queries or tokens.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tornado.httputil import HTTPServerRequest

from cellgate.execution.cell_record import RunEnd
from cellgate.http.described import IsToken, nothing_known
from cellgate_kernels.pool.pool import ClaimEnd


class RequestSpan(Protocol):
    """One request that is being answered."""

    def end(self, status: int, reason: str | None) -> None:
        """End the span of an answered request, with the reason of its error if there is one."""


class Tracer:
    """Makes no spans: override the methods. They must be quick and raise nothing."""

    def __init__(self) -> None:
        self._nothing = nullcontext()

    def request(
        self, request: HTTPServerRequest, principal: str, is_token: IsToken = nothing_known
    ) -> RequestSpan | None:
        """Begin a request, for which the calling task works from now on; return its span, if any."""
        return None

    def origin(self) -> object:
        """Return the work that the calling task is for, to be given to `within` later."""
        return None

    def within(self, origin: object) -> AbstractContextManager[object]:
        """Return a context in which the calling task works for `origin`."""
        return self._nothing

    def cell(self, end: RunEnd, commit_seconds: float) -> None:
        """Trace a cell that has run, and whose end was committed just now."""

    def claim(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        """Trace a claim of the calling task that has ended just now."""
