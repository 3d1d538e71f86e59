"""Exports: the notebook of a large session, its replay, and the verification of a long one.

The export is compared with ``nbformat.write`` of the same notebook, in this process, after it was read, so
that all of it is already in memory. Growth is the gateway's peak resident memory while it answers
(``VmHWM``), minus that before. The verification is the whole command, including the start of Python. Linux
only.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Sequence

import nbformat

from benchmarks.client import HttpClient
from benchmarks.figures import MB, Figure, at_least, at_most
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session

CELL = "print(('y' * 99 + '\\n') * 1000, end='')"  # 100 kB
FLUSHES = 2000
ROWS = f"""
import sys
for number in range({FLUSHES}):
    print(number)
    sys.stdout.flush()
"""


def measure(options: Options) -> Sequence[Figure]:
    """Time and memory of the export and of a replay, and the rate of the verification."""
    with cellgate(options.backend) as server, server.client() as client:
        figures = [*_export(server, client, options.count(2000, 20))]
    with cellgate(options.backend) as server, server.client() as client:
        figures.append(_verify(server, client, options.count(50, 1)))
    return figures


def _export(server: Server, client: HttpClient, cells: int) -> Sequence[Figure]:
    session = Session(client, "large")
    for number in range(cells):
        session.execute(CELL)
        if number % 200 == 199:
            say(f"exports: {number + 1} of {cells} cells")
    server.settle()
    before = server.resident()
    server.reset_peak()
    begun = time.perf_counter()
    answer = client.request("GET", f"{session.path}/notebook")
    ours = time.perf_counter() - begun
    growth = server.peak() - before
    notebook = nbformat.reads(answer.body.decode(), as_version=4)  # type: ignore[no-untyped-call]
    begun = time.perf_counter()
    nbformat.write(notebook, io.StringIO())  # type: ignore[no-untyped-call]
    theirs = time.perf_counter() - begun
    size = len(answer.body) / MB
    return [
        Figure(
            f"export of {cells} cells, {size:.0f} MB, against nbformat.write", ours / theirs, "x", at_most(2)
        ),
        Figure("  export", ours, "s"),
        Figure("  nbformat.write", theirs, "s"),
        Figure("  growth of the gateway", growth / MB, "MB", at_most(150)),
        *_replay(server, client, session),
    ]


def _replay(server: Server, client: HttpClient, session: Session) -> Sequence[Figure]:
    """The same session run again and compared: the gateway handles all of its outputs twice."""
    server.settle()
    before = server.resident()
    server.reset_peak()
    begun = time.perf_counter()
    report = client.request("POST", f"{session.path}/replay", {}).json(200)
    elapsed = time.perf_counter() - begun
    assert report["different"] == 0, report["verdict"]
    growth = server.peak() - before
    return [
        Figure("replay of the same session", elapsed, "s"),
        Figure("  growth of the gateway", growth / MB, "MB", at_most(150)),
    ]


def _verify(server: Server, client: HttpClient, cells: int) -> Figure:
    session = Session(client, "long")
    for _ in range(cells):
        session.execute(ROWS)
    rows = client.request("GET", f"{session.path}/audit/verify").json(200)["rows"]
    server.settle()
    command = [sys.executable, "-m", "cellgate.cli.main", "verify", "--data-dir", str(server.folder / "data")]
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    elapsed = time.perf_counter() - begun
    return Figure(f"verify of {rows} rows, the whole command", rows / elapsed, "rows/s", at_least(50_000))
