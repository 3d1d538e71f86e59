"""A gateway with a cell hook, the example's: a refused cell does not run, by whichever way it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import requests
from tornado.httpclient import HTTPRequest

from cellgate.client import Gateway
from cellgate.integrations.tools import SessionTools
from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.gateway.doors.e2b_requests import make
from tests.support.channels import channels, kinds
from tests.support.commands import cellgate
from tests.support.server import PATIENCE, TOKEN, GatewayProcess
from tests.support.websockets import websocket

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "cell_hook.py"
BAD, WHY = "import os; open('made', 'w')", "Unsafe module import: os"
SAID = f"CellRefused: {WHY}"


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with the hook and all doors."""
    folder = tmp_path_factory.mktemp("hook") / "data"
    with serving(folder, "sandbox", doors="all", docker_url=NO_ENGINE, cell_hook=EXAMPLE) as process:
        yield process


def test_a_refused_cell_is_a_result_and_in_every_export(gateway: GatewayProcess, tmp_path: Path) -> None:
    gateway.execute("s", "x = 6")
    refused = gateway.execute("s", BAD)
    assert (refused["status"], refused["cause"], refused["started_at"]) == ("error", "cell_refused", None)
    assert refused["error"] == {"ename": "CellRefused", "evalue": WHY, "traceback": [SAID]}
    assert refused["text"] == SAID
    assert gateway.execute("s", "x * 7")["text"] == "42"
    assert gateway.get("/v1/sessions/s/files").json()["files"] == []
    events = [event for event in gateway.recorded("s") if event["execution"] == refused["execution"]]
    assert [event["type"] for event in events] == ["queued", "error", "finished"]
    assert gateway.get("/v1/sessions/s/audit/verify").json()["valid"]
    notebook = nbformat.reads(gateway.get("/v1/sessions/s/notebook").body.decode(), 4)
    nbformat.validate(notebook)
    (cell,) = (each for each in notebook.cells if each.source == BAD)
    assert [each["ename"] for each in cell.outputs] == ["CellRefused"]
    (tmp_path / "s.ipynb").write_bytes(gateway.get("/v1/sessions/s/notebook").body)
    assert cellgate("verify", str(tmp_path / "s.ipynb")).returncode == 0


def test_every_way_of_a_cell(gateway: GatewayProcess) -> None:
    once = gateway.post("/v1/execute", {"code": BAD}).json()
    assert (once["status"], once["cause"]) == ("error", "cell_refused")
    events = list(gateway.events("POST", "/v1/sessions/ways/execute", {"code": BAD}))
    assert [event["type"] for event in events] == ["queued", "error", "finished"]
    blocks = gateway.post("/v1/sessions/ways/execute-blocks", {"markdown": f"```python\n{BAD}\n```"}).json()
    assert SAID in json.dumps(blocks)
    explored = gateway.post("/v1/sessions/ways/explore", {"cells": [BAD, "print(1)"]}).json()["results"]
    assert [each["cause"] for each in explored] == ["cell_refused", None]
    for magic in ("%pip install anything", "!ls", "%%bash\nls"):
        assert gateway.execute("ways", magic)["error"]["evalue"].startswith("Syntax error")
    assert gateway.execute("shell", "ls", language="bash")["error"]["evalue"] == (
        "Cells in bash are not allowed here"
    )
    done = cellgate("exec", BAD, f"--data-dir={gateway.data_dir}")
    assert done.returncode == 1
    assert SAID in done.stdout


async def test_tools_of_models_show_why(gateway: GatewayProcess) -> None:
    async with SessionTools(Gateway(gateway.url, TOKEN).session()) as tools:
        assert SAID in (await tools.answer("run_code", {"code": BAD})).text


async def test_the_websocket(gateway: GatewayProcess) -> None:
    gateway.post("/v1/sessions", {"session": "ws"})
    address = gateway.url.replace("http", "ws") + "/v1/sessions/ws/ws"
    async with websocket(HTTPRequest(address, headers={"Authorization": f"Bearer {TOKEN}"})) as opened:
        await opened.write_message(json.dumps({"execute": {"code": BAD}}))
        told: list[Any] = []
        while not told or told[-1].get("type") != "finished":
            told.append(json.loads(await opened.read_message() or "null"))
    assert told[-1]["cause"] == "cell_refused"


