"""100 MB of stdout to a WebSocket client: bytes per second, against a raw zmq subscriber of the same kernel.

Both clients keep the frames undecoded while the time is measured, and check afterwards that every line has
arrived once and in order. Growth is that of the gateway's peak resident memory (``VmHWM``), as in ``flood``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.channels import Channels, start_kernel
from benchmarks.client import AnswerError
from benchmarks.figures import MB, Figure, at_least, at_most, quantile
from benchmarks.flood import CODE, LINE, LINES
from benchmarks.options import Options, say
from benchmarks.raw import RawKernel
from benchmarks.servers import cellgate
from benchmarks.sessions import connection_file

T = TypeVar("T")

SIZE = LINES * LINE


def measure(options: Options) -> Sequence[Figure]:
    """Both rates, their ratio and the gateway's growth."""
    rates: dict[str, list[float]] = {"gateway": [], "raw": []}
    with cellgate(options.backend) as server, server.client() as rest:
        kernel_id = start_kernel(rest)
        with Channels(server.url, server.token, kernel_id) as channels:
            path = connection_file(server, channels.printed)
            for _ in range(20):
                channels.execute("print('x'); 1+1")
        server.settle()
        before = server.resident()
        server.reset_peak()
        rounds = options.count(3, 1)
        growth = 0
        for number in range(rounds):
            # A new one each time: it would receive the raw client's flood as well.
            with Channels(server.url, server.token, kernel_id) as channels:
                rates["gateway"].append(_rate(channels.frames, _text_of_frame))
            growth = max(growth, server.peak() - before)
            with server.suspended(), RawKernel(path) as kernel:
                rates["raw"].append(_rate(kernel.frames, _text_of_content))
            # Messages that the gateway could not read in the meantime wait in the kernel; let it catch up.
            server.settle()
            server.reset_peak()
            say(
                f"wire_flood: round {number + 1} of {rounds}, {rates['gateway'][-1]:.0f} MB/s"
                f" against {rates['raw'][-1]:.0f} MB/s"
            )
    ours, raw = (quantile(rates[name], 0.5) for name in ("gateway", "raw"))
    return [
        Figure("100 MB of stdout by WebSocket, against raw zmq", ours / raw, "x", at_least(0.5)),
        Figure("  Cellgate", ours, "MB/s"),
        Figure("  raw zmq", raw, "MB/s"),
        Figure("  growth of the gateway", growth / MB, "MB", at_most(64)),
    ]


def _rate(run: Callable[[str], list[T]], text: Callable[[T], str]) -> float:
    """Megabytes per second. Raises AnswerError if a byte is missing or in the wrong place."""
    begun = time.perf_counter()
    frames = run(CODE)
    elapsed = time.perf_counter() - begun
    printed = "".join(map(text, frames))
    if len(printed) != SIZE or printed != "".join(f"{number:099d}\n" for number in range(LINES)):
        raise AnswerError(f"{len(printed)} of {SIZE} characters arrived, or in another order")
    return SIZE / elapsed / MB


def _text_of_frame(frame: str) -> str:
    message = json.loads(frame)
    return str(message["content"]["text"]) if message["msg_type"] == "stream" else ""


def _text_of_content(content: bytes) -> str:
    return str(json.loads(content).get("text", "")) if b'"text"' in content[:200] else ""
