"""The door for E2B's SDKs with E2B_DEBUG: the ports of their own machine, without a token.

The ports are fixed, so gateway and client have a network of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import INSTALLED, refusal
from tests.support.own_network import BUBBLEWRAP, run_in_own_network

REQUESTS = "tests.gateway.doors.debug_requests"


@pytest.mark.usefixtures("sandbox")
def test_one_sandbox_for_programs_of_this_machine(tmp_path: Path) -> None:
    options = {"doors": "e2b", "e2b_debug": True, "trusted_proxies": "127.0.0.1,::1"}
    said = run_in_own_network(tmp_path, options, [sys.executable, "-m", REQUESTS, tmp_path / "data"])
    assert json.loads(said) == {
        "running": 204,
        "first": "6\n",
        "kept": "42\n",
        "contexts": [False, True],
        "written": 200,
        "read": [200, '"text"'],
        "made": [201, "debug_sandbox_id"],
        "same": "6\n",
        "env": "yes\n",
        # No client would make it live longer.
        "limits": [[300, 86400]],
        "listed": ["debug_sandbox_id"],
        "ended": 204,
        "new": "NameError",
        "page": 403,
        "picture": 403,
        "rebound": 403,
        "rebound as if by a proxy": 403,
        "elsewhere": [401, 401, 501, 501],
        "with users": 403,
    }


@pytest.mark.usefixtures("sandbox")
def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    first = "import socket, subprocess, sys; s = socket.create_server(('127.0.0.1', 49983)); "
    serve = [INSTALLED, "serve", "--port=0", f"--data-dir={tmp_path / 'data'}", "--backend=process"]
    command = [sys.executable, "-c", f"{first}sys.exit(subprocess.run(sys.argv[1:]).returncode)", *serve]
    done = subprocess.run(
        [*BUBBLEWRAP, *command, "--doors=e2b", "--e2b-debug"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Can't listen on localhost:49983" in done.stderr
    assert "start without --e2b-debug" in done.stderr


def test_the_ports_need_the_door(tmp_path: Path) -> None:
    code, said = refusal("--e2b-debug", "--port=0", f"--data-dir={tmp_path}", "--backend=process")
    assert (code, "--e2b-debug needs --doors e2b" in said) == (2, True)