async def test_a_jupyter_client_sees_an_error(gateway: GatewayProcess) -> None:
    kernel = gateway.post("/api/kernels", {"name": "python3"}).json()["id"]
    async with channels(gateway, kernel) as client:
        seen = await client.run(BAD)
        assert kinds(seen) == ["busy", "error", "execute_reply", "idle"]
        assert [seen[at]["content"]["evalue"] for at in (1, 2)] == [WHY, WHY]
        assert seen[2]["content"]["status"] == "error"
        _, _, reply, _ = await client.run("1", user_expressions={"a": "eval('1')"})
        assert reply["content"]["evalue"] == "Unsafe function call: eval"
        assert kinds(await client.run("1"))[-1] == "idle"


def test_doors_show_it_in_their_own_forms(gateway: GatewayProcess) -> None:
    def post(path: str, body: object, **headers: str) -> requests.Response:
        given = {"X-API-Key": TOKEN, **headers}
        answer = requests.post(f"{gateway.url}{path}", json=body, headers=given, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer

    assert post("/agentrun/v1/run/", {"code": BAD}).json() == {"output": WHY}
    assert post("/agentrun/v1/run/", {"code": "print(6 * 7)"}).json() == {"output": "42\n"}
    assert post("/replit", {"code": BAD}).text == f"{SAID}\n"
    dify = post("/dify/v1/sandbox/run", {"language": "python3", "code": BAD, "preload": ""}).json()
    assert SAID in dify["data"]["error"]
    terrarium = post("/terrarium", {"code": BAD}).json()
    assert (terrarium["success"], SAID in json.dumps(terrarium)) == (False, True)
    properties = {"codeInputType": "inline", "executionType": "synchronous", "code": BAD}
    azure = post(
        "/azure/code/execute?api-version=2024-02-02-preview&identifier=a", {"properties": properties}
    )
    assert SAID in azure.text
    assert SAID in post("/librechat/exec", {"lang": "py", "code": BAD, "user_id": "u"}).text


def test_a_sandbox_of_e2b_is_set_up_without_the_hook(gateway: GatewayProcess) -> None:
    """Its set-up imports what the rules refuse, and charts would not come without it."""
    sandbox = make(gateway)
    assert sandbox.run("6 * 7").text == "42"
    assert sandbox.run(BAD).error == "CellRefused"
    assert sandbox.session
    sandbox.control("DELETE")


def test_the_gateway_and_doctor_say_that_there_is_one(gateway: GatewayProcess, tmp_path: Path) -> None:
    gateway.execute("s", "1")
    assert gateway.get("/v1/info").json()["cell_hook"] == "ok"
    looked = cellgate("doctor", "--json", f"--cell-hook={EXAMPLE}", f"--data-dir={tmp_path}")
    (found,) = (each for each in json.loads(looked.stdout) if each["subject"] == "cell hook")
    assert (found["outcome"], found["found"]) == ("ok", f"{EXAMPLE} answers")
    looked = cellgate("doctor", "--json", "--cell-hook=/bin/true", f"--data-dir={tmp_path}")
    (found,) = (each for each in json.loads(looked.stdout) if each["subject"] == "cell hook")
    assert found["outcome"] == "problem"
    assert "exit code 0" in found["found"]
    refused = cellgate("serve", "--cell-hook=/nonexistent", f"--data-dir={tmp_path}")
    assert (refused.returncode, "/nonexistent is no program" in refused.stderr) == (2, True)
    refused = cellgate("serve", "--cell-hook=", f"--data-dir={tmp_path}")
    assert refused.returncode == 2


def test_without_an_answer_nothing_runs(start_gateway: StartGateway) -> None:
    gateway = start_gateway(cell_hook="/bin/true")
    refused = gateway.execute("s", "open('made', 'w')")
    assert (refused["status"], refused["cause"]) == ("error", "cell_hook_failed")
    assert refused["error"]["ename"] == "CellHookFailed"
    assert gateway.get("/v1/sessions/s/files").json()["files"] == []
    assert gateway.get("/v1/info").json()["cell_hook"] == "failing"
    metrics = gateway.get("/metrics").body.decode()
    assert 'cellgate_executions_total{cause="cell_hook_failed",status="error"} 1.0' in metrics
    assert any("The cell hook /bin/true failed" in line for line in gateway.logged())
