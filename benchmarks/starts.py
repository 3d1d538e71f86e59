"""The start of a session: ``POST /v1/sessions`` with a warm kernel, against a cold start of the same kernel.

Both are one request on one server. The cold one sets an environment variable, which no running kernel can
have, so one is started for it: same kernelspec, same backend, until it is ready. Before each request the pool
is full and the machine idle, so no start is measured beside another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.client import HttpClient
from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

COLD = {"env": {"BENCHMARK": "cold"}}


def measure(options: Options) -> Sequence[Figure]:
    """The ratio of the p50s, and both p50s."""
    warm: list[float] = []
    cold: list[float] = []
    with cellgate(options.backend, "--pool-size", "2") as server, server.client() as client:
        _start(server, client, "warm-up", {})
        rounds = options.count(20, 2)
        for number in range(rounds):
            warm.append(_start(server, client, f"warm-{number}", {}))
            cold.append(_start(server, client, f"cold-{number}", COLD))
            last = f"warm {warm[-1] * 1000:.1f} ms, cold {cold[-1] * 1000:.0f} ms"
            say(f"starts: round {number + 1} of {rounds}, {last}")
    warm_p50, cold_p50 = quantile(warm, 0.5), quantile(cold, 0.5)
    return [
        Figure(
            "warm POST /v1/sessions, against a cold start, p50", warm_p50 / cold_p50, "x", at_most(1 / 20)
        ),
        Figure("  warm, p50", warm_p50 * 1000, "ms", details=summary(warm)),
        Figure("  cold, p50", cold_p50 * 1000, "ms", details=summary(cold)),
    ]


def _start(server: Server, client: HttpClient, name: str, options: Mapping[str, object]) -> float:
    session = Session(client, name, options)
    session.execute("1+1")
    session.end()
    server.settle()
    return session.started
