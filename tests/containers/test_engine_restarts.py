"""Restarts of the container engine itself, with and without live-restore: an engine of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from docker.api.client import APIClient

from tests.conftest import StartGateway
from tests.support.engines import OwnEngine
from tests.support.nightly import mostly_nightly
from tests.support.server import GatewayProcess, until

GO = "import time, os\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
RUNNING = f"for n in range(50): print(n, flush=True)\n{GO}for n in range(50, 100): print(n)\nn"


def _engine(live_restore: bool) -> Iterator[OwnEngine]:
    engine = OwnEngine(live_restore=live_restore)
    try:
        engine.start()
        yield engine
    finally:
        engine.end()


@pytest.fixture(scope="module")
def live_engine(docker: None) -> Iterator[OwnEngine]:
    """Its containers outlive dockerd."""
    yield from _engine(live_restore=True)


@pytest.fixture(scope="module")
def plain_engine(docker: None) -> Iterator[OwnEngine]:
    """Its containers end with dockerd, or else with its next start."""
    yield from _engine(live_restore=False)


def leave(engine: OwnEngine, how: str) -> None:
    """dockerd stops, or crashes."""
    engine.stop() if how == "stop" else engine.kill()


def missing(gateway: GatewayProcess) -> list[str]:
    """What the gateway says it lacks."""
    named = gateway.get("/readyz", token=None).json()["missing"]
    assert isinstance(named, list)
    return named


def until_gone(gateway: GatewayProcess) -> None:
    """Return when the gateway has noticed that its engine is gone; nothing new is begun then."""
    until(lambda: "container_engine" in missing(gateway), "the gateway does not see that its engine is gone")
    refused = gateway.post("/v1/sessions", {"session": "new"})
    assert (refused.status, refused.reason) == (503, "kernel_start_failed")


def until_back(gateway: GatewayProcess) -> None:
    """Return when the gateway has noticed that its engine is back."""
    until(lambda: missing(gateway) == [], "the gateway does not see that its engine is back")


def begin(start_gateway: StartGateway, engine: OwnEngine) -> tuple[GatewayProcess, str]:
    """A gateway with a session that is idle, and one whose cell runs."""
    gateway = start_gateway(backend="docker", pool_size=0, burst_size=0, **engine.options)
    gateway.execute("idle", "x = 41")
    gateway.execute("busy", "x = 1")
    execution = gateway.submit("busy", RUNNING)
    until(lambda: len(printed(gateway, execution)) == 50, "the cell does not print")
    return gateway, execution


def printed(gateway: GatewayProcess, execution: str) -> list[str]:
    """The lines of a cell of the session "busy" so far."""
    return [line for e in gateway.recorded("busy") if e["execution"] == execution for line in text(e)]


def text(event: dict[str, Any]) -> list[str]:
    """The lines of an event of a stream."""
    return str(event["text"]).split() if event["type"] == "stream" else []


def containers(engine: OwnEngine) -> int:
    """How many there are."""
    client = APIClient(base_url=engine.url)
    try:
        return len(client.containers(all=True))
    finally:
        client.close()


@pytest.mark.parametrize("how", mostly_nightly(["stop", "kill"], ["kill"]))
def test_with_live_restore_nothing_is_lost(
    live_engine: OwnEngine, start_gateway: StartGateway, how: str
) -> None:
    gateway, execution = begin(start_gateway, live_engine)
    gateway.execute("dying", "import os")
    last = gateway.submit("dying", f"{GO}os._exit(3)")
    leave(live_engine, how)
    until_gone(gateway)
    assert gateway.execute("idle", "x += 1; x")["text"] == "42"
    (gateway.workspace("dying") / "go").touch()
    live_engine.start()
    until_back(gateway)

    (gateway.workspace("busy") / "go").touch()
    result = gateway.ended("busy", execution)
    assert (result["status"], result["text"].splitlines()[-1]) == ("ok", "99")
    assert result["stdout"].split() == [str(n) for n in range(100)]
    died = gateway.ended("dying", last)
    assert (died["status"], died["cause"]) == ("died", "kernel_exit")
    assert "code 3" in died["error"]["evalue"]
    assert gateway.execute("idle", "x")["text"] == "42"
    assert gateway.execute("new", "1 + 1")["text"] == "2"
    assert gateway.stop() == 0
    assert containers(live_engine) == 0


@pytest.mark.parametrize("how", mostly_nightly(["stop", "kill"], ["stop"]))
def test_without_it_sessions_end_with_a_cause_and_go_on_with_fresh_kernels(
    plain_engine: OwnEngine, start_gateway: StartGateway, how: str
) -> None:
    gateway, execution = begin(start_gateway, plain_engine)
    leave(plain_engine, how)
    until_gone(gateway)
    plain_engine.start()
    until_back(gateway)

    result = gateway.ended("busy", execution)
    assert result["status"] == "died"
    assert result["cause"] in {"kernel_exit", "engine_lost"}, result
    assert result["stdout"].split() == [str(n) for n in range(50)]
    until(lambda: gateway.model("idle")["state"] == "dead", "the end of an idle kernel is not seen")
    after = gateway.execute("idle", "'x' in globals()")
    assert (after["text"], after["kernel"]["replaced"]) == ("False", True)
    assert gateway.execute("new", "1 + 1")["text"] == "2"
    assert gateway.stop() == 0
    assert containers(plain_engine) == 0
