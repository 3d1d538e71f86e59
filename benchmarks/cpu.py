"""The cost of a cell to the server: processor time of the gateway's process, without its kernels.

Cellgate over HTTP and with its record, and jupyter_kernel_gateway over its WebSocket and without a record,
take turns, block by block. Both have kernels of the same kernelspec. Processor time is summed over all blocks
and divided once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.channels import Channels, start_kernel
from benchmarks.figures import Figure, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate, jupyter_kernel_gateway
from benchmarks.sessions import Session

CODE = "print('x'); 1+1"
CELLS = 50
WARM_UP = 50


class Meter:
    """Runs blocks of cells through one server and adds up their cost."""

    def __init__(self, server: Server, execute: Callable[[str], float]) -> None:
        self._server = server
        self._execute = execute
        self._used = 0.0
        self.times: list[float] = []
        for _ in range(WARM_UP):
            execute(CODE)

    def block(self) -> None:
        """Run one block."""
        before = self._server.cpu()
        self.times += [self._execute(CODE) for _ in range(CELLS)]
        self._used += self._server.cpu() - before

    @property
    def per_cell(self) -> float:
        """Milliseconds of the server's processor time per cell so far."""
        return self._used / len(self.times) * 1000


def measure(options: Options) -> Sequence[Figure]:
    """The costs per cell, and the peer's round trip."""
    with (
        cellgate(options.backend) as ours,
        jupyter_kernel_gateway(options.peer_python) as theirs,
        ours.client() as client,
    ):
        with theirs.client() as rest:
            kernel_id = start_kernel(rest)
        with Channels(theirs.url, theirs.token, kernel_id) as channels:
            cellgate_meter = Meter(ours, Session(client, "cpu").execute)
            peer_meter = Meter(theirs, channels.execute)
            ours.settle()
            theirs.settle()
            rounds = options.count(10, 2)
            for number in range(rounds):
                cellgate_meter.block()
                peer_meter.block()
                say(
                    f"cpu: round {number + 1} of {rounds}, Cellgate {cellgate_meter.per_cell:.2f} ms,"
                    f" jupyter_kernel_gateway {peer_meter.per_cell:.2f} ms a cell so far"
                )
    name, peer = "gateway CPU per cell, record on", "  jupyter_kernel_gateway, no record"
    peer_p50 = quantile(peer_meter.times, 0.5) * 1000
    return [
        Figure(name, cellgate_meter.per_cell, "ms", details=summary(cellgate_meter.times)),
        Figure(f"{peer}, CPU", peer_meter.per_cell, "ms", details=summary(peer_meter.times)),
        Figure(f"{peer}, round trip p50", peer_p50, "ms"),
    ]
