"""The start of a kernel over Jupyter's API: POST /api/kernels to the kernel_info_reply on its WebSocket.

Cellgate hands out a warm kernel, jupyter_kernel_gateway starts one; both get the same requests from the same
client, in turn. Before each the pool is full and both servers are idle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.channels import Channels, start_kernel
from benchmarks.client import HttpClient
from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate, jupyter_kernel_gateway


def measure(options: Options) -> Sequence[Figure]:
    """The ratio of the p50s, and both p50s."""
    ours: list[float] = []
    theirs: list[float] = []
    with (
        cellgate(options.backend) as gateway,
        jupyter_kernel_gateway(options.peer_python) as peer,
        gateway.client() as our_rest,
        peer.client() as their_rest,
    ):
        rounds = options.count(12, 2)
        for number in range(rounds):
            ours.append(_start(gateway, our_rest))
            theirs.append(_start(peer, their_rest))
            say(
                f"kernels: round {number + 1} of {rounds}, {ours[-1] * 1000:.1f} ms"
                f" against {theirs[-1] * 1000:.0f} ms"
            )
    our_p50, their_p50 = quantile(ours, 0.5), quantile(theirs, 0.5)
    return [
        Figure(
            "POST /api/kernels to kernel_info_reply, against jupyter_kernel_gateway, p50",
            our_p50 / their_p50,
            "x",
            at_most(1 / 10),
        ),
        Figure("  Cellgate, warm, p50", our_p50 * 1000, "ms", details=summary(ours)),
        Figure("  jupyter_kernel_gateway, p50", their_p50 * 1000, "ms", details=summary(theirs)),
    ]


def _start(server: Server, rest: HttpClient) -> float:
    begun = time.perf_counter()
    kernel = start_kernel(rest)
    with Channels(server.url, server.token, kernel) as channels:
        channels.kernel_info()
        elapsed = time.perf_counter() - begun
    rest.request("DELETE", f"/api/kernels/{kernel}").json(204)
    server.settle()
    return elapsed
