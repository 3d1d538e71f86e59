"""The cost of containers: cells, cold and warm starts, turnover and memory, each against a rival in one run.

It needs a container engine with the kernel image, and bubblewrap, so it runs only if named. Rivals take
turns, round by round. The peer for turnover is jupyter_kernel_gateway with plain process kernels: mostly the
same packages, and no isolation.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from docker.api.client import APIClient

from benchmarks.channels import Channels
from benchmarks.figures import MB, Figure, at_least, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import KERNELSPECS, Server, cellgate, jupyter_kernel_gateway
from benchmarks.sessions import Session
from benchmarks.starts import COLD
from cellgate_kernels.base.settings import IMAGE
from cellgate_kernels.engine.container import INSTANCE_LABEL

SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
CELLS = 50
CONCURRENT = 2
ATTACKS = {
    "100 busy threads": "import threading\n"
    "def work():\n while True: pass\n"
    "for _ in range(99): threading.Thread(target=work).start()\n"
    "work()",
    "a fork bomb": "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
    "memory": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "the disk": "for i in range(10**6): open(str(i), 'wb').write(bytes(1 << 24))",
    "output": "while True: print('x' * 100)",
}
PLAIN = [
    *("docker", "run", "--rm", "--network", "none", "--entrypoint", "/opt/cellgate/bin/python"),
    *(IMAGE, "-c", "import ipykernel.kernelapp"),
]


def measure(options: Options) -> Sequence[Figure]:
    """All figures of containers; `--backend` does not matter."""
    return [
        *_cells(options),
        *_cold(options),
        *_warm(options),
        *_turnover(options),
        *_attacks(options),
        *_memory(),
    ]


def _cells(options: Options) -> Iterator[Figure]:
    """One cell over HTTP, in a container and in the sandbox."""
    with _both() as (container, sandbox):
        ours = _session(container, "cells")
        theirs = _session(sandbox, "cells")
        spent: tuple[list[float], list[float]] = [], []
        for number in range(options.count(10, 2)):
            for session, samples in zip((ours, theirs), spent, strict=True):
                session.execute("1+1")
                samples += [session.execute("1+1") for _ in range(CELLS)]
            say(f"containers: cells, round {number + 1}")
    yield from _ratio("1+1 over HTTP in a container, against the sandbox, p50", *spent, at_most(1.1))


def _cold(options: Options) -> Iterator[Figure]:
    """From the request for a session that can't use a warm kernel to the result of its first cell."""
    ours: list[float] = []
    theirs: list[float] = []
    with cellgate("docker", "--pool-size", "0") as server:
        for number in range(options.count(12, 2)):
            begun = time.perf_counter()
            with server.client() as client:
                session = Session(client, f"cold-{number}", COLD)
                session.execute("1+1")
                ours.append(time.perf_counter() - begun)
                session.end()
            server.settle()
            begun = time.perf_counter()
            subprocess.run(PLAIN, check=True, env={"PATH": SYSTEM_PATH})
            theirs.append(time.perf_counter() - begun)
            server.settle()
            say(f"containers: cold {ours[-1]:.2f} s, docker run {theirs[-1]:.2f} s")
    yield from _ratio("cold session to first result, against `docker run`, p50", ours, theirs, at_most(1.5))


def _warm(options: Options) -> Iterator[Figure]:
    """POST /v1/sessions with a warm kernel."""
    spent: tuple[list[float], list[float]] = [], []
    with _both() as servers:
        for number in range(options.count(20, 2)):
            for server, samples in zip(servers, spent, strict=True):
                session = _session(server, f"warm-{number}")
                samples.append(session.started)
                session.end()
                server.settle()
                _await_warm(server)
    ours, theirs = (quantile(samples, 0.5) * 1000 for samples in spent)
    yield Figure("warm claim, more than the sandbox's, p50", ours - theirs, "ms", at_most(2))
    yield Figure("  container, p50", ours, "ms", details=summary(spent[0]))
    yield Figure("  sandbox, p50", theirs, "ms", details=summary(spent[1]))


