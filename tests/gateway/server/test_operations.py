"""What an operator looks at and relies on: probes, metrics, info, and the pool at its bounds over HTTP."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cellgate.cli.serve.sizing import kernels_for
from cellgate.server import machine
from cellgate_kernels.specs.catalog import data_folder
from tests.conftest import StartGateway, serving
from tests.support.server import GatewayProcess, Response, until

KERNELSPECS = data_folder(Path(sys.prefix)) / "kernels"


def pool_of(gateway: GatewayProcess) -> dict[str, int]:
    pool = gateway.get("/v1/info").json()["pool"]
    assert isinstance(pool, dict)
    return pool


def refused(answer: Response, status: int, reason: str) -> str:
    """The problem's detail."""
    assert (answer.status, answer.reason) == (status, reason), answer.body[:500]
    return str(answer.json()["detail"])


# ---- probes, metrics, info ---------------------------------------------------------------------------------


def test_a_healthy_gateway_says_so(gateway: GatewayProcess) -> None:
    answer = gateway.get("/healthz", token=None)
    assert (answer.status, answer.json()) == (200, {"status": "ok"})
    answer = until(lambda: (a := gateway.get("/readyz", token=None)).status == 200 and a, "not ready")
    assert answer.json() == {"status": "ready", "missing": []}


def metrics(gateway: GatewayProcess) -> dict[tuple[str, ...], float]:
    """All samples by name and label values."""
    answer = gateway.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.body.decode())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_metrics_are_prometheus_text_and_follow_what_happens(start_gateway: StartGateway) -> None:
    gateway, session = start_gateway(), "s"
    before = metrics(gateway)
    assert {state for name, *labels in before if name == "cellgate_kernels" for state in labels} == {
        *("warm", "starting", "in_use", "ending")
    }
    assert {state for name, *labels in before if name == "cellgate_sessions" for state in labels} == {
        *("starting", "idle", "asleep", "busy", "dead", "ended")
    }
    held = gateway.hold(session)
    gateway.get("/v1/sessions/..")
    during = metrics(gateway)
    assert during["cellgate_sessions", "busy"] == before["cellgate_sessions", "busy"] + 1
    assert during["cellgate_kernels", "in_use"] == before["cellgate_kernels", "in_use"] + 1
    counter = "cellgate_http_responses_total"
    assert during[counter, "400"] == before.get((counter, "400"), 0) + 1
    gateway.answer(session, held)
    gateway.ended(session, held)
    until(
        lambda: metrics(gateway)["cellgate_sessions", "idle"] == before["cellgate_sessions", "idle"] + 1,
        "the session does not become idle",
    )


@pytest.mark.alone
def test_the_memory_of_kernels_is_seen(sandbox: None, gateway: GatewayProcess, session: str) -> None:
    """Of a sandbox's processes, from outside it."""
    size = 200_000_000
    gateway.execute(session, f"held = b'x' * {size}")
    names = ("cellgate_largest_kernel_memory_bytes", "cellgate_kernels_memory_bytes")
    until(lambda: all(metrics(gateway)[name,] > size for name in names), "the kernel's memory is not seen")
    assert metrics(gateway)["cellgate_storage_free_bytes",] > 0
    assert metrics(gateway)["cellgate_record_bytes",] > 0
    assert metrics(gateway)["cellgate_http_sent_bytes_total",] > 0
    assert metrics(gateway)["cellgate_record_appended_bytes_total",] > 0
    assert metrics(gateway)["cellgate_loop_lag_seconds_count",] > 0


