"""Traces: which spans there are, whose children they are, what they say, and what they never say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from cellgate.errors import OtelMissing
from cellgate.http.metrics import Metrics
from cellgate.server import tracing
from cellgate.server.observing import Observer
from cellgate_kernels.testing import virtual_time
from tests.core.world import World
from tests.support.requirements import require

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
# ---- off without the extra, or without a collector


def no_sdk(name: str) -> None:
    """As `find_spec` where nothing is installed."""


@pytest.mark.parametrize("environment", [{}, dict.fromkeys(tracing.COLLECTORS, "")])
def test_there_are_none_unless_somebody_wants_them(environment: Mapping[str, str]) -> None:
    assert tracing.provider("1", asked=False, environment=environment) is None


def test_the_sdks_own_switch_is_obeyed() -> None:
    assert tracing.provider("1", asked=True, environment={"OTEL_SDK_DISABLED": "true"}) is None


def test_to_ask_for_them_without_the_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "find_spec", no_sdk)
    with pytest.raises(OtelMissing, match=r"cellgate\[server,otel\]"):
        tracing.provider("1", asked=True, environment={})


def test_a_collector_without_the_extra_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Variables of a whole machine must not keep a gateway from starting."""
    monkeypatch.setattr(tracing, "find_spec", no_sdk)
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert tracing.provider("1", asked=False, environment=environment) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# ---- spans


class Collected:
    """A tracer, and the spans that it has made, by name."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = tracing.OpenTelemetry(provider)

    def named(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def text(self) -> str:
        return "".join(span.to_json() for span in self._exporter.get_finished_spans())


@pytest.fixture
def collected() -> Collected:
    if not tracing._installed():
        require("otel", "OpenTelemetry's SDK is not installed")
    return Collected()


@pytest.fixture
def world(tmp_path: Path, collected: Collected) -> Iterator[World]:
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open(observer=Observer(Metrics(), collected.tracer)))
        yield made
        made.run(made.close())
        made.check()


def headed(method: str, path: str, parent: str | None = None) -> HTTPServerRequest:
    headers = HTTPHeaders({"Host": "here"} | ({} if parent is None else {"traceparent": parent}))
    return HTTPServerRequest(start_line=RequestStartLine(method, path, "HTTP/1.1"), headers=headers)


async def request(world: World, collected: Collected, code: str, parent: str | None = None) -> None:
    """What a handler does, in a task of its own."""

    async def handle() -> None:
        span = collected.tracer.request(headed("POST", "/v1/sessions/s/execute", parent), "ada")
        asked = world.ask("s", code, timeout=5.0)
        assert asked.task is not None
        await asked.task
        span.end(200, None)

    await asyncio.create_task(handle())


@pytest.mark.parametrize(
    ("header", "is_child"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"01-{TRACE}-{SPAN}-01-more", True),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        (f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01", False),
        ("", False),
        (None, False),
    ],
)
def test_a_clients_traceparent_is_checked(
    world: World, collected: Collected, header: str | None, is_child: bool
) -> None:
    world.run(request(world, collected, "hello", header))
    [span] = collected.named("request")
    parent = span.parent and (format(span.parent.trace_id, "032x"), format(span.parent.span_id, "016x"))
    assert parent == ((TRACE, SPAN) if is_child else None)


def test_what_a_client_does_not_sample_is_not_sent(world: World, collected: Collected) -> None:
    world.run(request(world, collected, "hello", f"00-{TRACE}-{SPAN}-00"))
    assert collected.named("request") == []


def test_a_request_its_claim_and_its_cell_are_one_trace(world: World, collected: Collected) -> None:
    """Below the client's own span; the second request finds a kernel, and has no claim."""
    world.run(request(world, collected, "slow 2", f"00-{TRACE}-{SPAN}-01"))
    world.run(request(world, collected, "hello"))
    first, second = collected.named("request")
    [claim] = collected.named("claim")
    run, other_run = collected.named("run")
    commit, other_commit = collected.named("commit")
    assert (first.parent.trace_id, first.parent.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert {span.context.trace_id for span in (first, claim, run, commit)} == {int(TRACE, 16)}
    assert [claim.parent.span_id, run.parent.span_id] == [first.context.span_id] * 2
    assert commit.parent.span_id == run.context.span_id
    assert second.parent is None
    assert {span.context.trace_id for span in (other_run, other_commit)} == {second.context.trace_id}
    assert (run.end_time - run.start_time) / 1e9 == pytest.approx(2, abs=0.1)


def test_spans_have_ids_and_nothing_that_a_cell_says(world: World, collected: Collected) -> None:
    world.run(request(world, collected, "hello s3cr3t"))
    [span] = collected.named("run")
    asked = world.asked[0].run
    kernel = world.kernel("s")
    assert asked is not None
    assert kernel is not None
    attributes = dict(span.attributes)
    assert attributes.pop("cellgate.queue_seconds") >= 0
    assert attributes == {
        "cellgate.principal": "ada",
        "cellgate.session": "s",
        "cellgate.execution": asked.id,
        "cellgate.kernel": kernel.id,
        "cellgate.status": "ok",
    }
    assert "s3cr3t" not in collected.text()


def test_a_kernel_that_is_replaced_for_a_cell_is_claimed_for_its_request(
    world: World, collected: Collected
) -> None:
    """By the session's own task, which began with another request."""
    world.run(request(world, collected, "hello"))
    kernel = world.kernel("s")
    assert kernel is not None
    kernel.die()
    world.pass_time(1)
    world.run(request(world, collected, "hello"))
    _, second = collected.named("request")
    _, claim = collected.named("claim")
    assert claim.parent.span_id == second.context.span_id


def test_a_cell_that_nobody_requested_has_a_trace_of_its_own(world: World, collected: Collected) -> None:
    """As one of a WebSocket, whose span ended when it was opened."""

    async def socket() -> None:
        collected.tracer.request(headed("GET", "/api/kernels/s/channels"), "ada").end(101, None)
        asked = world.ask("s", "hello")
        assert asked.task is not None
        await asked.task

    world.run(socket())
    [span] = collected.named("run")
    assert span.parent is None


def test_what_a_client_does_not_sample_is_not_collected(world: World, collected: Collected) -> None:
    world.run(request(world, collected, "hello", f"00-{TRACE}-{SPAN}-00"))
    assert collected.text() == ""


def test_a_cell_that_reaches_a_limit_is_an_error(world: World, collected: Collected) -> None:
    world.run(request(world, collected, "never"))
    [span] = collected.named("run")
    assert (span.attributes["cellgate.status"], span.attributes["cellgate.cause"]) == (
        "timeout",
        "cell_timeout",
    )
    assert span.status.status_code.name == "ERROR"
