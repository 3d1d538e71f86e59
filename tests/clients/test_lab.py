"""JupyterLab in a real browser, through a real Jupyter Server, on the gateway's kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tests.clients.processes import run_client
from tests.support.browser import program
from tests.support.server import GatewayProcess

ARTIFACTS = Path(__file__).parents[2] / "artifacts"


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: NotebookNode) -> list[NotebookNode]:
    """Its outputs but for the question that the page itself adds."""
    return [output for output in cell.outputs if output.get("name") != "stdin"]


@pytest.mark.timeout(300)
def test_a_notebook_in_jupyterlab(jupyter: GatewayProcess, tmp_path: Path) -> None:
    """Plot, JSON, updates, cleared output, a question, an error, a reload, a restart; recorded as saved."""
    try:
        happened = run_client(jupyter, "lab.py", tmp_path, program(), deadline=240)
    finally:
        if (tmp_path / "lab.png").exists():
            ARTIFACTS.mkdir(exist_ok=True)
            shutil.copy(tmp_path / "lab.png", ARTIFACTS / "jupyterlab.png")
    assert happened["picture"] > 100
    assert happened["dialogs"] == 0
    answer = jupyter.get(f"/v1/sessions/{happened['kernel']}/notebook")
    recorded = code_cells(nbformat.reads(answer.body.decode(), as_version=4))  # type: ignore[no-untyped-call]
    saved = code_cells(nbformat.read(tmp_path / "saved.ipynb", as_version=4))  # type: ignore[no-untyped-call]
    assert len(saved) == 6
    assert [cell.source for cell in recorded[:6]] == [cell.source for cell in saved]
    as_saved = [shown(cell) for cell in saved]
    # The record has the question and its answer as a terminal shows them.
    as_saved[4][0].text = f"Your name? Ada\n{as_saved[4][0].text}"
    assert [shown(cell) for cell in recorded[:6]] == as_saved
    assert recorded[6].source == saved[0].source
