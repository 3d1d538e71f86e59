"""Lost variables on a real gateway: each way of losing them, and each way of asking for the next cell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellgate import CellFailed, Gateway
from tests.conftest import serving
from tests.gateway.cli.test_console import CONTROL_D, start
from tests.gateway.cli.test_exec import Shell
from tests.gateway.cli.test_mcp import call
from tests.gateway.cli.test_mcp import serving as tools
from tests.support.nightly import at_night
from tests.support.server import IN_TIME, TOKEN, GatewayProcess, until

KEPT = "open('f', 'w').write('kept'); x = 1"
KILL = """
import os, threading, time
def kill():
    while not os.path.exists('go'): time.sleep(0.01)
    os.remove('go')
    os.kill(os.getpid(), 9)
threading.Thread(target=kill).start()
"""
SECRET = "a-secret-that-is-not-recorded"


@pytest.fixture
def brief(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that looks for idle sessions all the time."""
    with serving(tmp_path / "data", cull_interval=0.05) as process:
        yield process


def loss(result: dict[str, Any]) -> dict[str, Any]:
    """What a result says was lost."""
    assert result["kernel"].pop("state") == "idle"
    kernel = result["kernel"]
    assert isinstance(kernel, dict)
    return kernel


def end_by_idleness(gateway: GatewayProcess, session: str) -> None:
    """Let the session end; its limits come back with the next cell, so the time is not too short for that."""
    until(lambda: gateway.model(session)["state"] == "ended", "it does not end")


def create(gateway: GatewayProcess, session: str, **limits: object) -> None:
    body = {"session": session, "env": {"TOKEN": SECRET}, "limits": limits}
    assert gateway.post("/v1/sessions", body).status == 201


def kill_kernel(gateway: GatewayProcess, session: str) -> None:
    """Between two cells. The kernel does it to itself: its process may have another number in here."""
    assert gateway.execute(session, KILL)["status"] == "ok"
    (gateway.workspace(session) / "go").touch()
    until(lambda: gateway.model(session)["state"] == "dead", "nobody noticed")


def test_the_first_result_says_what_is_lost_and_a_resumed_session_has_the_rest_again(
    brief: GatewayProcess,
) -> None:
    create(brief, "s", idle_timeout=IN_TIME, cell_timeout=20)
    assert loss(brief.execute("s", KEPT)) == {"replaced": False}
    end_by_idleness(brief, "s")
    result = brief.execute("s", "import os; print(open('f').read(), os.environ['TOKEN']); x")
    assert loss(result) == {"replaced": True, "cause": "idle_timeout", "files": "kept"}
    assert (result["stdout"], result["error"]["ename"]) == (f"kept {SECRET}\n", "NameError")
    again = brief.result("s", result["execution"])
    assert loss(again) == result["kernel"]
    model = brief.model("s")
    assert (model["limits"]["idle_timeout"], model["limits"]["cell_timeout"]) == (IN_TIME, 20)
    assert "missing" not in model


def test_a_killed_kernel_a_restart_and_a_delete_are_announced(gateway: GatewayProcess, session: str) -> None:
    create(gateway, session)
    gateway.execute(session, KEPT)
    kill_kernel(gateway, session)
    events = list(gateway.events("POST", f"/v1/sessions/{session}/execute", {"code": "2"}))
    assert loss(events[-1]) == {"replaced": True, "cause": "kernel_exit", "files": "kept"}
    assert loss(gateway.execute(session, "3")) == {"replaced": False}
    gateway.post(f"/v1/sessions/{session}/restart")
    blocks = gateway.post(f"/v1/sessions/{session}/execute-blocks", {"markdown": "```python\n1\n```\n" * 2})
    first, second = blocks.json()["blocks"]
    assert loss(first) == {"replaced": True, "cause": "kernel_restarted", "files": "kept"}
    assert loss(second) == {"replaced": False}
    gateway.delete(f"/v1/sessions/{session}")
    missing = {"env": ["TOKEN"]}
    deleted = {"replaced": True, "cause": "deleted", "files": "none", "missing": missing}
    assert loss(gateway.execute(session, "import os; os.environ.get('TOKEN'), os.listdir()")) == deleted
    assert gateway.model(session)["missing"] == missing
    introductions = [event for event in gateway.recorded(session) if "gateway_version" in event]
    assert [event.get("loss", {}).get("cause") for event in introductions] == [
        None,
        "kernel_exit",
        "kernel_restarted",
        "deleted",
    ]
    assert SECRET not in json.dumps(gateway.recorded(session))


@pytest.mark.parametrize(("crash", "cause"), [(True, "gateway_restart"), at_night(False, "gateway_shutdown")])
def test_after_the_gateway_was_down_the_first_result_says_so(
    tmp_path: Path, *, crash: bool, cause: str
) -> None:
    with serving(tmp_path / "data") as gateway:
        create(gateway, "s", cell_timeout=20)
        gateway.execute("s", KEPT)
        if crash:
            gateway.kill()
        else:
            gateway.stop()
    with serving(tmp_path / "data", max_cell_timeout=10) as gateway:
        result = gateway.execute("s", "open('f').read()")
        assert result["text"] == "'kept'"
        missing = {"env": ["TOKEN"], "limits": {"cell_timeout": 20}}
        lost = {"replaced": True, "cause": cause, "files": "kept", "missing": missing}
        assert loss(result) == lost
        assert loss(gateway.execute("s", "1")) == {"replaced": False}
        model = gateway.model("s")
        assert (model["missing"], model["limits"]["cell_timeout"]) == (missing, 10)


async def test_models_commands_and_the_client_show_it_once(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    said = "The kernel was replaced (kernel_exit): variables are gone, files are kept."
    gateway.execute(session, KEPT)

    async def lose() -> None:
        await asyncio.to_thread(kill_kernel, gateway, session)

    async with tools(gateway, tmp_path, "--session", session) as client:
        await lose()
        assert await call(client, "run_code", code="print('x' in globals())") == (
            f"[cellgate: {said}]\nFalse\n"
        )
        assert await call(client, "run_code", code="print(1)") == "1\n"
    await lose()
    shell = Shell(gateway, tmp_path)
    for error in (f"{said}\n", ""):
        done = await asyncio.to_thread(shell.call, "exec", "print(1)", "--session", session)
        assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", error)
    async with Gateway(gateway.url, TOKEN).session(session) as used:
        await lose()
        result = await used.run("x")
        assert result.loss == said
        assert said in result._repr_mimebundle_()["text/plain"]
        with pytest.raises(CellFailed, match=r"name 'x' is not defined\. The kernel was replaced"):
            result.check()
        assert (await used.run("1")).loss == ""
    await lose()
    with start(gateway, session, tmp_path) as terminal:
        terminal.until(f"{session}>")
        terminal.send("'any'\r")
        terminal.until(r"\[The kernel was replaced \(kernel_exit\): variables are gone, files are kept\.\]")
        terminal.until(f"{session}>")
        terminal.send("6 * 7\r")
        terminal.until(r"Out\[2\]: 42\r\n")
        terminal.send(CONTROL_D)
        assert terminal.ended() == 0
    assert terminal.raw.count(b"The kernel was replaced") == 1
