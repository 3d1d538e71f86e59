"""A gateway's log at the level `debug` replays as it is, and tells nothing of what users named or ran."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import StartGateway

NAME, SECRET = "named-by-a-user", "printed-by-a-cell"


def test_a_log_of_real_sessions_replays(start_gateway: StartGateway) -> None:
    gateway = start_gateway(log_level="DEBUG")
    results = [
        gateway.execute(NAME, f"print({SECRET!r})"),
        gateway.execute(NAME, "import time; time.sleep(60)", timeout=0.2),
        gateway.execute(NAME, "import os; os._exit(1)"),
        gateway.execute(NAME, "1 + 1"),
    ]
    assert [each["status"] for each in results] == ["ok", "timeout", "died", "ok"]
    assert gateway.post(f"/v1/sessions/{NAME}/restart").status == 200
    assert gateway.execute("other", "1")["status"] == "ok"
    assert gateway.stop() == 0
    log = gateway.log.read_text()
    told = subprocess.run(
        [sys.executable, "-m", "cellgate.sessions.decisions"],
        input=log,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in log.splitlines() if " decision " in line]
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == f"2 sessions, {len(lines) - 2} decisions; 0 without a beginning\n"
    for step in ("send", "restart", "note_death", "replace", "end"):
        assert any(f"-> {step} " in line for line in lines), step
    for kept in (NAME, SECRET, gateway.token):
        assert not any(kept in line for line in lines)
