"""Nothing lost: the gateway is killed at random moments while eight sessions write, again and again.

What a client saw of an execution is in the record byte for byte after the restart, every chain holds, and
SQLite finds its file in order. ``--crash-rounds 100`` runs the long form; the suite runs a few rounds.
"""

from __future__ import annotations

import http.client
import json
import random
import sqlite3
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellgate.record.blobs import put_back
from cellgate.record.chain import verify
from tests.support.server import GatewayProcess, send, until

SESSIONS = 8
CELLS = (
    "for n in range(20): print(n, flush=True)",
    "x = globals().get('x', 0) + 1; x",
    "print('wide ' * 5_000)",
    "import sys; print('to stderr', file=sys.stderr); 1 / 0",
    "from IPython.display import display\nfor n in range(5): display(n)",
)


@dataclass
class Seen:
    """What the clients saw of one session: events as bytes, and results, by execution."""

    key: str
    events: list[bytes] = field(default_factory=list)
    finished: dict[str, str] = field(default_factory=dict)
    cells: int = 0


class Load:
    """Eight clients, each running cell after cell in a session of its own until the gateway is gone."""

    def __init__(self, gateway: GatewayProcess, seen: list[Seen], seed: int) -> None:
        self._gateway = gateway
        self._stop = threading.Event()
        self.running = [threading.Event() for _ in seen]
        self._threads = [
            threading.Thread(target=self._work, args=(mine, begun, random.Random(f"{seed} {mine.key}")))
            for mine, begun in zip(seen, self.running, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the clients of a gateway that is gone."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a client hangs although the gateway is gone"

    def _work(self, mine: Seen, begun: threading.Event, choice: random.Random) -> None:
        with suppress(OSError, http.client.HTTPException):
            while not self._stop.is_set():
                body = {"code": choice.choice(CELLS)}
                if choice.random() < 0.5:
                    self._streamed(mine, body)
                else:
                    self._waited(mine, body)
                begun.set()
                mine.cells += 1

    def _streamed(self, mine: Seen, body: dict[str, str]) -> None:
        path = f"/v1/sessions/{mine.key}/execute"
        with closing(self._gateway.connect(20)) as connection:
            send(connection, "POST", path, body, headers={"Accept": "application/x-ndjson"})
            for line in connection.getresponse():
                if line.endswith(b"\n"):
                    self._saw(mine, line.rstrip(b"\n"))

    def _saw(self, mine: Seen, line: bytes) -> None:
        event = json.loads(line)
        if event["type"] in {"keepalive", "problem"}:
            return
        mine.events.append(line)
        if event["type"] == "finished":
            mine.finished[event["execution"]] = event["status"]

    def _waited(self, mine: Seen, body: dict[str, str]) -> None:
        answer = self._gateway.post(f"/v1/sessions/{mine.key}/execute", body, timeout=20)
        if answer.status == 200:
            result = answer.json()
            mine.finished[result["execution"]] = result["status"]


def check(gateway: GatewayProcess, seen: list[Seen]) -> None:
    """The record holds all that was seen, in whole chains, in a file that is in order."""
    # What is asked for has been brought from the redo log into the tables.
    assert gateway.get("/v1/sessions").status == 200
    record = gateway.data_dir / "record.sqlite3"
    with closing(sqlite3.connect(f"{record.as_uri()}?mode=ro", uri=True)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        for mine in seen:
            found = db.execute("SELECT id FROM sessions WHERE key = ?", (mine.key,)).fetchone()
            if found is None:
                assert not mine.finished
                continue
            stored = db.execute(
                "SELECT seq, body, blobs, hash FROM events WHERE session_id = ? ORDER BY seq", found
            ).fetchall()
            rows = [(seq, put_back(db, body, blobs), digest) for seq, body, blobs, digest in stored]
            assert verify(rows).valid
            bodies = {body for _, body, _ in rows}
            assert [event for event in mine.events if event not in bodies] == []
            check_executions(db, found[0], [json.loads(body) for body in bodies], mine)


def check_executions(db: sqlite3.Connection, session: int, events: list[dict[str, Any]], mine: Seen) -> None:
    """Each execution ended once, as its client saw it, and the index of executions agrees."""
    ended = [(event["execution"], event["status"]) for event in events if event["type"] == "finished"]
    statuses = dict(ended)
    assert len(statuses) == len(ended)
    assert mine.finished.items() <= statuses.items()
    index = db.execute("SELECT id, status FROM executions WHERE session_id = ?", (session,))
    assert dict(index) == statuses
    assert {event["execution"] for event in events if event["type"] == "queued"} == statuses.keys()


def crash(gateway: GatewayProcess, seen: list[Seen], choice: random.Random, seed: int) -> None:
    """Load the gateway, and kill it at a moment: mostly when all sessions write, else at any."""
    load = Load(gateway, seen, seed)
    try:
        if choice.random() < 0.8:
            for begun in load.running:
                assert begun.wait(60), "the load does not begin"
        time.sleep(choice.uniform(0, 1.5))
        kernels = psutil.Process(gateway.process.pid).children(recursive=True)
    finally:
        gateway.kill()
        load.join()
    _, alive = psutil.wait_procs(kernels, timeout=10)
    assert not alive, "kernels outlive a gateway that was killed"


@pytest.mark.timeout(0)
def test_what_a_client_saw_survives_kills_at_random_moments(
    tmp_path: Path, pytestconfig: pytest.Config, record_property: Any
) -> None:
    rounds = pytestconfig.getoption("--crash-rounds")
    seed = random.randrange(2**32)
    record_property("seed", seed)
    choice = random.Random(seed)
    seen = [Seen(f"session-{number}") for number in range(SESSIONS)]
    for number in range(rounds):
        gateway = GatewayProcess(tmp_path / "data", "process", pool_size=2, concurrent_starts=4)
        try:
            check(gateway, seen)
            crash(gateway, seen, choice, seed + number)
        finally:
            gateway.kill()
    last = GatewayProcess(tmp_path / "data", "process", pool_size=0)
    try:
        check(last, seen)
        cells, events = sum(mine.cells for mine in seen), sum(len(mine.events) for mine in seen)
        print(f"seed {seed}: {rounds} kills, {cells} cells ended, {events} events seen, none lost")
        assert cells > 0
        until(lambda: last.get("/readyz").status == 200, "the gateway is not ready")
        assert last.stop() == 0
    finally:
        last.kill()
