"""Clients of other systems as they are released, at the gateway's doors for them.

Only E2B's are in the environment of ``make clients``. The packages of the others are in none but those of
``make newest-clients``, which brings these tests there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.processes import ENVIRONMENT, run_client
from tests.conftest import NO_ENGINE, serving
from tests.support.certificates import Authority
from tests.support.requirements import require
from tests.support.server import GatewayProcess
from tests.support.sleepers import require_freezing

newest = pytest.mark.nightly


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with the doors."""
    data = tmp_path_factory.mktemp("doors") / "data"
    with serving(data, "sandbox", doors="e2b,azure,librechat,piston,replit", docker_url=NO_ENGINE) as process:
        yield process


def run(gateway: GatewayProcess, folder: Path, which: str, package: str) -> dict[str, Any]:
    """What a client saw. Skips the test where its package is not installed."""
    in_node = (ENVIRONMENT / "node_modules" / package).exists()
    if not in_node and not any(ENVIRONMENT.glob(f"lib/python3*/site-packages/{package}")):
        where = "clients" if which.startswith("e2b") else "newest-clients"
        require(where, f"{package} is not installed; run: make {where}")
    return run_client(gateway, "doors.js" if in_node else "doors.py", folder, which)


def test_e2b(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Cells with live output, a context, files, commands, another client, the end."""
    assert run(gateway, tmp_path, "e2b", "e2b_code_interpreter") == {
        "cell": [[6, 42], ["hi\n"], ["hi\n"]],
        "kept": "6",
        "error": "ZeroDivisionError",
        "env": "yes",
        "picture": "iVBO",
        "context": "NameError",
        "files": ["written", ["b.txt"]],
        "packed": 100_000,
        "command": ["written", "no\n", 0],
        "refused": [["InvalidArgumentException", True], ["NotFoundException", True]],
        "info": [{"who": "us"}, True],
        "metrics": [True, True],
        "again": "6",
        "language": "42",
        "fork": ["7", "6", True],
        "folder": "/tmp\n",
        "joined": ["got a line\n", 3],
        "resized": True,
        "watched": [
            [["create", "new.txt"], ["write", "new.txt"]],
            [["rename", "new.txt", None], ["create", "newer.txt", 3], "TimeoutException"],
        ],
        "ended": False,
    }


def test_e2b_in_node(gateway: GatewayProcess, tmp_path: Path) -> None:
    """The same in JavaScript."""
    assert run(gateway, tmp_path, "e2b", "@e2b/code-interpreter") == {
        "cell": [[6, 42], ["hi\n"], ["hi\n"]],
        "kept": "6",
        "error": "ZeroDivisionError",
        "context": "NameError",
        "files": ["written", ["b.txt"]],
        "packed": 100_000,
        "command": ["written", "no\n", 0],
        "refused": [["InvalidArgumentError", True], ["NotFoundError", True]],
        "watched": [["create", "new.txt"], ["write", "new.txt"], "FileNotFoundError"],
        "metrics": True,
        "again": "6",
    }


@pytest.fixture
def freezing(sandbox: None, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway with the door whose kernels can be frozen."""
    require_freezing()
    with serving(
        tmp_path / "data", "sandbox", doors="e2b", sleep_after=3600.0, cull_interval=0.2, docker_url=NO_ENGINE
    ) as process:
        yield process


def test_pauses_of_e2b(freezing: GatewayProcess, tmp_path: Path) -> None:
    assert run(freezing, tmp_path, "e2b_pause", "e2b_code_interpreter") == {
        "paused": [True, False, False, "paused"],
        "listed": True,
        "resumed": ["6", True],
        "killed": True,
    }


def test_pauses_of_e2b_in_node(freezing: GatewayProcess, tmp_path: Path) -> None:
    found = run(freezing, tmp_path, "e2b_pause", "@e2b/code-interpreter")
    assert found == {"paused": [True, False, False], "resumed": ["6", True]}


def test_pauses_of_e2b_at_timeouts(freezing: GatewayProcess, swap: None, tmp_path: Path) -> None:
    assert run(freezing, tmp_path, "e2b_auto_pause", "e2b_code_interpreter") == {
        "lifecycle": {"on_timeout": "pause", "auto_resume": False},
        "running": False,
        "resumed": ["6", True],
        "killed": True,
    }


def test_pauses_of_e2b_at_timeouts_in_node(freezing: GatewayProcess, swap: None, tmp_path: Path) -> None:
    assert run(freezing, tmp_path, "e2b_auto_pause", "@e2b/code-interpreter") == {
        "lifecycle": {"onTimeout": "pause", "autoResume": False},
        "running": False,
        "resumed": ["6", True],
    }


@newest
def test_e2b_in_openai_agents(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Commands, files, terminals, and a workspace that outlives its sandbox."""
    found = run(gateway, tmp_path, "openai_agents", "agents/extensions/sandbox/e2b")
    assert found == {
        "exec": ["inyes\n/workspace\n", "no\n", 3],
        "file": True,
        "listed": ["a", "in.txt"],
        "running": True,
        "terminal": True,
        "background": ["begun\n", True],
        "port": True,
        "resumed": True,
        "in another sandbox": True,
    }


@newest
def test_librechat(gateway: GatewayProcess, tmp_path: Path) -> None:
    """LibreChat's tool: output, an error, a file."""
    found = run(gateway, tmp_path, "librechat", "@librechat/agents")
    assert found == {"printed": True, "failed": True, "made": True}


@newest
def test_piston(gateway: GatewayProcess, tmp_path: Path) -> None:
    assert run(gateway, tmp_path, "piston", "pyston") == {"python": True, "ran": ["42\n", 3]}


@newest
def test_replit(gateway: GatewayProcess, tmp_path: Path) -> None:
    assert run(gateway, tmp_path, "replit", "replit_code_exec") == {"ran": "42\n"}


@newest
def test_azure_in_autogen(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Cells, files in both directions, and the packages that there are."""
    assert run(gateway, tmp_path, "autogen", "azure/core") == {
        "cell": [0, True],
        "failed": [1, True],
        "read": True,
        "listed": ["in file.csv", "out.txt"],
        "made": ["made"],
        "packages": True,
    }


@newest
def test_azure_in_langchain(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Python and bash, a picture, a file."""
    assert run(gateway, tmp_path, "langchain", "langchain_azure_dynamic_sessions") == {
        "value": 42,
        "printed": "x\n",
        "picture": "png",
        "shell": True,
        "listed": ["x y.txt"],
        "file": "123",
    }


@newest
def test_azure_in_llama_index(gateway: GatewayProcess, tmp_path: Path) -> None:
    """A value and a file."""
    assert run(gateway, tmp_path, "llama_index", "llama_index/tools/azure_code_interpreter") == {
        "value": 2,
        "listed": ["f.txt"],
        "file": "abc",
    }


@newest
def test_azure_in_semantic_kernel(sandbox: None, tmp_path: Path) -> None:
    """Cells and files, over https."""
    certificate, key = Authority(tmp_path, "ca").issue("gateway", "127.0.0.1")
    options = {"doors": "azure", "docker_url": NO_ENGINE, "tls_cert": certificate, "tls_key": key}
    with serving(tmp_path / "data", "sandbox", **options) as gateway:
        assert run(gateway, tmp_path, "semantic_kernel", "semantic_kernel") == {
            "cell": ["42", "x"],
            "failed": True,
            "uploaded": "f.txt",
            "read": True,
            "listed": ["f.txt"],
            "file": "abc",
        }
