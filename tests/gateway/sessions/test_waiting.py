"""In line for a kernel, through HTTP: what a cell is told while it waits, and how its timeout counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import serving
from tests.support.server import IN_TIME, GatewayProcess, until


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with room for two kernels."""
    data = tmp_path_factory.mktemp("narrow") / "data"
    with serving(data, pool_size=0, max_kernels=2, claim_timeout=120) as gateway:
        yield gateway


def waiting(gateway: GatewayProcess) -> int:
    """How many claims wait for a kernel."""
    number: int = gateway.get("/v1/info").json()["pool"]["waiting"]
    return number


def told(gateway: GatewayProcess, session: str) -> list[str]:
    """The executions that told a position in line, so far."""
    return [event["execution"] for event in gateway.recorded(session) if "waiting_for" in event]


def test_a_cell_in_line_tells_its_position_and_keeps_to_its_timeout(narrow: GatewayProcess) -> None:
    narrow.execute("holder", "1")
    lost = narrow.execute("lost", "import os; os._exit(1)")
    assert lost["status"] == "died"
    with ThreadPoolExecutor() as threads:
        # A dead kernel keeps its place until the next cell of its session: this one gets it.
        other = threads.submit(narrow.post, "/v1/sessions", {"session": "other"})
        until(lambda: waiting(narrow) == 1, "nobody waits")
        late = narrow.execute("lost", "1", timeout=IN_TIME)
        assert (late["status"], late["cause"], late["started_at"]) == ("timeout", "no_kernel", None)
        assert "in line" in late["error"]["evalue"]
        assert other.result(60).status == 201

        refusal = narrow.post("/v1/sessions/new/execute", {"code": "1", "timeout": 0.5})
        assert (refusal.status, refusal.json()["reason"]) == (503, "pool_exhausted")
        assert int(refusal.headers["Retry-After"]) >= 1
        assert narrow.get("/v1/sessions/new").status == 404
        assert waiting(narrow) == 0

        request = {"code": "'ran'", "timeout": 100}
        streamed = threads.submit(
            narrow.post, "/v1/sessions/lost/execute", request, headers={"Accept": "application/x-ndjson"}
        )
        until(lambda: waiting(narrow) == 1, "it does not wait")
        until(lambda: len(told(narrow, "lost")) == 2, "no position of its own")
        assert narrow.get("/v1/info").json()["pool"]["longest_wait"] > 0
        assert narrow.delete("/v1/sessions/holder").status == 204
        events = [json.loads(line) for line in streamed.result(100).body.splitlines()]
    positions = [event["position"] for event in events if event["type"] == "queued"]
    assert positions == [0, 0]
    assert [event.get("waiting_for") for event in events if event["type"] == "queued"] == [None, "kernel"]
    assert events[-1]["status"] == "ok"
    checked = narrow.get("/v1/sessions/lost/audit/verify").json()
    assert checked["valid"]
    cells = narrow.get("/v1/sessions/lost/notebook").json()["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["import os; os._exit(1)", "1", "'ran'"]
