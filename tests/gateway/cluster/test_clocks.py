"""A gateway of a cluster whose wall clock is set while it serves: nothing depends on it but what it notes."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.gateway.cluster.test_nodes import SHORT, is_valid, states
from tests.support.commands import INSTALLED
from tests.support.free_ports import free_port
from tests.support.nodes import cluster_key
from tests.support.server import GatewayProcess, until

LEAP = 4000
"""Seconds: more than what the age of records is trusted with, and than any limit of the test's sessions."""
SET_CLOCK = """
import mmap, struct, time

with open({file!r}, "rb") as file:
    ahead = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
right, right_ns = time.time, time.time_ns
time.time = lambda: right() + struct.unpack("d", ahead[:8])[0]
time.time_ns = lambda: right_ns() + int(struct.unpack("d", ahead[:8])[0] * 10**9)
"""
"""What a process runs first whose clock the test sets."""


class WallClock:
    """The wall clock of gateways that are started from now on, which `set` puts ahead or back."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = folder / "ahead"
        file.write_bytes(bytes(mmap.PAGESIZE))
        with file.open("r+b") as opened:
            self._ahead = mmap.mmap(opened.fileno(), 0)
        (folder / "sitecustomize.py").write_text(SET_CLOCK.format(file=str(file)))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))

    def set(self, ahead: float) -> None:
        """Put the clock so many seconds ahead of the right time."""
        self._ahead[:8] = struct.pack("d", ahead)


def ahead_of_us(node: GatewayProcess, session: str) -> float:
    """By how many seconds the time of a session's last event is ahead of this process' clock."""
    at = datetime.fromisoformat(node.recorded(session)[-1]["at"])
    return (at - datetime.now(UTC)).total_seconds()


def test_a_wall_clock_that_is_set_ends_nothing(
    start_gateway: StartGateway, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour ahead, an hour back and right again: leases, idle times, deadlines and retention go on."""
    options = {"cluster": database, "cluster_key": cluster_key(tmp_path), "cull_interval": 0.1, **SHORT}
    options |= {"retention_days": LEAP / 86400 / 2, "retention_interval": 0.1}
    clock_folder = tmp_path / "clock"
    clock_folder.mkdir()
    two = start_gateway(advertise=f"http://127.0.0.1:{(port := free_port())}", port=port, **options)
    clock = WallClock(clock_folder, monkeypatch)
    port = free_port()
    where = f"http://127.0.0.1:{port}"
    one = start_gateway(advertise=where, port=port, command=INSTALLED, **options)
    one.post("/v1/sessions", {"session": "idle", "limits": {"idle_timeout": LEAP / 2, "lifetime": LEAP / 2}})
    one.execute("idle", "x = 1")
    one.execute("ended", "x = 1")
    assert one.delete("/v1/sessions/ended").status == 204
    two.execute("others", "x = 1")
    runs = one.submit("runs", "print('got', input())", timeout=LEAP / 2)
    until(lambda: one.get("/v1/sessions/runs").json()["state"] == "busy", "the cell does not run")
    for leaps, ahead in enumerate((LEAP, -LEAP, 0), 1):
        clock.set(ahead)
        leapt = "The system clock"
        until(lambda: one.log.read_text().count(leapt) == leaps, "the leap is not noticed")  # noqa: B023
        time.sleep(SHORT["lease"] + SHORT["beat"])
        assert one.execute("idle", "x")["kernel"]["replaced"] is False
        assert abs(ahead_of_us(one, "idle") - ahead) < LEAP / 4, (
            "an event has the time as the gateway sees it"
        )
        assert two.execute("others", "x")["kernel"]["replaced"] is False
        assert [each["state"] for each in two.get("/v1/cluster").json()["nodes"]] == ["up", "up"]
        assert states(one) == states(two)
        refused = two.post("/v1/sessions/idle/execute", {"code": "1"})
        assert refused.status == (200 if ahead == 0 else 400), refused.body
        assert two.get("/v1/sessions/ended").status == (200 if ahead == 0 else 400)
        assert one.get("/v1/sessions/ended").json()["state"] == "ended"
    one.answer("runs", runs, "it")
    assert one.ended("runs", runs)["status"] == "ok"
    assert {node.get("/v1/cluster").json()["takeovers"] for node in (one, two)} == {0}
    for node in (one, two):
        assert "was silent" not in node.log.read_text()
        assert "Removed the records" not in node.log.read_text()
    assert is_valid(database)
