"""The example notebooks: executed through a real gateway, and with nbclient as the oracle.

nbclient starts the gateway's own kernelspec by Jupyter's plain local provisioner, so both sides run the same
interpreter and packages while nothing of Cellgate is in the oracle's way.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import struct
import sys
import time
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets import Type

from cellgate_kernels.specs.catalog import data_folder
from tests.support.server import GatewayProcess

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ANALYSIS = NOTEBOOKS / "elnino.ipynb"
QUICKSTART = NOTEBOOKS / "quickstart.ipynb"
LEAST_FIGURES = 3

ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def read(path: Path) -> NotebookNode:
    """The notebook, validated."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


class LookingAgain(AsyncZMQSocketChannel):
    """A channel that looks twice a second for what has come.

    nbclient sends an Output widget's state on the socket at which it waits for a reply. libzmq tells once
    that something has changed, and the send may take that for itself: the reply then lies there until the
    wait ends.
    """

    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        """Return the next message. Raises Empty after `timeout` seconds."""
        patience = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return await super().get_msg(0.5)
            except Empty:
                if patience is not None and time.monotonic() > patience:
                    raise


class LookingAgainClient(AsyncKernelClient):
    """nbclient's client of a kernel, with such a channel for replies."""

    shell_channel_class = Type(LookingAgain)


async def run_with_nbclient(notebook: NotebookNode, folder: Path, env: dict[str, str]) -> None:
    """Execute `notebook` in place, in a kernel that is an ordinary process with its home in `folder`."""
    specs = KernelSpecManager(
        kernel_dirs=[str(data_folder(Path(sys.prefix)) / "kernels")], ensure_native_kernel=False
    )
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=specs,
        transport="ipc",
        connection_file=str(folder / "k.json"),
    )
    manager.client_factory = LookingAgainClient
    assert manager.kernel_spec is not None
    manager.kernel_spec.metadata.pop("kernel_provisioner", None)
    await manager.start_kernel(
        cwd=str(folder), env={"HOME": str(folder), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **env}
    )
    try:
        client = NotebookClient(
            notebook, km=manager, timeout=90, coalesce_streams=True, shutdown_kernel="immediate"
        )
        await client.async_execute(cleanup_kc=True)
    finally:
        if manager.has_kernel:
            await manager.shutdown_kernel(now=True)


def joined(value: Any) -> Any:
    """nbformat allows a text to be a list of lines."""
    return "".join(value) if isinstance(value, list) else value


def png_size(data: str) -> tuple[int, int]:
    """Width and height in pixels, from the image's header."""
    head = base64.b64decode(joined(data))[:24]
    assert head.startswith(PNG_SIGNATURE)
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def comparable(output: dict[str, Any]) -> dict[str, Any]:
    """An output with images as their sizes and without memory addresses, which differ from run to run."""
    if output["output_type"] == "stream":
        return {"stream": output["name"], "text": ADDRESS.sub("0x", joined(output["text"]))}
    data = {
        mime: png_size(content) if mime == "image/png" else ADDRESS.sub("0x", str(joined(content)))
        for mime, content in output["data"].items()
    }
    return {
        "type": output["output_type"],
        "data": data,
        "metadata": dict(output["metadata"]),
        "execution_count": output.get("execution_count"),
    }


def images(outputs: list[Any]) -> list[str]:
    return [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_stored_notebook_is_complete(path: Path) -> None:
    """Valid nbformat 4.5, executed in order from a fresh kernel, without errors and warnings."""
    notebook = read(path)
    cells = code_cells(notebook)
    outputs = [output for cell in cells for output in cell.outputs]

    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert outputs
    assert [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"] == []


@pytest.mark.nightly
def test_analysis_gives_the_same_outputs_through_the_gateway_as_with_nbclient(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    """Cell by cell: the same texts and tables, and as many images of the same sizes."""
    notebook = read(ANALYSIS)
    cells = code_cells(notebook)
    results = [gateway.execute(session, cell.source) for cell in cells]
    assert [result["status"] for result in results] == ["ok"] * len(cells)

    asyncio.run(run_with_nbclient(notebook, tmp_path, {}))
    for cell, result in zip(cells, results, strict=True):
        ours = [comparable(output) for output in result["outputs"]]
        assert ours == [comparable(output) for output in cell.outputs], f"cell {cell.id}"
        assert result["execution_count"] == cell.execution_count
    assert sum(len(images(result["outputs"])) for result in results) >= LEAST_FIGURES


def test_quickstart_finds_the_gateway_of_the_readme() -> None:
    """Its address and token are those of README's first command, unless variables name others."""
    source = next(cell.source for cell in code_cells(read(QUICKSTART)) if "TOKEN = " in cell.source)
    assigned = [line for line in source.splitlines() if line.startswith(("URL = ", "TOKEN = "))]
    found: dict[str, Any] = {"os": SimpleNamespace(environ={})}
    exec("\n".join(assigned), found)
    readme = (NOTEBOOKS.parent / "README.md").read_text()
    assert f"$ CELLGATE_TOKEN={found['TOKEN']} make run\n" in readme
    assert f"serves at {found['URL']}\n" in readme


def test_quickstart_runs_against_a_gateway(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Every step of the tour works as its text says; the notebook itself needs only the two variables."""
    notebook = read(QUICKSTART)
    environment = {"CELLGATE_URL": gateway.url, "CELLGATE_TOKEN": gateway.token}
    asyncio.run(run_with_nbclient(notebook, tmp_path, environment))
    cells = {cell.id: cell for cell in code_cells(notebook)}
    text = {
        name: "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for name, cell in cells.items()
    }

    assert "7.7" in text["state"]
    # ipykernel sends what one `print` writes as two messages if the machine is slow.
    streamed = text["stream"].splitlines()
    printed = " ".join(line.removeprefix("stdout:") for line in streamed if line.startswith("stdout:"))
    assert printed.split() == ["step", "0", "step", "1", "step", "2"]
    assert [line for line in streamed if not line.startswith("stdout:")] == ["result: 4", "finished: ok"]
    (plot,) = images(cells["plot"].outputs)
    assert min(png_size(plot)) > 100
    assert "KeyError" in text["error"]
    assert "\x1b" not in text["error"]
    assert text["problem"] == "404 application/problem+json not_found\n"
    assert "status: timeout | cause: cell_timeout" in text["timeout"]
    assert "output so far: first half done" in text["timeout"]
    assert "HTTP 202" in text["async"]
    assert "ok | done in the background" in text["async"]
    assert "nbformat 4.5" in text["export"]
    assert "session is ours: True" in text["provenance"]
    assert text["delete"].startswith("HTTP 204\nstate: ended\n")
    assert gateway.token not in json.dumps(notebook)
