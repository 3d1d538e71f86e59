"""Debugging a cell over the control channel, as JupyterLab does; debugpy is loaded with the first request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cellgate_kernels.testing.backend import CELL_TIMEOUT, RunningKernel, StartKernel
from tests.support.kernels import FORK

CODE = "x = 6\ny = 7\nx * y"
LOADED = "import sys; print('debugpy' in sys.modules, 'pydevd' in sys.modules)"


@pytest.fixture(params=["sandbox", FORK])
def backend(sandbox: None, request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Debugging:
    """Requests of the Debug Adapter Protocol to a kernel."""

    def __init__(self, kernel: RunningKernel) -> None:
        self._kernel = kernel
        self._number = 0

    async def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        """The body of the answer; fails if the request did."""
        self._number += 1
        client = self._kernel.client
        content = {"type": "request", "seq": self._number, "command": command, "arguments": arguments}
        message = client.session.msg("debug_request", content)
        client.control_channel.send(message)
        async with asyncio.timeout(CELL_TIMEOUT):
            while True:
                reply = await client.get_control_msg()
                if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                    break
        assert reply["content"].get("success", True), reply["content"]
        body = reply["content"].get("body") or {}
        assert isinstance(body, dict)
        return body

    async def stopped(self) -> dict[str, Any]:
        """The event that tells of a breakpoint."""
        async with asyncio.timeout(CELL_TIMEOUT):
            while True:
                message = await self._kernel.client.get_iopub_msg()
                if message["msg_type"] == "debug_event" and message["content"]["event"] == "stopped":
                    body = message["content"]["body"]
                    assert isinstance(body, dict)
                    return body


async def test_a_breakpoint_stops_a_cell(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    assert await kernel.print(LOADED) == "False False\n"
    kernel.client.kernel_info()
    info = (await kernel.client.get_shell_msg(timeout=CELL_TIMEOUT))["content"]
    assert "debugger" in info["supported_features"]

    debugging = Debugging(kernel)
    assert (await debugging.ask("debugInfo"))["isStarted"] is False
    await debugging.ask(
        "initialize", clientID="tests", adapterID="", linesStartAt1=True, columnsStartAt1=True
    )
    await debugging.ask("attach", type="python")
    source = (await debugging.ask("dumpCell", code=CODE))["sourcePath"]
    points = await debugging.ask("setBreakpoints", source={"path": source}, breakpoints=[{"line": 2}])
    assert points["breakpoints"][0]["verified"] is True
    await debugging.ask("configurationDone")
    cell = kernel.send(CODE)
    thread = (await debugging.stopped())["threadId"]
    frames = (await debugging.ask("stackTrace", threadId=thread))["stackFrames"]
    assert frames[0]["line"] == 2
    await debugging.ask("continue", threadId=thread)
    result = await kernel.result(cell)
    assert result.of_type("execute_result")[0]["data"]["text/plain"] == "42"
    await debugging.ask("disconnect", restart=False, terminateDebuggee=False)
    assert await kernel.print("print(x + y)") == "13\n"
