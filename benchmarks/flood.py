"""A cell that prints 100 MB: how much of it is kept, and how much the gateway's memory grows.

The lines are numbered, so the text kept is compared byte by byte with the text printed. Growth is the
process's peak resident memory while the cell ran and its answer was read (``VmHWM``, which the system tracks
exactly; nothing between two samples is missed), minus its resident memory before. It is measured for both
kinds of answer, the whole result and the stream of events; the worse one is the figure. Linux only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.client import HttpClient
from benchmarks.figures import MB, MIB, Figure, at_least, at_most
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

LINES = 1_000_000
LINE = 100
TEXT_CAP = 10 * MIB
CODE = f"""
import sys
for start in range(0, {LINES}, 100):
    sys.stdout.write("".join(f"{{number:099d}}\\n" for number in range(start, start + 100)))
"""


@dataclass(frozen=True, slots=True)
class Flood:
    """The outcome of one flood: bytes of the answer that are as printed, and the gateway's growth."""

    kept: int
    truncated: bool
    growth: int


def measure(options: Options) -> Sequence[Figure]:
    """The fewest bytes kept and the largest growth over both ways to answer, and each growth."""
    answers: Mapping[str, Callable[[HttpClient, str], tuple[str, bool]]] = {"json": _json, "ndjson": _ndjson}
    floods = {}
    for name, answer in answers.items():
        # A new server for each: memory that the first flood left allocated would hide the second's growth.
        with cellgate(options.backend) as server, server.client() as client:
            floods[name] = _flood(server, client, answer)
        say(f"flood: {name}: {floods[name]}")
    kept = min(flood.kept for flood in floods.values())
    growth = max(flood.growth for flood in floods.values())
    truncated = {name: flood.truncated for name, flood in floods.items()}
    return [
        Figure(
            "100 MB of stdout: bytes kept as printed", kept / MIB, "MiB", at_least(TEXT_CAP / MIB), truncated
        ),
        Figure("100 MB of stdout: growth of the gateway", growth / MB, "MB", at_most(80)),
        *(Figure(f"  answered as {name}", flood.growth / MB, "MB") for name, flood in floods.items()),
    ]


def _flood(
    server: Server, client: HttpClient, answer: Callable[[HttpClient, str], tuple[str, bool]]
) -> Flood:
    session = Session(client, "flood")
    for _ in range(20):
        session.execute("print('x'); 1+1")
    server.settle()
    before = server.resident()
    server.reset_peak()
    text, truncated = answer(client, f"{session.path}/execute")
    return Flood(_kept(text), truncated, server.peak() - before)


def _json(client: HttpClient, path: str) -> tuple[str, bool]:
    result = client.request("POST", path, _request()).json(200)
    return result["stdout"], result["truncated"]


def _ndjson(client: HttpClient, path: str) -> tuple[str, bool]:
    parts = []
    event: dict[str, Any] = {}
    for line in client.stream("POST", path, _request(), "application/x-ndjson"):
        event = json.loads(line) if line.strip() else event
        if event["type"] == "stream":
            parts.append(event["text"])
    return "".join(parts), event["truncated"]


def _request() -> dict[str, Any]:
    return {"code": CODE, "timeout": 240}


def _kept(text: str) -> int:
    """How many bytes at the start and at the end of `text` are as printed.

    A truncated text may keep the head only or head and tail; the gateway's marker counts as neither.
    """
    head = "".join(f"{number:099d}\n" for number in range(min(LINES, len(text) // LINE + 1)))
    tail = "".join(f"{number:099d}\n" for number in range(LINES - len(text) // LINE - 1, LINES))
    kept = _common(text, head)
    end = _common(text[kept:][::-1], tail[::-1])
    # Less than a line at the end is a coincidence: a marker ends with a newline too.
    return kept + (end if end >= LINE else 0)


def _common(one: str, other: str) -> int:
    """The length of the longest common prefix, by bisection."""
    least = 0
    most = min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
