"""``POST /v1/execute`` of ``1+1``: a kernel claimed, used and discarded, against a warm session's cell.

Each one-shot uses up a kernel, so the rate at which the pool starts new ones limits how many can be warm.
That is not measured here (see ``starts`` for a cold start): before each request the pool is full again and
the machine idle. Both take turns on one server; the record is on for the session, and off for the one-shot,
as by default.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.client import HttpClient
from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import cellgate
from benchmarks.sessions import Session

CODE = "1+1"


def measure(options: Options) -> Sequence[Figure]:
    """The ratio of the p50s, and both p50s."""
    one_shot: list[float] = []
    cell: list[float] = []
    with cellgate(options.backend, "--pool-size", "2") as server, server.client() as client:
        session = Session(client, "warm")
        session.execute(CODE)
        _once(client)
        rounds = options.count(40, 2)
        for number in range(rounds):
            server.settle()
            cell.append(session.execute(CODE))
            one_shot.append(_once(client))
            if number % 10 == 9 or options.quick:
                last = f"one-shot {one_shot[-1] * 1000:.1f} ms, cell {cell[-1] * 1000:.1f} ms"
                say(f"one_shot: round {number + 1} of {rounds}, {last}")
    ratio = quantile(one_shot, 0.5) / quantile(cell, 0.5)
    return [
        Figure("one-shot 1+1 from a warm pool, against a warm session's cell, p50", ratio, "x", at_most(2)),
        Figure("  one-shot, p50", quantile(one_shot, 0.5) * 1000, "ms", details=summary(one_shot)),
        Figure("  cell, p50", quantile(cell, 0.5) * 1000, "ms", details=summary(cell)),
    ]


def _once(client: HttpClient) -> float:
    begun = time.perf_counter()
    answer = client.request("POST", "/v1/execute", {"code": CODE})
    spent = time.perf_counter() - begun
    assert answer.json(200)["text"] == "2"
    return spent
