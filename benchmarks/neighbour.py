"""One user's cells beside another who floods stdout, fills a queue and starts sessions, against alone.

The neighbour is ``eve``, within quotas that leave her one running cell at a time, and gently: without
requests that mean nothing, and with a pause after each refusal. What one kernel that computes without end
costs others is measured in the same run: on a machine with few processors no quota of cells gets below that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.eve import QUOTAS, end_sessions, eve
from benchmarks.figures import Figure, Target, at_most, quantile
from benchmarks.hostile import Probe
from benchmarks.options import Options, say
from benchmarks.people import add_users
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

CODE = "print('x'); 1+1"
TURNS = 5
SECONDS = 15.0
MOST_RATIO = 2
EVE = "eve"


def measure(options: Options) -> Sequence[Figure]:
    """Ratios of p99."""
    seconds = SECONDS if not options.quick else 1.5
    alone: list[float] = []
    beside: dict[str, list[float]] = {"an attacker of quotas": [], "a kernel that computes": []}
    tokens: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="neighbour-") as name:
        quotas = Path(name, "quotas.toml")
        quotas.write_text(QUOTAS)
        with (
            cellgate(
                options.backend,
                f"--quotas={quotas}",
                prepare=lambda data: tokens.update(add_users(data, ["ada", EVE])),
            ) as server,
            replace(server, token=tokens["ada"]).client() as client,
        ):
            session = Session(client, "probed")
            for _ in range(50):
                session.execute(CODE)
            for _ in range(options.count(TURNS, 1)):
                server.settle()
                alone += _probe(session, seconds)
                with _computing(server):
                    beside["a kernel that computes"] += _probe(session, seconds)
                server.settle()
                alone += _probe(session, seconds)
                with _attacking(server, tokens[EVE]):
                    beside["an attacker of quotas"] += _probe(session, seconds)
                told = {name: _p99(samples) for name, samples in beside.items()}
                say(f"neighbour: p99 {_p99(alone)} ms alone, {told} so far")
    return [
        _ratio(name, samples, alone, at_most(MOST_RATIO) if "attacker" in name else None)
        for name, samples in beside.items()
    ]


def _probe(session: Session, seconds: float) -> list[float]:
    probe = Probe(lambda: session.execute(CODE))
    probe.start()
    time.sleep(seconds)
    return probe.stop()


@contextmanager
def _computing(server: Server) -> Iterator[None]:
    with server.client() as client:
        session = Session(client, "computing")
        body = {"code": "while True: pass", "wait": False, "timeout": 600}
        client.request("POST", f"{session.path}/execute", body).json(202)
        time.sleep(0.5)
        yield
        session.end()


@contextmanager
def _attacking(server: Server, token: str) -> Iterator[None]:
    with eve(server, token, gently=True) as end:
        time.sleep(2)
        yield
        report = end()
    if report.faults:
        raise AssertionError(report.faults)
    end_sessions(server, EVE)


def _ratio(name: str, samples: Sequence[float], alone: Sequence[float], target: Target | None) -> Figure:
    ratio = quantile(samples, 0.99) / quantile(alone, 0.99)
    details = {"alone_ms": _p99(alone), "beside_ms": _p99(samples), "n": len(samples)}
    return Figure(f"one user's cell beside {name}, p99, against alone", ratio, "x", target, details)


def _p99(seconds: Sequence[float]) -> float:
    return round(quantile(seconds, 0.99) * 1000, 2)
