"""Spans for OpenTelemetry, sent by OTLP over HTTP; needs the extra ``otel``.

Switched on by ``--tracing``, or by the standard variable that names a collector. The SDK's own variables
(``OTEL_*``) say where to and how much. Spans are sent by a thread, at most 2048 wait, and those that a slow
collector has no room for are dropped: no request ever waits for it.

    request            from the headers to the answer; a child of the client's span if it sent a traceparent
    |-- claim          of a kernel
    `-- run            of a cell, from sending it to its end
        `-- commit     of the cell's end

A cell that came by WebSocket, or that runs after its request was answered, has a trace of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tornado.httputil import HTTPServerRequest

from cellgate.errors import OtelMissing
from cellgate.execution.cell_record import RunEnd
from cellgate.http.described import IsToken, method_of, nothing_known, path_of
from cellgate.http.tracing import RequestSpan, Tracer
from cellgate_kernels.pool.pool import ClaimEnd
from cellgate_kernels.protocol.execution import Status

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

COLLECTORS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
CLOSE_SECONDS = 3.0
"""How long a shutdown waits for the collector to take the last spans."""
NANOSECONDS = 1e9
FAILED = frozenset({Status.TIMEOUT, Status.DIED})
"""Ends of a cell that are no decision of the cell or of its user."""


def provider(version: str, *, asked: bool, environment: Mapping[str, str]) -> TracerProvider | None:
    """Return a provider that sends spans; None if none is named. Raises OtelMissing if `asked` in vain."""
    named = any(environment.get(name) for name in COLLECTORS)
    if not (asked or named) or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not _installed():
        if asked:
            raise OtelMissing("Traces need the extra: pip install 'cellgate[server,otel]'")
        logger.warning("A collector of traces is named, but the extra is missing: 'cellgate[otel]'")
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    attributes = {"service.version": version}
    if not environment.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "cellgate"
    made = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return made


def _installed() -> bool:
    try:
        return all(find_spec(name) is not None for name in PACKAGES)
    except ModuleNotFoundError:  # the parent of one
        return False


async def close(provider: TracerProvider) -> None:
    """Send the last spans, for at most `CLOSE_SECONDS`: a collector that is gone must not delay the end."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def work() -> None:
        try:
            provider.shutdown()
        finally:
            loop.call_soon_threadsafe(done.set)

    # Not in an executor: its threads are waited for at the end of the process.
    threading.Thread(target=work, name="traces-end", daemon=True).start()
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await done.wait()
    except TimeoutError:
        logger.warning("The last traces could not be sent in time")


class OpenTelemetry(Tracer):
    """Makes spans with a provider of the SDK's."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace  # noqa: PLC0415 - only with the extra
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - see above

        super().__init__()
        self._context = context
        self._trace = trace
        self._tracer = provider.get_tracer("cellgate")
        self._clients = tracecontext.TraceContextTextMapPropagator()

    def request(
        self, request: HTTPServerRequest, principal: str, is_token: IsToken = nothing_known
    ) -> RequestSpan:
        """Begin a span. The task of the request has a context of its own, so nobody need restore it."""
        trace = self._trace
        header = request.headers.get("traceparent", "")
        above = self._clients.extract({"traceparent": header}, self._context.Context())
        attributes = {
            "http.request.method": method_of(request),
            "url.path": path_of(request, is_token),
            "cellgate.principal": principal,
        }
        span = self._tracer.start_span("request", above, trace.SpanKind.SERVER, attributes)
        self._context.attach(trace.set_span_in_context(span, above))
        return _Request(span)

    def origin(self) -> object:
        span = self._trace.get_current_span()
        return None if getattr(span, "end_time", None) is not None else span.get_span_context()

    def within(self, origin: object) -> AbstractContextManager[object]:
        return self._within(origin)

    @contextmanager
    def _within(self, origin: object) -> Iterator[None]:
        token = self._context.attach(self._below(origin))
        try:
            yield
        finally:
            self._context.detach(token)

    def _below(self, origin: object) -> Context:
        """Return the context of children of a span."""
        empty = self._context.Context()
        if not isinstance(origin, self._trace.SpanContext) or not origin.is_valid:
            return empty
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(origin), empty)

    def cell(self, end: RunEnd, commit_seconds: float) -> None:
        committed = time.time_ns()
        ended = committed - int(commit_seconds * NANOSECONDS)
        started = ended - int((end.run_seconds or 0.0) * NANOSECONDS)
        attributes: dict[str, str | float] = {
            "cellgate.principal": end.principal,
            "cellgate.session": end.session,
            "cellgate.execution": end.execution,
            "cellgate.status": end.status.value,
            "cellgate.queue_seconds": end.queue_seconds,
        }
        if end.kernel is not None:
            attributes["cellgate.kernel"] = end.kernel
        if end.cause is not None:
            attributes["cellgate.cause"] = end.cause
        run = self._span("run", self._below(end.origin), started, attributes)
        if end.status in FAILED:
            run.set_status(self._trace.StatusCode.ERROR, end.cause)
        run.end(ended)
        below = self._below(run.get_span_context())
        self._span("commit", below, ended, {"cellgate.execution": end.execution}).end(committed)

    def claim(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        ended = time.time_ns()
        attributes = {"cellgate.end": end.value}
        if kernel is not None:
            attributes["cellgate.kernel"] = kernel
        started = ended - int(seconds * NANOSECONDS)
        self._span("claim", self._below(self.origin()), started, attributes).end(ended)

    def _span(self, name: str, above: Context, started: int, attributes: Mapping[str, str | float]) -> Span:
        span: Span = self._tracer.start_span(name, above, attributes=attributes, start_time=started)
        return span


class _Request:
    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, status: int, reason: str | None) -> None:
        """End the span with the answer's status."""
        self._span.set_attribute("http.response.status_code", status)
        if reason is not None:
            self._span.set_attribute("error.type", reason)
        self._span.end()
