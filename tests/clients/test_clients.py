"""Real clients as real processes, and two that can't be pointed at a gateway spoken by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.processes import run_client
from tests.support.channels import V1, channels
from tests.support.nightly import mostly_nightly
from tests.support.server import TOKEN, GatewayProcess

CELL = ["busy", "execute_input", "stream", "execute_result", "execute_reply", "idle"]
FIGURE = ["image/png", "text/plain"]


def recorded_cells(gateway: GatewayProcess, kernel: str) -> list[str]:
    """The code cells of the record's notebook."""
    answer = gateway.get(f"/v1/sessions/{kernel}/notebook")
    assert answer.status == 200, answer.body
    return ["".join(cell["source"]) for cell in answer.json()["cells"] if cell["cell_type"] == "code"]


def test_jupyter_server_with_a_gateway_url(jupyter: GatewayProcess, tmp_path: Path) -> None:
    """Start, execute, interrupt, restart, shut down; what it ran is in the record."""
    happened = run_client(jupyter, "server.py", tmp_path)
    assert happened["cell"] == CELL
    assert happened["interrupted"] == ["busy", "execute_input", "stream", "error", "execute_reply", "idle"]
    assert happened["restarted"] == [word for word in CELL if word != "stream"]
    assert happened["deleted"] == 204
    assert jupyter.get(f"/api/kernels/{happened['kernel']}").status == 404
    assert len(recorded_cells(jupyter, happened["kernel"])) == 3
    assert jupyter.model(happened["opened"])["title"].endswith("work/a.ipynb")
    assert jupyter.model(happened["kernel"])["title"] is None


def test_jupyter_kernel_client(jupyter: GatewayProcess, tmp_path: Path) -> None:
    happened = run_client(jupyter, "kernel_client.py", tmp_path)
    assert happened == {"cell": ["stream", "execute_result"], "failed": "error", "restarted": ["5"]}


@pytest.mark.nightly
def test_jupyterlab_services_in_node(jupyter: GatewayProcess, tmp_path: Path) -> None:
    """The v1 subprotocol, a comm with a buffer, an interrupt, a broken socket, a restart, a shutdown."""
    happened = run_client(jupyter, "services.js", tmp_path)
    outputs = [word for word in CELL if word != "execute_reply"]
    assert happened["protocol"] == V1
    assert happened["language"] == "python"
    assert happened["cell"] == {"seen": outputs, "status": "ok"}
    assert happened["failed"] == {"seen": ["busy", "execute_input", "error", "idle"], "status": "error"}
    assert happened["completed"] == ["print"]
    assert happened["comm"] == {"n": 2, "bytes": [3, 2, 1]}
    interrupted = {"seen": ["busy", "execute_input", "stream", "error", "idle"], "status": "error"}
    assert happened["interrupted"] == interrupted
    assert happened["reconnected"] == {"missed": True, "printed": "0\n1\n2\n3\n4\n5\n"}
    # JupyterLab says of an autorestarting kernel that it appears to have died.
    assert "autorestarting" not in happened["statuses"]
    assert happened["restarted"] == {"seen": ["busy", "execute_input", "stream", "idle"], "status": "ok"}
    assert happened["shared"] == "ok"
    assert happened["left"] is False
    assert jupyter.get(f"/api/kernels/{happened['kernel']}").status == 404
    assert recorded_cells(jupyter, happened["kernel"])[0] == "print('hi', end=''); 1 + 1"


def test_nbclient_and_papermill(jupyter: GatewayProcess, tmp_path: Path) -> None:
    """Through Jupyter Server's GatewayKernelManager, with a cell that fails: those after it are not run."""
    happened = run_client(jupyter, "notebooks.py", tmp_path)
    loop = [["text/plain"]] * 2
    failing = [FIGURE], ["before\n", "ZeroDivisionError"], []
    shown = [[], ["hi\n", ["text/plain"], *loop, ["text/plain"]], *failing]
    assert happened["nbclient"] == {"failed": "ZeroDivisionError", "shown": shown}
    shown = [[], [], ["hi\n", *loop, ["text/plain"]], [FIGURE]]
    assert happened["papermill"] == {"failed": None, "shown": shown}
    shown = [*shown[:3], *failing]
    assert happened["failing"] == {"failed": "ZeroDivisionError", "shown": shown}


@pytest.mark.nightly
def test_the_documented_recipe_for_papermill_with_a_notebook_that_names_no_kernel(
    jupyter: GatewayProcess, tmp_path: Path
) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "connect-jupyter-clients.md"
    happened = run_client(jupyter, "recipe.py", tmp_path, str(page))
    assert happened == {"printed": ["2\n"]}


@pytest.mark.nightly
def test_the_documented_recipe_for_nbconvert(jupyter: GatewayProcess, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "connect-jupyter-clients.md"
    assert run_client(jupyter, "nbconvert_command.py", tmp_path, str(page)) == {"made": True}


@pytest.mark.nightly
def test_nbclient_without_a_token(start_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    """As it comes: Jupyter Server's headless client sends no token with its WebSocket."""
    gateway = start_gateway(pool_size=1, no_auth=True)
    happened = run_client(gateway, "notebooks.py", tmp_path, token="")
    assert happened["nbclient"]["failed"] == "ZeroDivisionError"


@pytest.mark.parametrize("which", mostly_nightly(["autogen", "ag2"], ["autogen"]))
def test_autogen_and_ag2(jupyter: GatewayProcess, tmp_path: Path, which: str) -> None:
    """Their own executors. They stop listening at an error and send the next cell at once, which must run."""
    assert run_client(jupyter, "executors.py", tmp_path, which) == {
        "cell": "\nhi\n\n42",
        "files": ["PNG"],
        "failed": [1],
        "named": True,
        "after": [str(number) for number in range(10)],
        "restarted": "False",
    }


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
