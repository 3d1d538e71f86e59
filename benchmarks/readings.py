"""What a gateway holds when it is idle: memory, descriptors, tasks, threads, processes and folders.

Two readings of the same gateway, with work in between, show whether it keeps anything of that work. Both are
taken when no session is left, all kernels are warm again, and the gateway has given free memory back to the
system, which it does once a minute. Threads and caches come on demand: what fills them belongs before the
first reading.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.figures import MB, Figure, at_most
from benchmarks.options import Options, say
from benchmarks.servers import Server, ServerError

REST_TIMEOUT = 120.0
GIVE_BACK_SECONDS = 65
EQUAL_TIMEOUT = 30.0
MOST_GROWTH = 10
MOST_SHARE = 5

FIXED_POOL = ("--ServeApp.burst_size=0",)
"""An option without which a gateway keeps more warm kernels for a while after a burst of sessions."""

_SAMPLE = re.compile(
    rb'^(cellgate_tasks|cellgate_kernels\{state="(?:starting|in_use|ending)"\}) (\S+)$', re.M
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading. `memory`: bytes that are no file's; `processes`: the kernels' too.

    Pages of files are left out: whether they count as the gateway's own depends on who else has them mapped.
    """

    memory: int
    descriptors: int
    tasks: int
    threads: int
    processes: int
    folders: int

    @property
    def counts(self) -> dict[str, int]:
        """All but the memory."""
        return {name: value for name, value in asdict(self).items() if name != "memory"}


def read(server: Server, options: Options, alike: Reading | None = None) -> Reading:
    """A reading of the gateway once it is at rest. Raises ServerError if it never is.

    With `alike`, wait a while until nothing is above that reading: what remains then is a leak.
    """
    _rest(server)
    time.sleep(options.count(GIVE_BACK_SECONDS, 0))
    deadline = time.monotonic() + EQUAL_TIMEOUT
    while True:
        server.settle()
        found = _read(server)
        above = alike is not None and any(found.counts[name] > count for name, count in alike.counts.items())
        if not above or time.monotonic() > deadline:
            say(f"  {found.memory / MB:.1f} MB, {found.counts}")
            return found


def growth(before: Reading, after: Reading, name: str) -> Sequence[Figure]:
    """How much more there is after than before. Memory has a target in MB and one in per cent."""
    more = (after.memory - before.memory) / MB
    details = {"before": asdict(before), "after": asdict(after)}
    return [
        Figure(f"{name}: growth of memory", more, "MB", at_most(MOST_GROWTH), details),
        Figure("  in per cent", more * MB / before.memory * 100, "%", at_most(MOST_SHARE)),
        *(
            Figure(f"  more {what} than before", after.counts[what] - before.counts[what], "", at_most(0))
            for what in before.counts
        ),
    ]


def _rest(server: Server) -> None:
    """Wait until no kernel starts, is in use or ends."""
    deadline = time.monotonic() + REST_TIMEOUT
    while any(count for name, count in _samples(server).items() if name != b"cellgate_tasks"):
        if time.monotonic() > deadline:
            raise ServerError(f"kernels are still in use: {_samples(server)}; {server.last_words()}")
        time.sleep(0.2)


def _samples(server: Server) -> dict[bytes, float]:
    with server.client() as client:
        answer = client.request("GET", "/metrics", accept="text/plain")
    return {name: float(value) for name, value in _SAMPLE.findall(answer.body)}


def _read(server: Server) -> Reading:
    tasks = int(_samples(server)[b"cellgate_tasks"])
    process = server.process
    folders = sum(len(names) for _, names, _ in os.walk(server.folder))
    return Reading(
        memory=server.anonymous(),
        descriptors=process.num_fds(),
        tasks=tasks,
        threads=process.num_threads(),
        processes=len(process.children(recursive=True)),
        folders=folders,
    )
