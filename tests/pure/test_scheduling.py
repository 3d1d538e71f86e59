"""Processes of a run that die in a test: the run goes on without it, ends, and names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support.scheduling import TogetherWhereShared

def pytest_xdist_make_scheduler(config, log):
    return TogetherWhereShared(config, log)
"""
SHARED = """
import pytest

@pytest.fixture(scope="module", autouse=True)
def shared():
    pass
"""


def planted(names: str, dying: str) -> str:
    """A module of tests; some of them end their process."""
    bodies = {name: "os._exit(3)" if name in dying else "pass" for name in names}
    return "import os\n" + "".join(f"def test_{name}(): {body}\n" for name, body in bodies.items())


@pytest.mark.parametrize(
    ("alone", "together", "dying"),
    [("abcd", "", "b"), ("a", "", "a"), ("ab", "", "ab"), ("a", "pqrs", "r"), ("abcd", "pqrs", "ds")],
)
def test_a_run_ends_and_names_the_tests_that_ended_their_process(
    tmp_path: Path, alone: str, together: str, dying: str
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_alone.py").write_text(planted(alone, dying))
    (tmp_path / "test_together.py").write_text(SHARED + planted(together, dying))
    plugins = ["-p", "xdist", "-p", "no:cacheprovider", "-n2", "-rA", "-q"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir=.", "-c", os.devnull, "."]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = {line.partition(" - ")[0] for line in done.stdout.splitlines()}
    for name in alone + together:
        module = "test_alone.py" if name in alone else "test_together.py"
        assert f"{'FAILED' if name in dying else 'PASSED'} {module}::test_{name}" in lines, done.stdout
