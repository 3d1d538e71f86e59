"""Real clients as real processes, and clients that can't be installed here spoken by hand.

The processes run in the interpreter that CELLGATE_CLIENTS_PYTHON names (default: this one), because their
packages bring many others; where these are missing the tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.channels import Sent, channels
from tests.server import TOKEN, GatewayProcess

PYTHON = os.environ.get("CELLGATE_CLIENTS_PYTHON", sys.executable)


def run_client(gateway: GatewayProcess, name: str, package: str, folder: Path) -> dict[str, Any]:
    """What a client's script prints."""
    found = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"{package} is not installed in {PYTHON}")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("clients") / name, gateway.url, TOKEN, folder],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    happened = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(happened, dict)
    return happened


def test_jupyter_server_with_a_gateway_url(jupyter: GatewayProcess, tmp_path: Path) -> None:
    """Start, execute, interrupt, restart, shut down; what it ran is in the record."""
    happened = run_client(jupyter, "server.py", "jupyter_server", tmp_path)
    cell = ["busy", "execute_input", "stream", "execute_result", "execute_reply", "idle"]
    assert happened["cell"] == cell
    assert happened["interrupted"] == ["busy", "execute_input", "stream", "error", "execute_reply", "idle"]
    assert happened["restarted"] == [word for word in cell if word != "stream"]
    assert happened["deleted"] == 204
    assert jupyter.get(f"/api/kernels/{happened['kernel']}").status == 404
    recorded = jupyter.get(f"/v1/sessions/{happened['kernel']}/notebook").json()
    assert len(recorded["cells"]) == 3


def test_jupyter_kernel_client(jupyter: GatewayProcess, tmp_path: Path) -> None:
    happened = run_client(jupyter, "kernel_client.py", "jupyter_kernel_client", tmp_path)
    assert happened == {"cell": ["stream", "execute_result"], "failed": "error", "restarted": ["5"]}


async def run_as_autogen(gateway: GatewayProcess, kernel: str, code: str) -> str:
    """As AutoGen's docker_jupyter client: header and buffers its way; it returns at once at an error."""
    async with channels(gateway, kernel) as client:
        header = {"username": "autogen", "session": "1", "version": "5.0", "date": "2026-01-01T00:00:00"}
        sent = await client.send("kernel_info_request", {}, header=header, buffers_={})
        await client.until(
            lambda m: m["msg_type"] == "kernel_info_reply" and m["parent_header"]["msg_id"] == sent
        )
        msg_id = await client.execute(code, header=header)
        printed = ""
        while True:
            message: Sent = await client.receive()
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] in {"execute_result", "display_data"}:
                printed += content["data"]["text/plain"]
            elif message["msg_type"] == "error":
                return f"ERROR: {content['ename']}"
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed


async def test_autogen(jupyter: GatewayProcess) -> None:
    assert "python3" in jupyter.get("/api/kernelspecs").json()["kernelspecs"]
    kernel = jupyter.post("/api/kernels", {"name": "python3"}).json()["id"]
    for number in range(10):
        assert await run_as_autogen(jupyter, kernel, "1/0") == "ERROR: ZeroDivisionError"
        assert await run_as_autogen(jupyter, kernel, f"print({number}); 7") == f"{number}\n7"
    assert jupyter.post(f"/api/kernels/{kernel}/restart").status == 200
    assert jupyter.delete(f"/api/kernels/{kernel}").status == 204


async def test_smolagents(jupyter: GatewayProcess) -> None:
    """No body, token in the query, a new WebSocket for every cell, no channel; the answer is in evalue."""
    kernel = jupyter.post(f"/api/kernels?token={TOKEN}", token=None).json()["id"]
    for number in range(5):
        async with channels(jupyter, kernel) as client:
            content = {"code": f"raise ValueError('safe:{number}')", "silent": False, "store_history": True}
            msg_id = await client.send("execute_request", content, channel=None)
            messages = await client.ended(msg_id)
            error = next(message for message in messages if message["msg_type"] == "error")
            assert error["content"]["evalue"] == f"safe:{number}"
    jupyter.delete(f"/api/kernels/{kernel}")


async def test_openhands(jupyter: GatewayProcess) -> None:
    """Stops at execute_reply, so nothing of the cell may come after it but idle."""
    kernel = jupyter.post("/api/kernels", {"name": "python"}).json()["id"]
    async with channels(jupyter, kernel) as client:
        for number in range(20):
            msg_id = await client.execute(
                f"print('a' * 5000); display({number})", store_history=False, header={"session": ""}
            )
            messages = await client.until(
                lambda m, sent=msg_id: (  # type: ignore[misc]
                    m["msg_type"] == "execute_reply" and m["parent_header"]["msg_id"] == sent
                )
            )
            shown = [m["content"]["data"]["text/plain"] for m in messages if m["msg_type"] == "display_data"]
            assert shown == [str(number)]
    assert jupyter.post(f"/api/kernels/{kernel}/interrupt", {"kernel_id": kernel}).status == 204
    assert jupyter.delete(f"/api/kernels/{kernel}").status == 204
