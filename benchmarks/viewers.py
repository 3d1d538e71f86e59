"""A session that prints twenty lines a second, looked at by one and by twenty pages of the console.

A viewer asks what the page asks while it shows a session: it follows the events as NDJSON, and reads the
session's model every eight seconds. One viewer and twenty take turns; the figure is the ratio of the
gateway's processor time, without kernels. The cell itself costs the same in both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.figures import Figure, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

VIEWERS = 20
TURNS = 3
SECONDS = 12.0
CONNECTING = 2.0
MODEL_EVERY = 8.0
NDJSON = "application/x-ndjson"
BUSY = "import time\nwhile True:\n    print(time.time(), flush=True)\n    time.sleep(0.05)"
MOST_RATIO = 3.0


def measure(options: Options) -> Sequence[Figure]:
    """Twenty viewers against one."""
    seconds = options.count(int(SECONDS), 2)
    shares: dict[int, list[float]] = {1: [], VIEWERS: []}
    with cellgate(options.backend) as server, server.client() as client:
        session = Session(client, "busy", {"limits": {"cell_timeout": 3600}})
        client.request("POST", f"{session.path}/execute", {"code": BUSY, "wait": False}).json(202)
        for _ in range(options.count(TURNS, 1)):
            for count, found in shares.items():
                with _viewers(server, session.path, count):
                    time.sleep(CONNECTING)
                    found.append(_share(server, seconds))
                say(f"viewers: {count} cost {found[-1]:.1%} of a processor")
    one, many = (quantile(found, 0.5) for found in shares.values())
    return [
        Figure(
            f"{VIEWERS} viewers of a busy session, the gateway's processor time against one",
            many / one,
            "x",
            at_most(MOST_RATIO),
            {"one": one, "many": many},
        )
    ]


def _share(server: Server, seconds: float) -> float:
    """The part of a processor that the gateway takes."""
    before, begun = server.cpu(), time.monotonic()
    time.sleep(seconds)
    return (server.cpu() - before) / (time.monotonic() - begun)


@contextmanager
def _viewers(server: Server, path: str, count: int) -> Iterator[None]:
    over = threading.Event()
    threads = [
        threading.Thread(target=work, args=(server, path, over))
        for _ in range(count)
        for work in (_follow, _read_model)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _follow(server: Server, path: str, over: threading.Event) -> None:
    with server.client() as client:
        for _ in client.stream("GET", f"{path}/events", None, NDJSON):
            if over.is_set():
                return


def _read_model(server: Server, path: str, over: threading.Event) -> None:
    with server.client() as client:
        while not over.is_set():
            client.request("GET", f"{path}?usage=true").json(200)
            over.wait(MODEL_EVERY)
