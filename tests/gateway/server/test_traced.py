"""A gateway with a collector of traces: real requests, sent by OTLP over HTTP, and one that is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cellgate.server import tracing
from tests.conftest import StartGateway
from tests.support.commands import INSTALLED
from tests.support.requirements import require
from tests.support.server import TOKEN, until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(ThreadingHTTPServer):
    """Takes what is sent, as bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.received: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[tuple[Any, Any]]:
        """Resource and span of all that was received."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        for path, body in tuple(self.received):
            assert path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                found += [(resource.resource, span) for scope in resource.scope_spans for span in scope.spans]
        return found


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    if not tracing._installed():
        require("otel", "OpenTelemetry's SDK is not installed")
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield server
        server.shutdown()
        thread.join()


def attributes(of: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in of.attributes}


def test_spans_reach_a_collector(collector: Collector, start_gateway: StartGateway) -> None:
    gateway = start_gateway(command=INSTALLED)
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    code = {"code": "print('s3cr3t-output')", "env": {"KEY": "s3cr3t-env"}}
    assert gateway.post("/v1/sessions/s/execute?plain=true", code, headers=headers).status == 200
    assert gateway.get("/v1/sessions/missing", headers=headers).status == 404
    # Neither strangers nor probes are traced.
    assert gateway.get("/v1/sessions?token=s3cr3t-query", token="s3cr3t-token", headers=headers).status == 401
    assert gateway.get("/healthz", token=None, headers=headers).status == 200
    until(lambda: len(collector.spans()) == 5, "not all spans arrive")
    assert gateway.stop() == 0
    found = collector.spans()
    spans = [span for _, span in found]
    assert sorted(span.name for span in spans) == ["claim", "commit", "request", "request", "run"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    requests = {attributes(span)["url.path"]: span for span in spans if span.name == "request"}
    assert set(requests) == {"/v1/sessions/s/execute", "/v1/sessions/missing"}
    assert {span.parent_span_id.hex() for span in requests.values()} == {SPAN}
    assert attributes(requests["/v1/sessions/missing"])["error.type"] == "not_found"
    assert {attributes(resource)["service.name"] for resource, _ in found} == {"cellgate"}
    everything = b"".join(body for _, body in collector.received)
    assert b"s3cr3t" not in everything
    assert TOKEN.encode() not in everything


@pytest.mark.nightly
def test_a_collector_that_is_gone_delays_nothing(
    collector: Collector, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    gateway = start_gateway(command=INSTALLED)
    assert gateway.execute("s", "1 + 1")["text"] == "2"
    assert gateway.stop() == 0
