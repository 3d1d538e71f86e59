"""What others feel while one kernel sends the worst messages: ``/healthz``, and `1+1` in another session.

Two clients on threads of their own ask one after the other, calm, then during each attack of ``attacks``,
then calm again, so that both halves of the ratio are of one run. A kernel that is hostile also uses a
processor, which is in the figures. The last attack is five kernels that announce frames of 500 MB and never
end them. Memory is the gateway's greatest resident memory during all of it, less that before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.attacks import ATTACKS, attack, unfinished
from benchmarks.client import HttpClient
from benchmarks.figures import MB, Figure, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

PAUSE = 0.002
ANNOUNCED = 500 * MB
UNFINISHED_KERNELS = 5
MOST_RATIO = 3
LONGEST_STALL = 500
MOST_GROWTH = 600


class Probe:
    """Asks again and again, and keeps how long each answer took, in seconds."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self.samples: list[float] = []
        self._end = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                begun = time.perf_counter()
                self._ask()
                self.samples.append(time.perf_counter() - begun)
                time.sleep(PAUSE)
        except Exception as error:  # noqa: BLE001 - raised again in the benchmark's own thread
            self._failure = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[float]:
        """End it, and give out the samples. Raises what asking has raised."""
        self._end.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.samples


def measure(options: Options) -> Sequence[Figure]:
    """Ratios of p99, the longest stall and the growth of memory."""
    seconds = 4.0 if not options.quick else 0.5
    calm: dict[str, list[float]] = {"/healthz": [], "1+1": []}
    hostile: dict[str, list[float]] = {"/healthz": [], "1+1": []}
    worst: dict[str, dict[str, float]] = {}
    with cellgate(options.backend) as server, server.client() as client:
        probed = Session(client, "probed")
        for _ in range(50):
            probed.execute("1+1")
        server.settle()
        before = server.resident()
        server.reset_peak()
        for name in [*ATTACKS, "frames that never end"]:
            _add(calm, _probe(server, client, probed, seconds / 2))
            with _attacking(server, name, seconds):
                felt = _probe(server, client, probed, seconds)
            _add(hostile, felt)
            worst[name] = {who: round(quantile(taken, 0.99) * 1000, 2) for who, taken in felt.items()}
            worst[name] |= {f"{who} max": round(max(taken) * 1000, 2) for who, taken in felt.items()}
            say(f"hostile: {name}: {worst[name]}")
        growth = (server.peak() - before) / MB
    longest = max(hostile["/healthz"]) * 1000
    return [
        *(_ratio(who, calm[who], hostile[who], worst) for who in calm),
        Figure("longest answer of /healthz beside a hostile kernel", longest, "ms", at_most(LONGEST_STALL)),
        Figure("growth of the gateway beside hostile kernels", growth, "MB", at_most(MOST_GROWTH)),
    ]


def _ratio(
    who: str, calm: Sequence[float], hostile: Sequence[float], worst: dict[str, dict[str, float]]
) -> Figure:
    one, other = quantile(hostile, 0.99), quantile(calm, 0.99)
    details = {"calm_ms": other * 1000, "hostile_ms": one * 1000, "by_attack_ms": worst}
    say(f"hostile: {who}: {one * 1000:.2f} ms against {other * 1000:.2f} ms calm")
    return Figure(
        f"{who} beside a hostile kernel, p99, against calm", one / other, "x", at_most(MOST_RATIO), details
    )


def _add(to: dict[str, list[float]], samples: dict[str, list[float]]) -> None:
    for who, taken in samples.items():
        to[who] += taken


def _probe(server: Server, client: HttpClient, probed: Session, seconds: float) -> dict[str, list[float]]:
    with server.client() as other:
        probes = {
            "/healthz": Probe(lambda: other.request("GET", "/healthz").json(200)),
            "1+1": Probe(lambda: probed.execute("1+1")),
        }
        for probe in probes.values():
            probe.start()
        time.sleep(seconds)
        return {who: probe.stop() for who, probe in probes.items()}


@contextmanager
def _attacking(server: Server, name: str, seconds: float) -> Iterator[None]:
    """Run the attack in sessions of its own, and wait for its end."""
    kernels = UNFINISHED_KERNELS if name not in ATTACKS else 1
    code = attack(name, seconds) if name in ATTACKS else unfinished(ANNOUNCED, 100 * MB)
    with server.client() as client:
        sessions = [Session(client, f"attacker-{abs(hash(name))}-{number}") for number in range(kernels)]
        server.settle()
        for session in sessions:
            cell = {"code": code, "timeout": 60, "wait": False}
            client.request("POST", f"{session.path}/execute", cell).json(202)
        time.sleep(0.2)
        yield
        for session in sessions:
            session.end()
    server.settle()
