"""The effect of one kernel's worst messages on others: ``/healthz``, and `1+1` in another session.

Two clients in their own threads send requests one after another: calm, then during each attack of
``tests.support.attacks``, then calm again, so that both sides of the ratio are from one run. A hostile
kernel also uses a processor, which is included in the figures. Its share is measured in the same run beside
kernels that are busy but honest: no limit on messages can get below that. The last attack is five kernels
that announce frames of 500 MB and never finish them. Memory is the gateway's peak resident memory during
all of it, minus that before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.client import AnswerError, HttpClient
from benchmarks.figures import MB, Figure, Target, at_most, quantile
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session
from tests.support.attacks import ATTACKS, HONEST, attack, unfinished

PAUSE = 0.002
ANNOUNCED = 500 * MB
UNFINISHED_KERNELS = 5
MOST_RATIO = 3
LONGEST_STALL = 500
STUCK = 3.0
"""Seconds for an answer after which the gateway's output is shown, to find out why."""
MOST_GROWTH = 600


class Probe:
    """Repeats a request, and keeps how long each answer took, in seconds."""

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
        """Stop, and return the samples. Raises whatever a request raised."""
        self._end.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.samples


def measure(options: Options) -> Sequence[Figure]:
    """Ratios of p99, the longest stall and the growth of memory."""
    seconds = 4.0 if not options.quick else 0.5
    calm, honest, hostile = (Samples({"/healthz": [], "1+1": []}) for _ in range(3))
    with cellgate(options.backend) as server, server.client() as client:
        probed = Session(client, "probed")
        for _ in range(50):
            probed.execute("1+1")
        server.settle()
        before = server.resident()
        server.reset_peak()
        for name in [*HONEST, *ATTACKS, "frames that never end"]:
            calm.add(f"calm before {name}", _probe(server, client, probed, seconds / 2))
            try:
                with _attacking(server, name, seconds):
                    felt = _probe(server, client, probed, seconds)
            except AnswerError:
                say(f"hostile: {name}: {server.last_words()}")
                raise
            slowest = max(map(max, felt.values()))
            if slowest > STUCK:
                say(f"hostile: {name}: an answer took {slowest:.1f} s: {server.last_words()}")
            (honest if name in HONEST else hostile).add(name, felt)
        growth = (server.peak() - before) / MB
    longest = max(hostile.taken["/healthz"]) * 1000
    return [
        *(_ratio(who, "a hostile kernel", hostile, calm, at_most(MOST_RATIO)) for who in calm.taken),
        *(_ratio(who, "an honest busy kernel", honest, calm) for who in calm.taken),
        Figure("longest answer of /healthz beside a hostile kernel", longest, "ms", at_most(LONGEST_STALL)),
        Figure("growth of the gateway beside hostile kernels", growth, "MB", at_most(MOST_GROWTH)),
    ]


@dataclass(frozen=True, slots=True)
class Samples:
    """Durations of answers in seconds, by probe; in `worst`, p99 and maximum beside each kernel in ms."""

    taken: dict[str, list[float]]
    worst: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, samples: dict[str, list[float]]) -> None:
        """Add the samples taken beside the kernel of this name."""
        for who, seconds in samples.items():
            self.taken[who] += seconds
        p99 = {who: round(quantile(seconds, 0.99) * 1000, 2) for who, seconds in samples.items()}
        longest = {f"{who} max": round(max(seconds) * 1000, 2) for who, seconds in samples.items()}
        self.worst[name] = p99 | longest
        say(f"hostile: {name}: {self.worst[name]}")


def _ratio(who: str, beside: str, felt: Samples, calm: Samples, target: Target | None = None) -> Figure:
    one, other = quantile(felt.taken[who], 0.99), quantile(calm.taken[who], 0.99)
    details = {"calm_ms": other * 1000, "felt_ms": one * 1000, "by_kernel_ms": felt.worst}
    say(f"hostile: {who} beside {beside}: {one * 1000:.2f} ms against {other * 1000:.2f} ms calm")
    return Figure(f"{who} beside {beside}, p99, against calm", one / other, "x", target, details)


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
    """Run the attack in its own sessions, and wait for its end."""
    ends = name in ATTACKS or name in HONEST
    kernels = 1 if ends else UNFINISHED_KERNELS
    code = attack(name, seconds) if ends else unfinished(ANNOUNCED, 100 * MB)
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
