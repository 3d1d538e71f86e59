"""What a gateway logs of a session's whole life: ids and causes, and nothing that anybody wants to hide."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.conftest import StartGateway
from tests.support.commands import INSTALLED
from tests.support.server import IN_TIME, GatewayProcess, until

SECRET = "s3cr3t"
"""Part of all that must not be logged."""


def events(gateway: GatewayProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gateway.logged() if line.startswith("{")]


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
    gateway.execute("s", "1")
    last = gateway.model("s")["kernel_id"]
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
    [end] = [each for each in told(gateway, "A session has ended") if each["session"] == "s"]
    assert (end["cause"], end["kernel"]) == ("deleted", last)
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
    assert refusals[-1]["event"].startswith(
        "Left out 140 more lines of this kind in a minute, the last: GET /v1/sessions 401 "
    )


def test_a_gateways_life_is_told_in_one_line_each(start_gateway: StartGateway, tmp_path: Path) -> None:
    """What an operator asks of a log after an incident: what started, when it served, and why it stopped."""
    data, quotas = tmp_path / "data", tmp_path / "quotas.toml"
    quotas.write_text("[roles.admin]\nsessions = 1\n")
    options = {"log_json": True, "log_level": "INFO", "quotas": quotas, "max_kernels": 7}
    gateway = start_gateway(data, **options)
    begun = [each["event"] for each in events(gateway)]
    assert begun[0].startswith(f"Cellgate 0.1.0 starts with the data folder {data} and the backend process (")
    settings = begun[0].partition("; settings: ")[2].split(", ")
    assert {"max_kernels=7", f"quotas={quotas}", "port=0", "log_level=INFO"} <= set(settings)
    assert not [each for each in settings if "token" in each or gateway.token in each]
    assert f"There is no record yet: a new one begins in {data / 'record.sqlite3'}" in begun
    assert begun[-1] == f"The gateway serves at {gateway.url}"

    # A quota refuses; a client leaves, and its cell goes on.
    assert gateway.post("/v1/sessions", {"session": "s"}).status == 201
    assert gateway.post("/v1/sessions", {"session": "another"}).status == 403

    def refusals() -> list[dict[str, Any]]:
        return [each for each in events(gateway) if each.get("reason") == "quota_exceeded"]

    # The line follows the answer.
    [refused] = until(refusals, "the refusal is not logged")
    assert (refused["quota"], refused["principal"]) == ("sessions", "default")
    connection = gateway.connect()
    headers = {"Authorization": f"Bearer {gateway.token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/sessions/s/execute", json.dumps({"code": "input()"}), headers)
    until(lambda: gateway.model("s")["state"] == "busy", "the cell does not run")
    connection.close()
    left = "A client left; its cell goes on, and its result is kept"
    [line] = until(lambda: told(gateway, left), "that the client left is not logged")
    assert (line["session"], bool(line["execution"])) == ("s", True)
    assert gateway.stop() == 0
    ended = [each["event"] for each in events(gateway)]
    because = "The gateway stops because of SIGTERM: it takes no new work, and running cells have 10 s"
    assert ended.index(because) < ended.index("A session has ended")
    assert ended[-1] == "The gateway has stopped; the record of all sessions is kept"
    again = start_gateway(data, **options)
    # Its log goes on in the same file.
    assert again.log.read_text().count("There is no record yet") == 1


def test_a_start_that_fails_is_a_line_of_json_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ["--log-json", "--backend", "process", "--port", port, "--data-dir", str(tmp_path / "data")]
        ended = subprocess.run([INSTALLED, "serve", *options], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")
    [line] = map(json.loads, ended.stderr.splitlines())
    assert line["level"] == "critical"
    assert line["event"].startswith("The gateway can't serve: ")
    assert port in line["event"]