@pytest.mark.alone
def test_info_tells_what_this_gateway_is(sandbox: None, gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    info = gateway.get("/v1/info").json()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", info["version"])
    assert (info["backend"], info["isolation"]) == ("sandbox", "sandbox")
    assert info["default_kernel"] == "python3"
    assert info["kernelspecs"]["python3"]["language"] == "python"
    assert info["limits"] == gateway.model(session)["limits"]
    assert info["pool"]["in_use"] >= 1
    assert info["pool"]["max_kernels"] == kernels_for(machine.memory())
    assert info["sessions"]["idle"] >= 1


def test_logs_are_json_lines_on_demand(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0, log_json=True, log_level="INFO")
    gateway.get("/v1/sessions/..")
    assert gateway.stop() == 0
    lines = [line for line in gateway.logged() if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    [refusal] = [event for event in events if event["logger"] == "cellgate.access"]
    assert "400" in refusal["event"]
    assert {"level", "timestamp"} <= set(refusal)


# ---- a pool without room -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with room for one kernel, and little patience."""
    data = tmp_path_factory.mktemp("narrow") / "data"
    with serving(data, pool_size=1, max_kernels=1, claim_timeout=0.2) as gateway:
        yield gateway


@pytest.fixture
def holder(narrow: GatewayProcess) -> Iterator[str]:
    """The session that has the one kernel."""
    until(lambda: pool_of(narrow)["warm"] == 1, "no kernel becomes warm")
    assert narrow.post("/v1/sessions", {"session": "holder"}).status == 201
    yield "holder"
    narrow.delete("/v1/sessions/holder")


def test_an_exhausted_pool_is_refused_with_the_time_to_come_again(
    narrow: GatewayProcess, holder: str
) -> None:
    narrow.execute(holder, "x = 1")
    before = narrow.get("/v1/sessions").json()
    for path, body in (
        ("/v1/sessions", {"session": "other"}),
        ("/v1/sessions/other/execute", {"code": "1"}),
        ("/v1/execute", {"code": "1"}),
        ("/v1/execute", {"code": "1", "record": True}),
    ):
        answer = narrow.post(path, body)
        detail = refused(answer, 503, "pool_exhausted")
        assert int(answer.headers["Retry-After"]) >= 1
        assert "in use" in detail
    assert narrow.get("/v1/sessions/other").status == 404
    assert narrow.get("/v1/sessions").json()["sessions"][0]["session"] == before["sessions"][0]["session"]
    assert len(narrow.get("/v1/sessions").json()["sessions"]) == len(before["sessions"])
    assert pool_of(narrow) == {**pool_of(narrow), "in_use": 1, "waiting": 0, "starting": 0}
    assert narrow.execute(holder, "x")["text"].strip() == "1"
    assert narrow.get("/healthz").status == 200
    assert narrow.get("/readyz").status == 200


def test_the_place_of_an_ended_session_is_free_for_the_next(narrow: GatewayProcess, holder: str) -> None:
    refused(narrow.post("/v1/sessions", {"session": "next"}), 503, "pool_exhausted")
    assert narrow.delete(f"/v1/sessions/{holder}").status == 204
    until(lambda: pool_of(narrow)["warm"] == 1, "no kernel takes the place")
    assert narrow.execute("next", "1")["status"] == "ok"
    assert narrow.delete("/v1/sessions/next").status == 204


def test_those_who_wait_for_a_kernel_are_served_in_their_order(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=1, max_kernels=1, claim_timeout=60)
    gateway.execute("first", "1")
    order: list[str] = []

    def claim(session: str) -> None:
        assert gateway.post("/v1/sessions", {"session": session}).status == 201
        order.append(session)

    with ThreadPoolExecutor() as threads:
        waiting = []
        for number, session in enumerate(("second", "third"), start=1):
            waiting.append(threads.submit(claim, session))
            until(lambda number=number: pool_of(gateway)["waiting"] == number, "nobody waits")
        for session, claimed in zip(("first", "second"), waiting, strict=True):
            assert gateway.delete(f"/v1/sessions/{session}").status == 204
            claimed.result(60)
    assert order == ["second", "third"]


def test_a_kernel_that_has_to_start_first_is_no_exhausted_pool(start_gateway: StartGateway) -> None:
    """`claim_timeout` bounds the wait for a place, not the start of a kernel in a free one."""
    gateway = start_gateway(pool_size=0, max_kernels=4, claim_timeout=0.1)
    assert gateway.post("/v1/sessions", {"session": "a"}).status == 201


# ---- kernels that don't start ------------------------------------------------------------------------------


def kernelspec(folder: Path, name: str, *argv: str) -> None:
    """A kernelspec with this command."""
    (folder / name).mkdir(parents=True)
    spec = {"argv": list(argv), "display_name": name, "language": "python", "interrupt_mode": "message"}
    (folder / name / "kernel.json").write_text(json.dumps(spec))


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A folder of kernelspecs: the usual one, and some that can't start."""
    folder = tmp_path / "specs"
    shutil.copytree(KERNELSPECS / "python3", folder / "python3")
    kernelspec(
        folder, "says-why", sys.executable, "-c", "raise SystemExit('no flux capacitor')", "{connection_file}"
    )
    kernelspec(folder, "absent", "/nowhere/python", "{connection_file}")
    kernelspec(folder, "mute", sys.executable, "-c", "import time; time.sleep(600)", "{connection_file}")
    return folder


def test_a_kernel_that_can_t_start_is_refused_with_the_reason_and_harms_no_other(
    start_gateway: StartGateway, specs: Path
) -> None:
    gateway = start_gateway(pool_size=1, kernel_dirs=specs, start_timeout=20)
    assert set(gateway.get("/v1/info").json()["kernelspecs"]) == {"python3", "says-why", "absent", "mute"}
    until(lambda: pool_of(gateway)["warm"] == 1, "no kernel becomes warm")
    processes = psutil.Process(gateway.process.pid)
    children = len(processes.children(recursive=True))
    for name, says in (("says-why", "no flux capacitor"), ("absent", "/nowhere/python")):
        for path, body in (
            ("/v1/sessions", {"session": "broken", "kernel": name}),
            ("/v1/execute", {"code": "1", "kernel": name}),
        ):
            detail = refused(gateway.post(path, body), 503, "kernel_start_failed")
            assert says in detail
            assert "Traceback" not in detail
    assert gateway.get("/v1/sessions/broken").status == 404
    assert gateway.get("/v1/sessions").json()["sessions"] == []
    pool = pool_of(gateway)
    assert (pool["in_use"], pool["waiting"], pool["starting"], pool["ending"]) == (0, 0, 0, 0)
    until(lambda: len(processes.children(recursive=True)) <= children, "a process is left")
    assert gateway.execute("broken", "1")["status"] == "ok", "the key is still free"
    assert gateway.get("/readyz").status == 200


def test_a_kernel_that_never_gets_ready_is_given_up(start_gateway: StartGateway, specs: Path) -> None:
    gateway = start_gateway(pool_size=0, kernel_dirs=specs, start_timeout=1)
    detail = refused(gateway.post("/v1/sessions", {"kernel": "mute"}), 503, "kernel_start_failed")
    assert "1 s" in detail
    processes = psutil.Process(gateway.process.pid)
    until(lambda: not processes.children(recursive=True), "a process is left")


COUNTING = """
import sys
with open(sys.argv[1], "a") as file:
    file.write("tried\\n")
raise SystemExit("broken for good")
"""


def test_a_default_kernel_that_can_t_start_is_tried_again(
    start_gateway: StartGateway, tmp_path: Path, specs: Path
) -> None:
    tries = tmp_path / "tries"
    kernelspec(specs, "broken", sys.executable, "-c", COUNTING, str(tries), "{connection_file}")
    gateway = start_gateway(pool_size=1, concurrent_starts=1, kernel_dirs=specs, default_kernel="broken")
    ready = gateway.get("/readyz")
    assert (ready.status, ready.json()["missing"]) == (503, ["no_kernel_yet"])
    assert gateway.get("/healthz").status == 200

    until(lambda: tries.exists() and tries.read_text().count("\n") >= 3, "it is not tried again")
    assert "broken for good" in gateway.log.read_text()
    # Whoever asks is told at once, and finds the others unharmed.
    assert "broken for good" in refused(gateway.post("/v1/sessions", {}), 503, "kernel_start_failed")
    assert gateway.post("/v1/sessions", {"session": "a", "kernel": "python3"}).status == 201
    assert gateway.execute("a", "1")["status"] == "ok"


WAITING = """
import os, sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_gateway_serves_before_its_first_kernel_and_says_when_it_is_ready(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    folder, go = tmp_path / "specs", tmp_path / "go"
    shutil.copytree(KERNELSPECS / "python3", folder / "python3")
    path = folder / "python3" / "kernel.json"
    spec: dict[str, Any] = json.loads(path.read_text())
    spec["argv"] = [sys.executable, "-c", WAITING, str(go), *spec["argv"]]
    path.write_text(json.dumps(spec))
    gateway = start_gateway(pool_size=1, kernel_dirs=folder)
    assert gateway.get("/healthz").status == 200
    ready = gateway.get("/readyz")
    assert (ready.status, ready.json()["missing"]) == (503, ["no_kernel_yet"])
    go.touch()
    until(lambda: gateway.get("/readyz").status == 200, "the gateway does not become ready")
    assert gateway.execute("a", "1")["status"] == "ok"


def test_kernels_whose_folders_can_t_be_made_are_refused_and_not_tried_without_end(
    start_gateway: StartGateway,
) -> None:
    """As when somebody clears the temporary folder below a running gateway."""
    gateway = start_gateway(pool_size=0, claim_timeout=60)
    workspaces = gateway.data_dir / "workspaces"
    workspaces.rmdir()
    detail = refused(gateway.post("/v1/sessions", {"session": "a"}, timeout=60), 503, "kernel_start_failed")
    assert "workspaces" in detail
    workspaces.mkdir(mode=0o700)
    assert gateway.execute("a", "1")["status"] == "ok"
    assert gateway.log.read_text().count("\n") < 100
