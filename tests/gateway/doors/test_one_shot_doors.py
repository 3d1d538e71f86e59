"""The doors whose requests have a session each, called as the clients of those systems call them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.conftest import StartGateway, serving
from tests.support.commands import refusal
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until

DOORS = {"/agentrun/v1/run": "agentrun", "/replit": "replit"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with all doors."""
    with serving(tmp_path_factory.mktemp("doors") / "data", doors="all", cell_timeout=2) as process:
        yield process


def run(gateway: GatewayProcess, body: object) -> Any:
    """As AgentRun's README calls it: by requests, which has no token of its own, with a slash at the end."""
    url = f"http://cellgate:{TOKEN}@{gateway.host}/agentrun/v1/run/"
    return requests.post(url, json=body, timeout=PATIENCE)


def evaluate(gateway: GatewayProcess, **body: object) -> Any:
    """As the package replit-code-exec does."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return requests.post(f"{gateway.url}/replit", json=body, headers=headers, timeout=PATIENCE)


def test_agentrun_gives_the_output_of_a_script(gateway: GatewayProcess) -> None:
    code = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three')\n6 * 7"
    assert run(gateway, {"code": code}).json() == {"output": "one\ntwo\nthree\n"}
    failed = run(gateway, {"code": "print('before')\n1/0"}).json()["output"]
    assert failed.startswith("before\n")
    assert failed.endswith("ZeroDivisionError: division by zero\n")
    assert "\x1b" not in failed


def test_agentrun_begins_anew_each_time(gateway: GatewayProcess) -> None:
    assert run(gateway, {"code": "x = 1; print(x)"}).json() == {"output": "1\n"}
    assert "NameError" in run(gateway, {"code": "print(x)"}).json()["output"]


def test_agentrun_says_in_its_words_what_took_too_long_or_died(gateway: GatewayProcess) -> None:
    slow = run(gateway, {"code": "print('begun')\nimport time; time.sleep(60)"})
    assert (slow.status_code, slow.json()) == (200, {"output": "Execution timed out."})
    died = run(gateway, {"code": "print('last')\nimport os; os._exit(3)"}).json()["output"]
    assert died.startswith("last\n")
    assert "KernelDied" in died


@pytest.mark.parametrize("body", [{}, {"code": 1}, [], "text"])
def test_agentrun_refuses_what_has_no_code(gateway: GatewayProcess, body: object) -> None:
    answer = run(gateway, body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body"]


def test_agentrun_is_healthy_without_a_token(gateway: GatewayProcess) -> None:
    answer = requests.get(f"{gateway.url}/agentrun/v1/health/", timeout=PATIENCE)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_replit_answers_with_a_text(gateway: GatewayProcess) -> None:
    answer = evaluate(gateway, code="print('Grüße')\n6 * 7", strace=False)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.text == "Grüße\n"
    assert evaluate(gateway, code="print(1)\n6 * 7", interpreter_mode=True).text.split() == ["1", "42"]
    assert "ZeroDivisionError" in evaluate(gateway, code="1/0").text


def test_replit_brings_files(gateway: GatewayProcess) -> None:
    files = {"folder/data.txt": "three", "plain.py": "x = 5"}
    code = "import plain; print(open('folder/data.txt').read(), plain.x)"
    assert evaluate(gateway, code=code, files=files).text == "three 5\n"
    refused = evaluate(gateway, code="1", files={"../outside": "x"})
    assert (refused.status_code, refused.json()["reason"]) == (400, "bad_request")


@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"token {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode()},
        {"X-API-Key": TOKEN},
        {"x-api-key": TOKEN, "Content-Type": "text/plain"},
    ],
    ids=["bearer", "token", "bare", "basic", "key", "key and another type"],
)
def test_a_token_counts_wherever_these_clients_put_it(
    gateway: GatewayProcess, path: str, headers: dict[str, str]
) -> None:
    answer = requests.post(
        gateway.url + path, data=b'{"code": "print(6)"}', headers=headers, timeout=PATIENCE
    )
    assert answer.status_code == 200
    assert "6" in answer.text


@pytest.mark.parametrize("path", DOORS)
def test_nobody_gets_in_without_a_good_token(gateway: GatewayProcess, path: str) -> None:
    for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "wrong"}, {"Cookie": f"token={TOKEN}"}):
        answer = requests.post(gateway.url + path, json={"code": "1"}, headers=headers, timeout=PATIENCE)
        assert (answer.status_code, answer.json()["reason"]) == (401, "unauthorized")
    foreign = {"Authorization": f"Bearer {TOKEN}", "Origin": "https://elsewhere.example.org"}
    answer = requests.post(gateway.url + path, json={"code": "1"}, headers=foreign, timeout=PATIENCE)
    assert answer.status_code == 403


def test_what_a_door_runs_is_in_the_record(gateway: GatewayProcess) -> None:
    run(gateway, {"code": "print('kept')"})
    evaluate(gateway, code="print('kept too')")
    listed = gateway.get("/v1/sessions?limit=2&newest=true").json()["sessions"]
    assert {each["metadata"]["door"] for each in listed} == set(DOORS.values())
    for each in listed:
        key = each["session"]
        (execution,) = gateway.get(f"/v1/sessions/{key}/executions").json()["executions"]
        assert execution["status"] == "ok"
        assert gateway.get(f"/v1/sessions/{key}/audit/verify").json()["valid"] is True
    until(lambda: gateway.get("/v1/info").json()["pool"]["in_use"] == 0, "kernels are left")


def test_a_cell_whose_client_leaves_is_stopped(gateway: GatewayProcess) -> None:
    with pytest.raises(requests.Timeout):
        requests.post(
            f"{gateway.url}/replit",
            json={"code": "import time\nwhile True: time.sleep(0.1)"},
            headers={"X-API-Key": TOKEN},
            timeout=(PATIENCE, 1),
        )
    listed = gateway.get("/v1/sessions?limit=1&newest=true").json()["sessions"]
    path = f"/v1/sessions/{listed[0]['session']}/executions"

    def cause() -> str | None:
        return str(gateway.get(path).json()["executions"][0]["cause"])

    until(lambda: cause() in ("client_disconnected", "one_shot"), "it runs on")


def test_doors_are_closed_unless_they_are_opened(start_gateway: StartGateway) -> None:
    closed = start_gateway()
    assert closed.get("/v1/info").json()["doors"] == []
    for path in (*DOORS, "/agentrun/v1/health"):
        assert closed.post(path, {"code": "1"}).status == 404
    one = start_gateway(doors="replit")
    assert one.get("/v1/info").json()["doors"] == ["replit"]
    assert one.post("/replit", {"code": "print(1)"}).body == b"1\n"
    assert one.post("/agentrun/v1/run", {"code": "1"}).status == 404


def test_a_door_that_there_is_not_is_refused_at_the_start() -> None:
    code, said = refusal("--doors=e3b")
    assert code == 2
    assert "There is no door 'e3b'; there are agentrun, replit, or all" in said
