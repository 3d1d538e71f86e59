"""What a gateway logs of a session's whole life: ids and causes, and nothing that anybody wants to hide."""

from __future__ import annotations

import json
from typing import Any

from tests.conftest import StartGateway
from tests.support.server import IN_TIME, GatewayProcess, until

SECRET = "s3cr3t"
"""Part of all that must not be logged."""


def events(gateway: GatewayProcess) -> list[dict[str, Any]]:
    lines = gateway.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def told(gateway: GatewayProcess, text: str) -> list[dict[str, Any]]:
    return [event for event in events(gateway) if event["event"] == text]


def test_a_whole_life_is_logged_without_code_output_variables_and_tokens(start_gateway: StartGateway) -> None:
    """At the level that logs most: cells, files, packages of headers, refusals, a limit, a death, a purge."""
    gateway = start_gateway(log_json=True, log_level="DEBUG", interrupt_grace=0.5)
    body = {"session": "s", "env": {"KEY": f"{SECRET}-env"}, "metadata": {"note": f"{SECRET}-note"}}
    assert gateway.post("/v1/sessions", body).status == 201
    kernel = gateway.model("s")["kernel_id"]
    printed = gateway.execute("s", f"import os\nprint('{SECRET}-code', os.environ['KEY'])")
    assert printed["stdout"] == f"{SECRET}-code {SECRET}-env\n"
    assert gateway.execute("s", f"raise ValueError('{SECRET}-error')")["status"] == "error"
    cell = {"code": f"'{SECRET}'", "env": {"CELL": f"{SECRET}-cell"}, "stdin": [f"{SECRET}-line"]}
    assert gateway.post("/v1/sessions/s/execute", cell).status == 200
    assert gateway.post("/v1/execute", {"code": f"1 # {SECRET}-one-shot"}).status == 200
    # Refusals, of every kind that shows a secret somewhere.
    assert gateway.get("/v1/sessions", token=f"{SECRET}-wrong").status == 401
    assert gateway.get(f"/v1/sessions?token={SECRET}-query", token=None).status == 401
    assert gateway.get("/v1/sessions", headers={"Host": f"{SECRET}.example"}).status == 403
    assert gateway.get("/v1/sessions", token=f"{SECRET}-stray\x01").status == 400
    assert gateway.post("/v1/sessions/s/execute", {"code": [f"{SECRET}-type"]}).status == 400
    assert gateway.get(f"/v1/sessions/s/events?after={SECRET}").status == 400
    stuck = (
        f"import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); '{SECRET}-stuck'; time.sleep(60)"
    )
    ended = gateway.execute("s", stuck, timeout=IN_TIME)
    assert ended["cause"] == "cell_timeout"
    assert gateway.execute("s", "import os; os._exit(3)")["cause"] == "kernel_exit"
    assert gateway.delete("/v1/sessions/s?purge=true").status in {202, 204}
    assert gateway.stop() == 0

    log = gateway.log.read_text()
    # The gateway's own token is printed at the start, for whoever started it; that is no line of the log.
    logged = [line for line in log.splitlines() if line.startswith("{")]
    assert [line for line in logged if SECRET in line or gateway.token in line] == []
    malformed = [each["event"] for each in events(gateway) if each["event"].startswith("Malformed HTTP")]
    assert [text.partition("127.0.0.1: ")[2] for text in malformed] == ["Invalid header value "]
    common = {"principal": "default", "session": "s"}
    assert common.items() <= told(gateway, "A session begins")[0].items()
    assert told(gateway, "A session begins")[0]["kernel"] == kernel
    limits = told(gateway, "A limit ended a cell")
    assert [(each["cause"], each["execution"]) for each in limits] == [("cell_timeout", ended["execution"])]
    deaths = told(gateway, "A kernel died")
    assert [each["cause"] for each in deaths] == ["cell_timeout", "kernel_exit"]
    assert deaths[0]["kernel"] == kernel
    assert all(common.items() <= each.items() for each in deaths)
    [purge] = told(gateway, "A session's record is purged")
    assert common.items() <= purge.items()
    ends = {(each["session"], each["cause"]) for each in told(gateway, "A session has ended")}
    assert ("s", "deleted") in ends
    requests = [event for event in events(gateway) if event["logger"] == "cellgate.access"]
    refusals = [event for event in requests if "reason" in event]
    reasons = {(event["reason"], event["level"], event.get("principal")) for event in refusals}
    assert ("not_authenticated", "info", None) in reasons
    assert ("forbidden", "info", None) in reasons
    assert ("bad_request", "info", "default") in reasons
    assert {event["event"].split(" ")[1] for event in refusals} == {
        "/v1/sessions",
        "/v1/sessions/s/execute",
        "/v1/sessions/s/events",
    }


def test_a_flood_of_refusals_does_not_fill_the_log(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0, log_json=True, log_level="INFO")
    for _ in range(200):
        assert gateway.get("/v1/sessions", token="wrong").status == 401
    until(lambda: gateway.get("/healthz", token=None).status == 200, "it does not answer")
    assert gateway.stop() == 0
    refusals = [event for event in events(gateway) if event.get("reason") == "not_authenticated"]
    assert len(refusals) == 61
    assert refusals[-1]["event"].startswith("Left out 140 more lines of this kind")
