"""Pauses of E2B's sandboxes: kernels that sleep, frozen for real, until a client connects."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from tests.conftest import NO_ENGINE, StartGateway
from tests.gateway.doors.e2b_requests import ENVD, Sandbox, call, control, make, messages, streamed
from tests.support.server import GatewayProcess, until
from tests.support.sleepers import require_freezing

LONG = 3600.0
MOST = 5000.0
OPTIONS = {
    "doors": "e2b",
    "sleep_after": LONG,
    "max_lifetime": MOST,
    "docker_url": NO_ENGINE,
    "cull_interval": 0.1,
}


@pytest.fixture
def gateway(sandbox: None, start_gateway: StartGateway) -> GatewayProcess:
    """A gateway whose kernels can be frozen, and do not sleep by themselves."""
    require_freezing()
    return start_gateway(backend="sandbox", **OPTIONS)


def listed(gateway: GatewayProcess, state: str | None = None) -> list[tuple[str, str]]:
    query = {} if state is None else {"state": state}
    found = control(gateway, "GET", "v2/sandboxes", params=query).json()
    return [(each["sandboxID"], each["state"]) for each in found]


def test_a_paused_sandbox_keeps_everything(gateway: GatewayProcess) -> None:
    own = make(gateway, timeout=100, envVars={"SET": "yes"})
    own.run("x = 1")
    context = own.server("POST", "contexts", json={"language": "python"}).json()["id"]
    own.run("y = 2", context_id=context)
    kernels = {each["kernel_id"] for each in gateway.get("/v1/sessions").json()["sessions"]}
    assert own.control("POST", "/pause", {"memory": True}).status_code == 204
    states = {each["state"] for each in gateway.get("/v1/sessions").json()["sessions"]}
    assert (states, len(kernels)) == ({"asleep"}, 2)
    assert own.control("GET").json()["state"] == "paused"
    assert listed(gateway) == listed(gateway, "paused") == [(own.id, "paused")]
    assert listed(gateway, "running") == []
    assert gateway.model(own.session)["limits"]["lifetime"] == MOST
    again = own.control("POST", "/pause")
    assert (again.status_code, again.json()["code"]) == (409, 409)
    # Nobody finds it there, and nothing of this wakes it.
    health = own.server("GET", "health", ENVD)
    assert (health.status_code, health.json()["message"][:26]) == (502, "The sandbox was not found:")
    assert own.send("x").status_code == call(own, "ListDir", path="~").status_code == 502
    assert own.control("POST", "/fork", {}).status_code == 404
    assert own.control("POST", "/connect", {"memory": False}).status_code == 501
    assert own.control("GET").json()["state"] == "paused"
    resumed = own.control("POST", "/connect", {"timeout": 50})
    assert (resumed.status_code, resumed.json()["envdAccessToken"]) == (201, own.token)
    assert own.control("POST", "/connect", {"timeout": 50}).status_code == 200
    assert own.control("GET").json()["state"] == "running"
    assert gateway.model(own.session)["limits"]["lifetime"] < MOST / 2
    assert own.run("import os; x, os.environ['SET']").text == "(1, 'yes')"
    assert own.run("y", context_id=context).text == "2"
    assert {each["kernel_id"] for each in gateway.get("/v1/sessions").json()["sessions"]} == kernels


def test_older_clients_resume_and_paused_sandboxes_are_ended(gateway: GatewayProcess) -> None:
    own = make(gateway)
    own.run("x = 1")
    assert own.control("POST", "/resume", {"timeout": 50}).status_code == 409
    assert own.control("POST", "/pause").status_code == 204
    assert own.control("POST", "/resume", {"timeout": 50}).status_code == 201
    assert own.run("x").text == "1"
    assert own.control("POST", "/pause").status_code == 204
    assert own.control("DELETE").status_code == 204
    assert own.control("GET").status_code == 404


def test_who_uses_its_session_by_another_way_wakes_it(gateway: GatewayProcess) -> None:
    own = make(gateway)
    own.run("x = 1")
    own.control("POST", "/pause")
    assert gateway.execute(own.session, "x")["text"] == "1"
    assert listed(gateway) == [(own.id, "running")]
    assert own.run("x + 1").text == "2"


def test_a_sandbox_is_paused_at_its_timeout(swap: None, gateway: GatewayProcess) -> None:
    own = make(gateway, timeout=100, autoPause=True)
    assert own.control("GET").json()["lifecycle"] == {"autoResume": False, "onTimeout": "pause"}
    own.run("x = 1")
    context = own.server("POST", "contexts", json={"language": "python"}).json()["id"]
    own.run("y = 2", context_id=context)
    with ThreadPoolExecutor() as pool:
        cell = pool.submit(
            own.run, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
        )
        until(lambda: gateway.model(own.session)["state"] == "busy", "the cell does not run")
        assert own.control("POST", "/timeout", {"timeout": 0.1}).status_code == 204
        until(lambda: own.control("GET").json()["endAt"] < now_as_text(), "its time does not pass")
        # What runs then is waited for.
        assert own.control("GET").json()["state"] == "running"
        own.server("POST", "files", ENVD, params={"path": "go"}, files=[("file", ("go", b""))])
        assert cell.result().text == "done"
    until(lambda: own.control("GET").json()["state"] == "paused", "it is not paused")
    assert {each["state"] for each in gateway.get("/v1/sessions").json()["sessions"]} == {"asleep"}
    assert own.control("POST", "/connect", {"timeout": 50}).status_code == 201
    assert (own.run("x").text, own.run("y", context_id=context).text) == ("1", "2")
    # The next timeout is one as well.
    assert own.control("POST", "/timeout", {"timeout": 0.1}).status_code == 204
    until(lambda: own.control("GET").json()["state"] == "paused", "it is not paused again")
    assert own.control("DELETE").status_code == 204


def now_as_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_one_that_is_paused_at_its_timeout_goes_when_its_place_is_needed(
    sandbox: None, swap: None, start_gateway: StartGateway
) -> None:
    require_freezing()
    gateway = start_gateway(backend="sandbox", **OPTIONS, max_kernels=1)
    own = make(gateway, timeout=1, autoPause=True)
    until(lambda: own.control("GET").json()["state"] == "paused", "it is not paused")
    assert make(gateway).run("6 * 7").text == "42"
    assert own.control("GET").status_code == 404
    assert gateway.model(own.session)["cause"] == "room_needed"


def test_one_that_would_be_paused_without_its_memory_ends(swap: None, gateway: GatewayProcess) -> None:
    own = make(gateway, timeout=100, autoPause=True, autoPauseMemory=False)
    assert own.control("GET").json()["lifecycle"]["onTimeout"] == "kill"
    assert own.control("POST", "/timeout", {"timeout": 0.1}).status_code == 204
    until(lambda: own.control("GET").status_code == 404, "it lives on")


def test_a_sandbox_in_use_is_not_paused(gateway: GatewayProcess) -> None:
    own = make(gateway)
    own.run("x = 1")
    with ThreadPoolExecutor() as pool:
        cell = pool.submit(
            own.run, "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
        )
        until(lambda: gateway.model(own.session)["state"] == "busy", "the cell does not run")
        refused = own.control("POST", "/pause")
        assert (refused.status_code, "in use" in refused.json()["message"]) == (503, True)
        own.server("POST", "files", ENVD, params={"path": "go"}, files=[("file", ("go", b""))])
        assert cell.result().text == "done"
    process = {"cmd": "/bin/bash", "args": ["-c", "read x"]}
    with streamed(own, "process.Process/Start", {"process": process, "stdin": True}, None) as answer:
        next(messages(answer))
        assert own.control("POST", "/pause").status_code == 503
    assert own.control("GET").json()["state"] == "running"


def test_what_can_not_be_frozen_is_refused(start_gateway: StartGateway) -> None:
    own = make(start_gateway(doors="e2b"))
    refused = own.control("POST", "/pause")
    assert (refused.status_code, "--sleep-after" in refused.json()["message"]) == (501, True)
    assert own.control("POST", "/pause", {"memory": False}).status_code == 501
    assert own.run("6 * 7").text == "42"
    assert control(own.gateway, "POST", "sandboxes/nothing/pause").status_code == 404


def test_a_sandbox_with_forks_is_not_paused(gateway: GatewayProcess) -> None:
    own = make(gateway)
    own.run("x = 1")
    (told,) = own.control("POST", "/fork", {}).json()
    fork = Sandbox(gateway, told["sandbox"]["sandboxID"], told["sandbox"]["envdAccessToken"])
    for each in (own, fork):
        assert each.control("POST", "/pause").status_code == 501
    assert (own.run("x").text, fork.run("x").text) == ("1", "1")
