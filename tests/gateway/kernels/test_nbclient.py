"""The sandboxed kernelspec in other Jupyter programs, without the gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

SCRIPTS = Path(sys.executable).parent


@pytest.fixture
def jupyter_environment(sandbox: None, kernel_prefix: Path, tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": os.defpath, "HOME": str(home), "JUPYTER_PATH": str(kernel_prefix)}


def run(environment: dict[str, str], *command: str, cwd: Path | None = None) -> str:
    program = [str(SCRIPTS / command[0]), *command[1:]]
    done = subprocess.run(
        program, env=environment, cwd=cwd, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nbclient_runs_a_notebook_in_the_sandbox(jupyter_environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "analysis"
    folder.mkdir()
    (folder / "numbers.csv").write_text("a,b\n1,2\n3,4\n")
    notebook = new_notebook(
        cells=[
            new_code_cell("import socket; print(socket.gethostname())"),
            new_code_cell("import pandas; table = pandas.read_csv('numbers.csv'); int(table.b.sum())"),
            new_code_cell("table.plot(x='a', y='b');"),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    path = folder / "analysis.ipynb"
    nbformat.write(notebook, path)
    run(jupyter_environment, "jupyter-execute", "--inplace", path.name, cwd=folder)
    text, result, figure = (cell.outputs for cell in nbformat.read(path, as_version=4).cells)
    assert text[0].text == "cellgate\n"
    assert result[0].data["text/plain"] == "6"
    assert "image/png" in figure[0].data
    assert sorted(entry.name for entry in folder.iterdir()) == ["analysis.ipynb", "numbers.csv"]


def test_jupyter_lists_the_provisioners_and_the_kernelspec(jupyter_environment: dict[str, str]) -> None:
    listed = run(jupyter_environment, "jupyter-kernelspec", "provisioners")
    assert "cellgate-process" in listed
    assert "cellgate-sandbox" in listed
    assert jupyter_environment["JUPYTER_PATH"] in run(jupyter_environment, "jupyter-kernelspec", "list")
