"""The memory of sessions as limits count it, and what is said when a process beside a kernel is killed."""

from __future__ import annotations

from typing import Any

import psutil

from cellgate_kernels.base.resources import MIB
from tests.gateway.kernels.test_fork_server import cgroups
from tests.support.server import GatewayProcess, until

__all__ = ["cgroups"]

HELD = 100 * MIB
FORKS = """
import os, time
ended = []
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(b'x') * (90 << 20)
        time.sleep(2)
        os._exit(0)
print(9 in [os.wait()[1] for _ in range(4)])
"""


def memory_of(gateway: GatewayProcess, session: str) -> int:
    """What is told; 0 as long as the last look is one from before the session."""
    found: int = gateway.get(f"/v1/sessions/{session}?usage=true").json().get("memory", 0)
    return found


def resident(gateway: GatewayProcess) -> int:
    """Bytes of all processes below the gateway, each with all that it shares."""
    found = 0
    for process in psutil.Process(gateway.process.pid).children(recursive=True):
        try:
            found += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found


def test_what_checkpoints_and_branches_share_counts_once(
    sandbox: None, cgroups: None, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, f"held = bytearray(b'x' * {HELD})")
    # The last look may be one before the cell.
    until(lambda: memory_of(gateway, session) > HELD, "what the cell holds is not counted")
    before = memory_of(gateway, session)
    assert before < 2 * HELD
    for _ in range(4):
        assert gateway.post(f"/v1/sessions/{session}/checkpoints", {}).status == 201
    branch = gateway.post(f"/v1/sessions/{session}/branch", {})
    assert branch.status == 201, branch.body
    try:
        assert resident(gateway) > 5 * HELD
        # Each fork has page tables of its own; a look at all kernels is valid for a while.
        until(lambda: memory_of(gateway, session) > before, "no other look is taken")
        assert memory_of(gateway, session) < before + HELD
    finally:
        gateway.delete(f"/v1/sessions/{branch.json()['session']}")


def test_a_process_killed_at_the_limit_is_told(
    sandbox: None, cgroups: None, gateway: GatewayProcess, session: str
) -> None:
    """While the kernel goes on: in the result, in its text, and in a metric, and not with the next cell."""
    body: dict[str, Any] = {"session": session, "limits": {"memory": 256 * MIB}}
    assert gateway.post("/v1/sessions", body).status == 201
    counted = "cellgate_memory_kills_total "
    before = metric(gateway, counted)
    result = gateway.execute(session, FORKS)
    assert (result["status"], result["stdout"]) == ("ok", "True\n")
    assert result["memory_kills"] >= 1
    assert "killed: the session had reached its limit of memory" in result["text"]
    assert metric(gateway, counted) == before + result["memory_kills"]
    assert "memory_kills" not in gateway.execute(session, "1")


def metric(gateway: GatewayProcess, name: str) -> float:
    lines = gateway.get("/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1])