def _turnover(options: Options) -> Iterator[Figure]:
    """Sessions created, used for one cell and deleted, per second; two clients at a time."""
    sessions = options.count(30, 4)
    with cellgate("docker", "--pool-size", "2") as server:
        ours = _rate(lambda number: _use_session(server, number), sessions)
    with _plain_kernelspecs() as specs, jupyter_kernel_gateway(options.peer_python, specs) as peer:
        theirs = _rate(lambda number: _use_kernel(peer), sessions)
    yield Figure("create, run, delete, against jupyter_kernel_gateway", ours / theirs, "x", at_least(0.7))
    yield Figure("  full containers", ours, "sessions/s")
    yield Figure("  its process kernels", theirs, "sessions/s")


def _attacks(options: Options) -> Iterator[Figure]:
    """A cell in one session while another attacks, against the same cell before."""
    cells = options.count(100, 20)
    for name, code in ATTACKS.items():
        with cellgate("docker", "--pool-size", "1") as server:
            session = _session(server, "victim")
            calm = quantile([session.execute("1+1") for _ in range(cells)], 0.5)
            attack = {"code": code, "timeout": 60, "wait": False}
            with server.client() as client:
                client.request("POST", "/v1/sessions/attacker/execute", attack).json(202)
            time.sleep(0.5)
            beside = [session.execute("1+1") for _ in range(cells)]
        ratio = quantile(beside, 0.5) / calm
        yield Figure(f"a cell beside {name}, p50", ratio, "x", at_most(2), summary(beside))


def _memory() -> Iterator[Figure]:
    """One idle warm container, and the engine's process beside it."""
    with cellgate("docker", "--pool-size", "1", "--ServeApp.burst_size=1") as server:
        client = APIClient()
        try:
            instance = (server.folder / "data" / "instance").read_text()
            container = client.containers(filters={"label": f"{INSTANCE_LABEL}={instance}"})[0]["Id"]
            used: dict[str, Any] = client.stats(container, stream=False)["memory_stats"]
            process = psutil.Process(client.inspect_container(container)["State"]["Pid"])
        finally:
            client.close()
        shim = process.parent()
        beside = shim.memory_info().rss if shim is not None else 0
    details = {"stats": {name: used["stats"].get(name) for name in ("total_rss", "anon", "cache", "file")}}
    yield Figure("memory of an idle warm container, its cgroup", used["usage"] / MB, "MB", details=details)
    yield Figure("  the engine's process beside it, resident", beside / MB, "MB")


def _ratio(name: str, ours: Sequence[float], theirs: Sequence[float], target: Any) -> Iterator[Figure]:
    one, other = quantile(ours, 0.5), quantile(theirs, 0.5)
    yield Figure(name, one / other, "x", target)
    yield Figure("  ours", one * 1000, "ms", details=summary(ours))
    yield Figure("  the other's", other * 1000, "ms", details=summary(theirs))


@contextmanager
def _both() -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(cellgate(name, "--pool-size", "2")) for name in ("docker", "sandbox")]
        yield servers[0], servers[1]


def _session(server: Server, name: str) -> Session:
    session = Session(server.client(), name)
    session.execute("1+1")
    return session


def _await_warm(server: Server) -> None:
    with server.client() as client:
        while client.request("GET", "/v1/info").json(200)["pool"]["warm"] < 2:
            time.sleep(0.05)


def _rate(use: Callable[[int], None], sessions: int) -> float:
    for number in range(CONCURRENT):
        use(-1 - number)
    begun = time.perf_counter()
    with ThreadPoolExecutor(CONCURRENT) as threads:
        list(threads.map(use, range(sessions)))
    return sessions / (time.perf_counter() - begun)


def _use_session(server: Server, number: int) -> None:
    with server.client() as client:
        session = Session(client, f"turn{number}")
        session.execute("1+1")
        session.end()


def _use_kernel(peer: Server) -> None:
    with peer.client() as client:
        kernel = client.request("POST", "/api/kernels", {"name": "python3"}).json(201)["id"]
        with Channels(peer.url, peer.token, kernel) as channels:
            channels.execute("1+1")
        client.request("DELETE", f"/api/kernels/{kernel}").json(204)


@contextmanager
def _plain_kernelspecs() -> Iterator[Path]:
    """The same kernelspec without Cellgate's provisioner: kernels are child processes of the server."""
    spec = json.loads((KERNELSPECS / "kernels" / "python3" / "kernel.json").read_text())
    spec["metadata"] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "kernels" / "python3"
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps(spec))
        yield Path(name)
