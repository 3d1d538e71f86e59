"""Real clients as real processes, in the environment that ``make clients`` builds beside the gateway's own.

Each is a script of ``programs/`` that is given the gateway's URL, its token and a folder, and prints what
happened as one JSON object. It gets a session of its own, a home in the folder, and a deadline; what it
has started ends with it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.families import running
from tests.support.requirements import require
from tests.support.server import TOKEN, GatewayProcess, until

SCRIPTS = Path(__file__).with_name("programs")
ENVIRONMENT = Path(os.environ.get("CELLGATE_CLIENTS") or Path(__file__).parents[2] / ".venv" / "clients")
"""Another one than that of ``make clients`` for ``tests/newest.py``."""
COMPLETE = ENVIRONMENT / ".setup-done"


def run_client(
    gateway: GatewayProcess,
    script: str,
    folder: Path,
    *arguments: str,
    token: str = TOKEN,
    deadline: float = 100,
) -> dict[str, Any]:
    """What a client's script prints; fails when it fails. Skips the test where there are no clients."""
    interpreter = _interpreter(script)
    output, log = folder / f"{script}.out", folder / f"{script}.log"
    command: list[str | Path] = [interpreter, SCRIPTS / script, gateway.url, token, folder, *arguments]
    with running(command, output, log, _environment(folder)) as process:
        status = process.wait(deadline)
    assert status == 0, log.read_text()[-10_000:]
    happened = json.loads(output.read_text().splitlines()[-1])
    assert isinstance(happened, dict)
    return happened


@contextmanager
def serving_program(script: str, folder: Path, deadline: float = 60) -> Iterator[dict[str, Any]]:
    """A script that serves until the end of the context; what it prints, as one JSON line, once it does."""
    output, log = folder / f"{script}.out", folder / f"{script}.log"
    with running([_interpreter(script), SCRIPTS / script], output, log, _environment(folder)) as process:

        def printed() -> str | None:
            assert process.poll() is None, log.read_text()[-10_000:]
            return next((line for line in output.read_text().splitlines(True) if line[-1] == "\n"), None)

        happened = json.loads(until(printed, f"{script} does not serve", deadline))
        assert isinstance(happened, dict)
        yield happened


def _interpreter(script: str) -> str:
    """What runs a script; the test is skipped where it is missing."""
    if not COMPLETE.exists():
        require("clients", "the clients are not installed; run: make clients")
    interpreter = "node" if script.endswith(".js") else str(ENVIRONMENT / "bin" / "python")
    if shutil.which(interpreter) is None:
        require("clients", "node is not installed; with apt-get: nodejs npm")
    return interpreter


def _environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("CELLGATE_")}
    return kept | {
        "HOME": str(folder),
        "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "NODE_PATH": str(ENVIRONMENT / "node_modules"),
    }
