"""Traces, as the gateway sees them: what is told of requests, claims and cells, and who asked for them.

A `Tracer` may do nothing: `Untraced` is used unless an operator switches traces on, and costs a call. The one
that makes spans is ``server.tracing``. Ids and causes are told, never code, output, queries or tokens.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from tornado.httputil import HTTPServerRequest

from cellgate.execution.run import RunEnd
from cellgate.http.described import IsToken, nothing_known
from cellgate_kernels.pool import ClaimEnd

LONGEST_TRACEPARENT = 256
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A client's own span, of which a request's span becomes a child."""

    trace: int
    span: int
    sampled: bool


def parse_traceparent(header: str | None) -> TraceParent | None:
    """The value of a ``traceparent`` header (W3C Trace Context); None for one that is not valid.

    Of later versions the known beginning is read, as the standard asks.
    """
    if header is None or len(header) > LONGEST_TRACEPARENT:
        return None
    match = _TRACEPARENT.fullmatch(header)
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None) or not (int(trace, 16) and int(span, 16)):
        return None
    return TraceParent(int(trace, 16), int(span, 16), bool(int(flags, 16) & _SAMPLED))


class RequestSpan(Protocol):
    """One request that is being answered."""

    def end(self, status: int, reason: str | None) -> None:
        """It was answered, with an error of this reason if there is one."""


class Tracer(Protocol):
    """Makes spans. It must be quick and raise nothing."""

    def request(
        self, request: HTTPServerRequest, principal: str, is_token: IsToken = nothing_known
    ) -> RequestSpan | None:
        """A request begins, and the calling task works for it from now on. Its span, if it has one."""

    def origin(self) -> object:
        """What the calling task works for, to be given back later."""

    def within(self, origin: object) -> AbstractContextManager[object]:
        """Within it, the calling task works for `origin`."""

    def cell(self, end: RunEnd, commit_seconds: float) -> None:
        """A cell has run, and its end was committed just now."""

    def claim(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        """The calling task has claimed a kernel, just now."""


class Untraced:
    """Makes no spans."""

    def __init__(self) -> None:
        self._nothing = nullcontext()

    def request(
        self, request: HTTPServerRequest, principal: str, is_token: IsToken = nothing_known
    ) -> RequestSpan | None:
        """None."""
        return None

    def origin(self) -> object:
        """Nothing."""
        return None

    def within(self, origin: object) -> AbstractContextManager[object]:
        """Changes nothing."""
        return self._nothing

    def cell(self, end: RunEnd, commit_seconds: float) -> None:
        """Does nothing."""

    def claim(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        """Does nothing."""
