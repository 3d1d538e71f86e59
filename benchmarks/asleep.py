"""Idle sessions with pandas, awake and asleep: how many fit a GiB, and how long waking takes.

In sandboxes, and in containers. It needs root, bubblewrap, a container engine with the kernel image, and disk
space for a swap file, which it makes and takes away again; so it runs only if named. Memory is what the
control groups charge, page tables and the like included. What forked kernels share with their zygote is not
in it; pages of the image's files count for the first container that reads them; the engine's own processes,
one for each container, asleep or not, are left out.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from docker.api.client import APIClient

from benchmarks.figures import MIB, Figure, at_least, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session
from cellgate_kernels.engine.container import INSTANCE_LABEL
from cellgate_kernels.limits.control_group import ControlGroup

SESSIONS = {"sandbox": 40, "docker": 10}
MOST_SECONDS = {"sandbox": 0.1, "docker": 0.5}
SWAP = 2048 * MIB
AFTER = 30.0
PATIENCE = 120.0
CELL = "import pandas as pd; frame = pd.DataFrame({'x': range(1000)}); frame.x.sum()"


def measure(options: Options) -> Sequence[Figure]:
    """Memory of a session awake and asleep, and the time of a cell that wakes its kernel, on any backend."""
    with _swap():
        return [figure for backend in SESSIONS for figure in _measure(backend, options)]


def _measure(backend: str, options: Options) -> Iterator[Figure]:
    count = options.count(SESSIONS[backend], 3)
    with (
        cellgate(backend, "--sleep-after", str(AFTER), "--pool-size", "0", "--memory", "512m") as server,
        server.client() as client,
    ):
        sessions = [Session(client, f"idle-{number}") for number in range(count)]
        for session in sessions:
            session.execute(CELL)
        groups = _groups(server) if backend == "docker" else _groups_below(server)
        awake = _memory(groups)
        if any(group.frozen for group in groups):
            raise RuntimeError("some sleep already")
        say(f"asleep: {awake / MIB:.1f} MiB a session awake, {backend}")
        _until_frozen(groups)
        asleep = _memory(groups)
        say(f"asleep: {asleep / MIB:.1f} MiB a session asleep, {backend}")
        waking = [_elapsed(session) for session in sessions]
        warm = [_elapsed(session) for session in sessions]
    details = {
        "sessions": count,
        "mib_awake": round(awake / MIB, 1),
        "mib_asleep": round(asleep / MIB, 1),
        "wake_p50_ms": round(quantile(waking, 0.5) * 1000, 1),
        "awake_cell_ms": round(quantile(warm, 0.5) * 1000, 1),
    }
    yield Figure(f"{backend}: sessions in a GiB, asleep against awake", awake / asleep, "x", at_least(8))
    yield Figure(f"{backend}: sessions asleep in a GiB", 1024 * MIB / asleep, "", at_least(150))
    most = at_most(MOST_SECONDS[backend])
    yield Figure(f"{backend}: a cell that wakes its kernel, p95", quantile(waking, 0.95), "s", most, details)


def _elapsed(session: Session) -> float:
    began = time.monotonic()
    session.execute("1+1")
    return time.monotonic() - began


def _memory(groups: Sequence[ControlGroup]) -> float:
    return sum(group.memory_used() for group in groups) / len(groups)


@contextmanager
def _swap() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="bench-swap-", dir="/var/tmp") as folder:
        file = Path(folder) / "swap"
        with file.open("wb") as made:
            os.posix_fallocate(made.fileno(), 0, SWAP)
        file.chmod(0o600)
        for program in ("mkswap", "swapon"):
            subprocess.run([program, file], check=True, capture_output=True, timeout=60)
        try:
            yield
        finally:
            subprocess.run(["swapoff", file], check=True, capture_output=True, timeout=PATIENCE)


def _groups(server: Server) -> list[ControlGroup]:
    client = APIClient()
    instance = (server.folder / "data" / "instance").read_text()
    listed = client.containers(filters={"label": f"{INSTANCE_LABEL}={instance}"})
    processes = [client.inspect_container(entry["Id"])["State"]["Pid"] for entry in listed]
    client.close()
    return [group for process in processes if (group := ControlGroup.of(process)) is not None]


def _groups_below(server: Server) -> list[ControlGroup]:
    processes = [child.pid for child in server.process.children(recursive=True)]
    found = [group for process in processes if (group := ControlGroup.of(process)) is not None]
    return list(dict.fromkeys(found))


def _until_frozen(groups: Sequence[ControlGroup]) -> None:
    """Until all sleep and nothing more is given back."""
    deadline = time.monotonic() + PATIENCE
    before = -1
    while (used := sum(group.memory_used() for group in groups)) != before or not all(
        group.frozen for group in groups
    ):
        if time.monotonic() > deadline:
            raise TimeoutError("not all kernels sleep")
        before = used
        time.sleep(1)
