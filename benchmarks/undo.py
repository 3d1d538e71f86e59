"""What checkpoints cost whoever sends cells, and how long it takes to go back, through a gateway.

Two sessions of one server take turns, with the record on: one makes a checkpoint after each cell, the other
none. Which of them is first changes from pair to pair, and the next cell comes after a pause, as from an
agent that reads an answer before it goes on. An undo counts from its request to the answer of a cell after
it, with 2,000 files in the workspace, of which the undone cell has changed ten. It needs bubblewrap or a
container.
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
PAUSE = 0.1
"""Seconds between two cells: the checkpoint has been made by then."""
REST = 0.3
FILES = "import os\nfor n in range(2000):\n    open(f'f{n}', 'w').write('x' * n)"
CHANGE = "for n in range(0, 2000, 200):\n    open(f'f{n}', 'w').write('changed')"


def measure(options: Options) -> Sequence[Figure]:
    """What a checkpoint adds to an answer, and an undo to the next one."""
    spent: dict[str, list[float]] = {"with": [], "without": []}
    back: list[float] = []
    with cellgate(options.backend) as server, server.client() as client:
        for session, checkpoint in (("with", "auto"), ("without", "none")):
            body = {"session": session, "checkpoint": checkpoint}
            client.request("POST", "/v1/sessions", body).json(201)
        server.settle()
        rounds = options.count(200, 3)
        for number in range(WARM_UP + rounds):
            for session in sorted(spent, reverse=bool(number % 2)):
                seconds = _cell(client, session, "1+1")
                time.sleep(PAUSE)
                if number >= WARM_UP:
                    spent[session].append(seconds)
        say(f"undo: {rounds} pairs of cells")
        _cell(client, "with", FILES)
        for number in range(WARM_UP + options.count(30, 2)):
            _cell(client, "with", CHANGE)
            time.sleep(REST)
            seconds = _undo_and_cell(client)
            time.sleep(REST)
            if number >= WARM_UP:
                back.append(seconds)
    with_them, without = spent["with"], spent["without"]
    added = [one - other for one, other in zip(with_them, without, strict=True)]
    return [
        Figure(
            "an automatic checkpoint, added to a cell's answer, p50 of pairs",
            quantile(added, 0.5) * 1000,
            "ms",
            at_most(0),
        ),
        Figure("  cells with them, p50", quantile(with_them, 0.5) * 1000, "ms", details=summary(with_them)),
        Figure("  cells without, p50", quantile(without, 0.5) * 1000, "ms", details=summary(without)),
        Figure(
            "undo to the answer of the next cell, 2,000 files, p50",
            quantile(back, 0.5) * 1000,
            "ms",
            at_most(100),
            details=summary(back),
        ),
    ]


def _cell(client: HttpClient, session: str, code: str) -> float:
    begun = time.perf_counter()
    answer: dict[str, Any] = client.request("POST", f"/v1/sessions/{session}/execute", {"code": code}).json(
        200
    )
    spent = time.perf_counter() - begun
    assert answer["status"] == "ok", answer
    return spent


def _undo_and_cell(client: HttpClient) -> float:
    begun = time.perf_counter()
    done: dict[str, Any] = client.request("POST", "/v1/sessions/with/undo", {}).json(200)
    assert done["rolled_back"]["undone"] == 1, done
    assert _cell(client, "with", "1+1") > 0
    return time.perf_counter() - begun
