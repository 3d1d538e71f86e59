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

from cellgate.client import Gateway, ProcessExited
from cellgate.record.chain import verify
from cellgate.record.store.sqlite.blobs import put_back
from tests.conftest import StartGateway
from tests.gateway.ports.conftest import ECHO, Browser, Ports, base_of
from tests.support.server import TOKEN, GatewayProcess, send, until

SESSIONS = 8
PATIENCE = 120.0
"""Eight kernels start at once; who waits for one that is killed learns it by the end of the connection."""
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
            thread.join(60)
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
        with closing(self._gateway.connect(PATIENCE)) as connection:
            send(connection, "POST", path, body, headers={"Accept": "application/x-ndjson"})
            with connection.getresponse() as answer:
                for line in answer:
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
        answer = self._gateway.post(f"/v1/sessions/{mine.key}/execute", body, timeout=PATIENCE)
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


def crash(
    gateway: GatewayProcess, seen: list[Seen], choice: random.Random, seed: int, *, loaded: bool
) -> None:
    """Load the gateway, and kill it: when all sessions write if it is to be `loaded`, else at any moment."""
    load = Load(gateway, seen, seed)
    try:
        if loaded:
            for begun in load.running:
                assert begun.wait(PATIENCE), "the load does not begin"
        time.sleep(choice.uniform(0, 1.5))
        kernels = psutil.Process(gateway.process.pid).children(recursive=True)
    finally:
        gateway.kill()
        load.join()
    _, alive = psutil.wait_procs(kernels, timeout=60)
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
            # The first time, so that there is something to lose.
            loaded = number == 0 or choice.random() < 0.8
            crash(gateway, seen, choice, seed + number, loaded=loaded)
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


def test_a_result_so_far_survives_a_kill_just_after_it_was_seen(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tmp_path / "data")
    gateway.execute("s", "import os, time")
    code = "while not os.path.exists('go'): time.sleep(0.001)\nprint('seen', flush=True)\ntime.sleep(60)"
    execution = gateway.submit("s", code)
    (gateway.workspace("s") / "go").touch()
    deadline = time.monotonic() + 60
    while gateway.result("s", execution)["stdout"] != "seen\n":
        assert time.monotonic() < deadline
    gateway.kill()
    after = start_gateway(gateway.data_dir)
    result = after.result("s", execution)
    assert (result["stdout"], result["status"], result["cause"]) == ("seen\n", "died", "gateway_restart")


def test_a_cell_that_was_accepted_survives_a_kill(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway(tmp_path / "data")
    gateway.execute("s", "1")
    execution = gateway.submit("s", "import time; time.sleep(60)")
    gateway.kill()
    after = start_gateway(gateway.data_dir)
    assert after.result("s", execution)["cause"] == "gateway_restart"


def test_what_a_program_was_seen_to_write_survives_a_kill(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tmp_path / "data")
    path = "/v1/sessions/s/processes"
    argv = ["sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo seen; sleep 60"]
    answer = gateway.post(path, {"argv": argv, "wait": False}, timeout=120)
    process = answer.json()["process"]
    (gateway.workspace("s") / "go").touch()
    deadline = time.monotonic() + 60
    while gateway.get(f"{path}/{process}").json()["stdout"] != "seen\n":
        assert time.monotonic() < deadline
    gateway.kill()
    after = start_gateway(gateway.data_dir)
    said = [event["text"] for event in after.recorded("s") if event["type"] == "process_output"]
    assert said == ["seen\n"]


def test_the_end_of_a_program_is_recorded_after_a_kill_and_says_no_more_than_is_known(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tmp_path / "data")
    path = "/v1/sessions/s/processes"
    ended = gateway.post(path, {"argv": ["sh", "-c", "exit 3"]}, timeout=120).json()["process"]
    running = [
        gateway.post(path, {"argv": ["sleep", "600"], "wait": False}).json()["process"] for _ in range(2)
    ]
    gateway.kill()
    after = start_gateway(gateway.data_dir)
    for _ in range(2):
        events = after.recorded("s")
        exits = [event for event in events if event["type"] == "process_exited"]
        assert [(event["process"], event["exit_code"]) for event in exits] == [
            (ended, 3),
            (running[0], None),
            (running[1], None),
        ]
        for event in exits[1:]:
            assert event["cause"] == "gateway_restart"
            assert [event[name] for name in ("signal", "truncated", "duration_ms")] == [None, None, None]
        assert (events[-1]["type"], events[-1]["state"]) == ("session", "ended")
        assert after.get("/v1/sessions/s/audit/verify").json()["valid"] is True
        with Gateway.sync(after.url, TOKEN) as client:
            read = [event for event in client.events("s") if isinstance(event, ProcessExited)]
        assert [event.duration_ms for event in read[1:]] == [None, None]
        # Once: the next one finds nothing left open.
        after.kill()
        after = start_gateway(gateway.data_dir)


def test_programs_of_cells_and_of_clients_end_with_a_gateway_that_is_killed(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tmp_path / "data")
    for apart in (False, True):
        code = f"import subprocess; subprocess.Popen(['sleep', '600'], start_new_session={apart})"
        assert gateway.execute("s", code)["status"] == "ok"
    asked = {"argv": ["sleep", "600"], "wait": False}
    assert gateway.post("/v1/sessions/s/processes", asked, timeout=120).status == 202
    kernels = psutil.Process(gateway.process.pid).children(recursive=True)
    gateway.kill()
    _, alive = psutil.wait_procs(kernels, timeout=60)
    assert not alive, "programs outlive a gateway that was killed"


def test_a_port_that_was_open_is_closed_in_the_record_after_a_kill(
    start_gateway: StartGateway, tmp_path: Path, sandbox: None
) -> None:
    gateway = start_gateway(tmp_path / "data", "sandbox", ports_port=0)
    served = Ports(gateway, base_of(gateway))
    served.run("s", ECHO, "8000")
    assert Browser().open(f"{served.base}/s/8000/", Authorization=f"Bearer {TOKEN}").status == 200
    gateway.execute("s", "'what was before is in the record'")
    gateway.kill()
    after = start_gateway(gateway.data_dir)
    events = [event for event in after.recorded("s") if event["type"].startswith("port_")]
    assert [(event["type"], event["port"]) for event in events] == [
        ("port_opened", 8000),
        ("port_closed", 8000),
    ]
    assert [events[1][name] for name in ("connections", "sent", "received")] == [None, None, None]


def test_a_session_that_was_made_survives_a_kill(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway(tmp_path / "data")
    answer = gateway.post("/v1/sessions", {"session": "s", "metadata": {"a": 1}}, timeout=120)
    gateway.kill()
    assert answer.status == 201, answer.body
    after = start_gateway(gateway.data_dir)
    assert after.model("s")["metadata"] == {"a": 1}


def test_a_branch_that_was_made_survives_a_kill(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway(tmp_path / "data")
    gateway.execute("s", "1")
    answer = gateway.post("/v1/sessions/s/branch", {"session": "b"}, timeout=120)
    gateway.kill()
    assert answer.status == 201, answer.body
    after = start_gateway(gateway.data_dir)
    assert after.model("b")["branched_from"]["session"] == "s"
    assert [event["branch"] for event in after.recorded("s") if event["type"] == "branched"] == ["b"]
