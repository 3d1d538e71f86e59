"""A thousand idle connections and two thousand half-open ones: how much slower are others' cells?

One client runs `1+1` on a kept connection, another asks `/healthz` on a new connection each time; first calm,
then beside a ``crowd``, several times in turn. The gateway ends half-open connections after ``head_timeout``
(10 s), and the crowd opens each again at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.crowd import crowd
from benchmarks.figures import Figure, at_most, quantile
from benchmarks.hostile import Probe
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

IDLE = 1000
HALF_OPEN = 2000
TURNS = 4
SECONDS = 25.0
MOST_RATIO = 1.5

Samples = dict[str, list[float]]


def measure(options: Options) -> Sequence[Figure]:
    """Ratios of p99."""
    idle = options.count(IDLE, 50)
    half = options.count(HALF_OPEN, 100)
    seconds = SECONDS if not options.quick else 1.0
    calm: Samples = {"1+1": [], "/healthz on a new connection": []}
    beside: Samples = {name: [] for name in calm}
    reopened = 0
    with cellgate(options.backend) as server, server.client() as client:
        session = Session(client, "probed")
        for _ in range(50):
            session.execute("1+1")
        for _ in range(options.count(TURNS, 1)):
            server.settle()
            _probe(server, session, seconds, calm)
            with crowd(server, idle, half) as end:
                server.settle()
                _probe(server, session, seconds, beside)
                reopened += end()
            say(f"connections: {_told(calm)} calm, {_told(beside)} beside {idle} idle and {half} half-open")
    return [
        Figure(
            f"{name} beside {idle} idle and {half} half-open connections, p99, against calm",
            quantile(beside[name], 0.99) / quantile(calm[name], 0.99),
            "x",
            at_most(MOST_RATIO),
            {"calm_ms": _p99(calm[name]), "beside_ms": _p99(beside[name]), "reopened": reopened},
        )
        for name in calm
    ]


def _probe(server: Server, session: Session, seconds: float, samples: Samples) -> None:
    def health() -> None:
        with server.client() as other:
            other.request("GET", "/healthz").json(200)

    probes = {"1+1": Probe(lambda: session.execute("1+1")), "/healthz on a new connection": Probe(health)}
    for probe in probes.values():
        probe.start()
    time.sleep(seconds)
    for name, probe in probes.items():
        samples[name] += probe.stop()


def _p99(seconds: Sequence[float]) -> float:
    return round(quantile(seconds, 0.99) * 1000, 2)


def _told(samples: Samples) -> str:
    return " and ".join(f"{_p99(seconds)} ms" for seconds in samples.values())
