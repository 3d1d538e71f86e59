"""A mistake of ours in a real gateway: told in its log, and the session goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import INSTALLED
from tests.support.server import GatewayProcess

FAULTY = """
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

class Patched(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "cellgate.files.watch":
            return None
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            changes = module.WorkspaceWatch.changes
            async def faulty(watch, root):
                if (root / "fault").exists():
                    (root / "fault").unlink()
                    raise LookupError("nobody expects it")
                return await changes(watch, root)
            module.WorkspaceWatch.changes = faulty
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Patched())
"""


@pytest.mark.parametrize("log_json", [False, True])
def test_a_real_gateway_tells_of_a_fault_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, log_json: bool
) -> None:
    """A collaborator of the worker fails, by code that the gateway is started with."""
    (tmp_path / "sitecustomize.py").write_text(FAULTY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    gateway = GatewayProcess(tmp_path / "data", command=INSTALLED, log_json=log_json)
    try:
        for _ in range(2):
            result = gateway.execute("a-session", "open('fault', 'w').close(); 6 * 7")
            assert (result["status"], result["text"]) == ("ok", "42")
            assert gateway.execute("a-session", "1 + 1")["text"] == "2"
        waiting = gateway.hold("a-session", "open('fault', 'w').close(); input()")
        behind = gateway.submit("a-session", "3")
        kernel = gateway.model("a-session")["kernel_id"]
        gateway.answer("a-session", waiting)
        assert gateway.ended("a-session", waiting)["status"] == "ok"
        ended = gateway.ended("a-session", behind)
        assert (ended["status"], ended["cause"]) == ("cancelled", "internal_error")
        assert gateway.stop() == 0
    finally:
        gateway.kill()
    log = gateway.log.read_text()
    assert log.count("LookupError: nobody expects it") == 3
    lines = [line for line in log.splitlines() if "Task 'worker' failed" in line]
    assert len(lines) == 3
    for line in lines:
        assert "a-session" in line
        assert kernel in line
    assert "never retrieved" not in log
    assert "was destroyed" not in log
