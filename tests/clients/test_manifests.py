"""The files of deploy/kubernetes by the schemas of Kubernetes, as `kubernetes-validate` has them.

No API server is asked: what refers to what is checked by `tests/pure/test_kubernetes.py`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clients.processes import ENVIRONMENT
from tests.support.requirements import require

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")


def validated(*files: Path) -> subprocess.CompletedProcess[str]:
    """The program's answer about files; the test is skipped where the program is missing."""
    program = ENVIRONMENT / "bin" / "kubernetes-validate"
    if not program.exists():
        require("clients", "kubernetes-validate is not installed; run: make clients")
    return subprocess.run(
        [program, "--strict", *files], check=False, capture_output=True, text=True, timeout=100
    )


def test_every_file_is_valid() -> None:
    done = validated(*FILES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "wrong"),
    [("publishNotReadyAddresses: true", "publishNotReadyAdresses: true"), ("port: 8888", "port: eight")],
)
def test_a_mistake_is_found(tmp_path: Path, given: str, wrong: str) -> None:
    """A misspelt field, and a value of another kind."""
    text = (FOLDER / "services.yaml").read_text()
    assert given in text
    file = tmp_path / "services.yaml"
    file.write_text(text.replace(given, wrong))
    assert validated(file).returncode != 0
