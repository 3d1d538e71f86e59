"""The Jupyter WebSocket: a cell's round trip and cost, against jupyter_kernel_gateway and against raw zmq.

All clients do the same with the same code: one client library for both servers' WebSockets, and a raw zmq
client of the same kernel that Cellgate serves. They take turns, block by block; the gateway is stopped while
the raw client has its turn, as in ``roundtrip``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.channels import Channels, start_kernel
from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.raw import RawKernel
from benchmarks.servers import Server, cellgate, jupyter_kernel_gateway
from benchmarks.sessions import connection_file

CODES = ("1+1", "print('x'); 1+1")
CELLS = 50
WARM_UP = 5


@dataclass(slots=True)
class Samples:
    """One client's round trips in seconds, and the processor time its server used for them."""

    times: list[float] = field(default_factory=list)
    used: float = 0.0

    def block(self, execute: Callable[[str], float], code: str, server: Server | None = None) -> float:
        """Run a block of cells; returns its p50."""
        for _ in range(WARM_UP):
            execute(code)
        before = server.cpu() if server is not None else 0.0
        times = [execute(code) for _ in range(CELLS)]
        self.used += (server.cpu() - before) if server is not None else 0.0
        self.times += times
        return quantile(times, 0.5)

    @property
    def p50(self) -> float:
        """Milliseconds."""
        return quantile(self.times, 0.5) * 1000

    @property
    def per_cell(self) -> float:
        """Milliseconds of processor time."""
        return self.used / len(self.times) * 1000


def measure(options: Options) -> Sequence[Figure]:
    """For both cells: round trips and processor time, and their ratios."""
    figures: list[Figure] = []
    with (
        cellgate(options.backend) as ours,
        jupyter_kernel_gateway(options.peer_python) as theirs,
        ours.client() as our_rest,
        theirs.client() as their_rest,
    ):
        our_kernel = start_kernel(our_rest)
        their_kernel = start_kernel(their_rest)
        with (
            Channels(ours.url, ours.token, our_kernel) as our_socket,
            Channels(theirs.url, theirs.token, their_kernel) as their_socket,
        ):
            path = connection_file(ours, our_socket.printed)
            ours.settle()
            theirs.settle()
            for code in CODES:
                cellgate_samples = Samples()
                peer = Samples()
                raw = Samples()
                rounds = options.count(10, 2)
                for number in range(rounds):
                    with ours.suspended(), RawKernel(path) as kernel:
                        alone = raw.block(kernel.execute, code)
                    here = cellgate_samples.block(our_socket.execute, code, ours)
                    there = peer.block(their_socket.execute, code, theirs)
                    say(
                        f"wire: {code}: round {number + 1} of {rounds}, against raw zmq {here / alone:.2f},"
                        f" against the peer {here / there:.2f}, CPU {cellgate_samples.per_cell:.2f} ms"
                        f" against {peer.per_cell:.2f} ms"
                    )
                figures += _figures(code, cellgate_samples, peer, raw)
    return figures


def _figures(code: str, ours: Samples, peer: Samples, raw: Samples) -> list[Figure]:
    name = f"`{code}` by WebSocket"
    return [
        Figure(f"{name}, p50 against jupyter_kernel_gateway", ours.p50 / peer.p50, "x", at_most(1 / 5)),
        Figure(f"{name}, p50 against raw zmq", ours.p50 / raw.p50, "x", at_most(1.2)),
        Figure(f"{name}, CPU against the peer's", ours.per_cell / peer.per_cell, "x"),
        Figure("  Cellgate, p50", ours.p50, "ms", details=summary(ours.times)),
        Figure("  jupyter_kernel_gateway, p50", peer.p50, "ms", details=summary(peer.times)),
        Figure("  raw zmq, p50", raw.p50, "ms", details=summary(raw.times)),
        Figure("  Cellgate, record on, CPU per cell", ours.per_cell, "ms"),
        Figure("  jupyter_kernel_gateway, no record, CPU per cell", peer.per_cell, "ms"),
    ]
