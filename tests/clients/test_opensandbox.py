"""Clients of OpenSandbox as they are released, at the gateway's door for it.

Its own SDKs are in the environment of ``make clients``. LangChain's backend (110 MB with what it brings) and
LiteLLM's proxy (580 MB) are in those of ``make newest-clients`` alone, which brings these tests there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.processes import ENVIRONMENT, run_client
from tests.conftest import NO_ENGINE, serving
from tests.support.requirements import require
from tests.support.server import GatewayProcess

newest = pytest.mark.nightly


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with the door."""
    data = tmp_path_factory.mktemp("opensandbox") / "data"
    with serving(data, "sandbox", doors="opensandbox", docker_url=NO_ENGINE) as process:
        yield process


def run(gateway: GatewayProcess, folder: Path, which: str, package: str) -> dict[str, Any]:
    """What a client saw. Skips the test where its package is not installed."""
    if not any(ENVIRONMENT.glob(f"lib/python3*/site-packages/{package}")):
        where = "newest-clients" if which in {"langchain", "litellm"} else "clients"
        require(where, f"{package} is not installed; run: make {where}")
    return run_client(gateway, "open_sandboxes.py", folder, which)


def test_sandboxes(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Commands, files, what is told of a sandbox, another client, what is refused."""
    assert run(gateway, tmp_path, "sdk", "opensandbox") == {
        "hello": ["Hello Sandbox!", 0],
        "info": ["Running", {"who": "us & them"}, "ubuntu", True],
        "renewed": True,
        "patched": {"who": "us & them", "more": "1"},
        "streamed": [["1", "2", "3"], 4, "CommandExecError"],
        "options": "/tmp\nyes 1",
        "late": ["the command ran longer than its time"],
        "background": ["one\n", True, "signal: SIGTERM", "echo one; sleep 60"],
        "file": "Hello World",
        "searched": ["/tmp/own/hello.txt"],
        "deleted": [],
        "ran": "ran",
        "bytes": [0, 255],
        "listed": [["made/b", "file", 755], ["made/deep", "directory", 750], ["made/deep/c.sh", "file", 755]],
        "replaced": "echo x",
        "told": 2,
        "metrics": True,
        "all": [True],
        "again": "yes",
        "refused": {"snapshot": 501, "egress": 501, "session": 501, "port": 501, "file": 404},
        "ended": [],
    }


def test_code(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Cells and contexts of several languages, an interrupt; the same without asyncio."""
    assert run(gateway, tmp_path, "code", "code_interpreter") == {
        "async": {
            "result": ["4", True, True, True],
            "kept": "4",
            "apart": ["NameError", True],
            "default": "42",
            "bash": "3.11",
            "contexts": [True],
            "one": "python",
            "interrupted": "KeyboardInterrupt",
            "none": [],
        },
        "sync": "4",
    }


@newest
def test_langchain(gateway: GatewayProcess, tmp_path: Path) -> None:
    """A deep agent's shell and files, and a tool that finds its thread's sandbox again."""
    assert run(gateway, tmp_path, "langchain", "langchain_opensandbox") == {
        "executed": ["a\n\nb", 3],
        "fib": "832040",
        "down": "a, b",
        "written": None,
        "edited": None,
        "listed": ["/workspace/a.txt"],
        "matched": [2],
        "tool": ["one\nx", "one\nxx"],
    }


@newest
def test_litellm(gateway: GatewayProcess, tmp_path: Path) -> None:
    """A model without a code interpreter behind LiteLLM's proxy, in both of OpenAI's interfaces."""
    assert run(gateway, tmp_path, "litellm", "litellm") == {"chat": "It is 42.", "responses": ["It is 42."]}
