"""The round trip of one cell: ``1+1`` over HTTP, record on, against a raw zmq client of the same kernel.

Both clients take turns, block by block, on one kernel, so noise of the machine and of the kernel affects
both. During the raw client's turns the gateway's process is stopped, because it would receive the kernel's
messages too and take processor time from its rival; during the turns of HTTP the raw client is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.raw import RawKernel
from benchmarks.servers import cellgate
from benchmarks.sessions import Session, connection_file

CODE = "1+1"
CELLS = 50
WARM_UP = 5


def measure(options: Options) -> Sequence[Figure]:
    """The ratio of the p50s over all rounds, and both p50s."""
    over_http: list[float] = []
    raw: list[float] = []
    ratios = []
    with cellgate(options.backend) as server, server.client() as client:
        session = Session(client, "roundtrip")
        path = connection_file(server, session.printed)
        server.settle()
        rounds = options.count(12, 2)
        for number in range(rounds):
            with server.suspended(), RawKernel(path) as kernel:
                alone = _block(kernel.execute)
            gateway = _block(session.execute)
            raw += alone
            over_http += gateway
            ratios.append(quantile(gateway, 0.5) / quantile(alone, 0.5))
            say(f"roundtrip: round {number + 1} of {rounds}, HTTP / raw = {ratios[-1]:.2f}")
    http_p50, raw_p50 = quantile(over_http, 0.5), quantile(raw, 0.5)
    spread = {"least_of_rounds": round(min(ratios), 3), "greatest_of_rounds": round(max(ratios), 3)}
    return [
        Figure("1+1 over HTTP, against raw zmq, p50", http_p50 / raw_p50, "x", at_most(1.35), spread),
        Figure("  over HTTP, p50", http_p50 * 1000, "ms", details=summary(over_http)),
        Figure("  raw zmq, p50", raw_p50 * 1000, "ms", details=summary(raw)),
    ]


def _block(execute: Callable[[str], float]) -> list[float]:
    for _ in range(WARM_UP):
        execute(CODE)
    return [execute(CODE) for _ in range(CELLS)]
