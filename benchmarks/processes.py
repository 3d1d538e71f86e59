"""``echo`` as a process beside a session's kernel, against the same in a bash cell of that session.

Both take turns on one server and one session, with the record on. A bash cell of a Python kernel starts bash;
a cell of a bash kernel, here for comparison, starts nothing but is typed into a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.client import HttpClient
from benchmarks.figures import Figure, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import cellgate

WARM_UP = 3


def measure(options: Options) -> Sequence[Figure]:
    """The ratio of the p50s, and all p50s."""
    process: list[float] = []
    cell: list[float] = []
    typed: list[float] = []
    with cellgate(options.backend) as server, server.client() as client:
        client.request("POST", "/v1/sessions", {"session": "bash", "kernel": "bash"}).json(201)
        server.settle()
        rounds = options.count(100, 2)
        for number in range(WARM_UP + rounds):
            spent = (_process(client), _cell(client, "python", "bash"), _cell(client, "bash", None))
            if number >= WARM_UP:
                for samples, seconds in zip((process, cell, typed), spent, strict=True):
                    samples.append(seconds)
        say(f"processes: {rounds} rounds")
    ratio = quantile(process, 0.5) / quantile(cell, 0.5)
    return [
        Figure("echo as a process, against a bash cell, p50", ratio, "x", at_most(1)),
        Figure("  as a process, p50", quantile(process, 0.5) * 1000, "ms", details=summary(process)),
        Figure("  in a bash cell, p50", quantile(cell, 0.5) * 1000, "ms", details=summary(cell)),
        Figure(
            "  in a cell of a bash kernel, p50", quantile(typed, 0.5) * 1000, "ms", details=summary(typed)
        ),
    ]


def _process(client: HttpClient) -> float:
    seconds, answer = _timed(client, "/v1/sessions/python/processes", {"argv": ["echo", "hi"]})
    assert answer["stdout"] == "hi\n"
    return seconds


def _cell(client: HttpClient, session: str, language: str | None) -> float:
    body = {"code": "echo hi"} | ({} if language is None else {"language": language})
    seconds, answer = _timed(client, f"/v1/sessions/{session}/execute", body)
    assert answer["stdout"] == "hi\n"
    return seconds


def _timed(client: HttpClient, path: str, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    begun = time.perf_counter()
    answer = client.request("POST", path, body)
    spent = time.perf_counter() - begun
    decoded: dict[str, Any] = answer.json(200)
    return spent, decoded
