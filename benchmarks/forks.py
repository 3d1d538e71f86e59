"""Kernels that are forked of a loaded interpreter, against those started as programs, with their libraries.

Two gateways with sandboxes, one with ``--no-fork-server``, neither with warm kernels, take turns. A session
counts from the request for it to the result of a cell that imports numpy, pandas and pyplot. It needs
bubblewrap, so it runs only if named.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.figures import MB, Figure, at_least, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

IMPORTS = "import numpy, pandas\nimport matplotlib.pyplot"
COLD_POOL = ("--pool-size", "0", "--ServeApp.burst_size=0", "--ServeApp.concurrent_starts=8")
IN_FLIGHT = 8
AT_ONCE = 64


def measure(options: Options) -> Sequence[Figure]:
    """All figures of forks; `--backend` does not matter."""
    with cellgate("sandbox", *COLD_POOL) as forking:
        with cellgate("sandbox", *COLD_POOL, "--no-fork-server") as starting:
            figures = [*_first_results(forking, starting, options)]
        return [*figures, *_rates(forking, options), *_memory(forking, options)]


def _first_results(forking: Server, starting: Server, options: Options) -> Iterator[Figure]:
    spent: tuple[list[float], list[float]] = [], []
    for server in (forking, starting):
        _first_result(server, "warm-up")
    for number in range(options.count(15, 2)):
        for server, samples in zip((forking, starting), spent, strict=True):
            samples.append(_first_result(server, f"first-{number}"))
            server.settle()
        say(f"forks: forked {spent[0][-1] * 1000:.0f} ms, started {spent[1][-1] * 1000:.0f} ms")
    forked, started = (quantile(samples, 0.5) for samples in spent)
    yield Figure("session with pandas and pyplot to its first result, p50", forked * 1000, "ms", at_most(110))
    yield Figure("  against one whose kernel is started cold", forked / started, "x", at_most(0.1))
    yield Figure("  forked, p50", forked * 1000, "ms", details=summary(spent[0]))
    yield Figure("  started cold, p50", started * 1000, "ms", details=summary(spent[1]))


def _first_result(server: Server, name: str) -> float:
    begun = time.perf_counter()
    with server.client() as client:
        session = Session(client, name)
        session.execute(IMPORTS)
        elapsed = time.perf_counter() - begun
        session.end()
    return elapsed


def _rates(server: Server, options: Options) -> Iterator[Figure]:
    sessions = options.count(120, 8)
    begun = time.perf_counter()
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(lambda number: _first_result(server, f"rate-{number}"), range(sessions)))
    elapsed = time.perf_counter() - begun
    yield Figure(
        "sessions with pandas and pyplot a second, 8 in flight", sessions / elapsed, "/s", at_least(15)
    )
    server.settle()
    burst = options.count(AT_ONCE, 4)
    begun = time.perf_counter()
    with ThreadPoolExecutor(burst) as pool:
        list(pool.map(lambda number: _first_result(server, f"burst-{number}"), range(burst)))
    yield Figure("64 sessions at once, until the last result", time.perf_counter() - begun, "s", at_most(6))


def _memory(server: Server, options: Options) -> Iterator[Figure]:
    """What idle sessions add to the memory that is in use, each page shared out among its users."""
    server.settle()
    sessions = options.count(20, 3)
    with server.client() as client:
        before = _shared_out(server)
        opened = [Session(client, f"idle-{number}") for number in range(sessions)]
        for session in opened:
            session.execute(IMPORTS)
        server.settle()
        each = (_shared_out(server) - before) / sessions
        for session in opened:
            session.end()
    yield Figure("an idle session with pandas and pyplot, Pss", each / MB, "MB", at_most(25))


def _shared_out(server: Server) -> int:
    """The proportional memory of the gateway and all that it has started, zygotes too."""
    gateway = server.process
    total = 0
    for process in (gateway, *gateway.children(recursive=True)):
        with suppress(OSError, psutil.Error):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total
