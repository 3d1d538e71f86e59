"""A full disk below the record: clear refusals, no hang, nothing lost, and work again when there is room.

The data folder lies on a small file system in memory, which only root can mount. Without a reserve the
gateway learns that the disk is full when it is; with one, no cell is begun that could not be recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.server import GatewayProcess, Response, until
from tests.support.small_disk import mount, small_disk

SIZE = "size=16m,nr_inodes=800,mode=0700"
LOUD = "print('y' * 200_000)"


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 16 MB."""
    with small_disk(SIZE) as folder:
        yield folder


@pytest.fixture
def gateway(disk: Path) -> Iterator[GatewayProcess]:
    """A gateway with its data on the small disk, and no kernel but those that are asked for."""
    process = GatewayProcess(
        disk / "data",
        "process",
        pool_size=0,
        shutdown_grace=1,
        keep_alive=20,
        text_cap="400m",
        storage_reserve=0,
    )
    children = psutil.Process(process.process.pid)
    try:
        yield process
        kernels = children.children(recursive=True) if process.process.poll() is None else []
        process.stop()
        _, alive = psutil.wait_procs(kernels, timeout=60)
        assert not alive
    finally:
        process.kill()


def fill(disk: Path) -> Path:
    """Take all the space there is; the file that has it."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096, 256, 16, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return ballast


@contextmanager
def no_room_after_kernels(disk: Path) -> Iterator[None]:
    """Within it, what kernels keep beside their sockets takes its space even when it is removed."""
    with ExitStack() as stack:
        for path in disk.rglob("*-unsent"):
            stack.enter_context(path.open("rb"))
        yield


def full_disk(disk: Path, gateway: GatewayProcess, session: str) -> Response:
    """Fill the disk, and run cells until one can't be recorded; its answer."""
    for _ in range(20):
        fill(disk)
        answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": LOUD}, timeout=60)
        if answer.status != 200:
            return answer
    raise AssertionError("a full disk takes everything")


def is_ready_again(gateway: GatewayProcess) -> None:
    until(lambda: gateway.get("/readyz", timeout=60).status == 200, "the gateway does not recover")


def statuses(gateway: GatewayProcess, session: str) -> list[str]:
    """How all executions of a session ended."""
    listed = gateway.get(f"/v1/sessions/{session}/executions?limit=1000").json()["executions"]
    return [row["status"] for row in listed]


def streamed_to_its_end(gateway: GatewayProcess, session: str, code: str) -> list[dict[str, Any]]:
    """The events of a cell as they come; fails when they stop before the last."""
    events = []
    with gateway.stream("POST", f"/v1/sessions/{session}/execute", {"code": code}) as stream:
        for line in stream:
            events.append(json.loads(line))
            assert events[-1]["type"] != "keepalive", "the stream stands still"
    return events


def test_a_full_disk_is_told_and_what_ran_meanwhile_is_recorded_when_there_is_room(
    disk: Path, gateway: GatewayProcess
) -> None:
    kept = [gateway.execute("a", code) for code in ("x = 1; x", "print('kept')")]
    answer = full_disk(disk, gateway, "a")
    assert (answer.status, answer.reason) == (507, "storage_full")
    assert "space" in answer.json()["detail"]

    # No request hangs, none brings the gateway down, and no cell is run that could not be recorded.
    ready = gateway.get("/readyz", timeout=60)
    assert (ready.status, ready.json()["missing"]) == (503, ["storage"])
    assert gateway.get("/healthz", timeout=60).status == 200
    assert gateway.get("/metrics", timeout=60).status == 200
    assert gateway.model("a")["state"] == "idle"
    again = gateway.post("/v1/sessions/a/execute", {"code": "x += 1; x"}, timeout=60)
    assert (again.status, again.reason) == (507, "storage_full")
    for path in (
        "/v1/sessions",
        "/v1/sessions/a/events",
        "/v1/sessions/a/executions",
        "/v1/sessions/a/notebook",
    ):
        answer = gateway.get(path, timeout=60)
        # All of it would have to be brought into the tables first.
        assert (answer.status, answer.reason) == (507, "storage_full"), path
    streamed = gateway.post(
        "/v1/sessions/a/execute",
        {"code": "x += 1; x"},
        headers={"Accept": "application/x-ndjson"},
        timeout=60,
    )
    assert (streamed.status, streamed.reason) == (507, "storage_full")

    (disk / "ballast").unlink()
    is_ready_again(gateway)
    assert streamed_to_its_end(gateway, "a", "x += 1; x")[-1]["status"] == "ok"
    assert gateway.execute("a", "x")["text"].strip() == "2", "what was refused did not run"
    events = gateway.recorded("a")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    finished = [event for event in events if event["type"] == "finished"]
    assert [event["status"] for event in finished] == ["ok"] * len(finished)
    assert statuses(gateway, "a") == ["ok"] * len(finished)
    assert [gateway.result("a", former["execution"]) for former in kept] == kept
    assert gateway.get("/v1/sessions/a/notebook").status == 200
    log = gateway.log.read_text()
    assert "Traceback" not in log
    for told in ("The record can't be written for now: ", "The record is written again, after "):
        assert log.count(told) == 1
    again = "The gateway takes new work again"
    until(lambda: again in gateway.log.read_text(), "that work is taken again is not logged")
    assert gateway.log.read_text().count("The gateway takes no new work: ") == 1
    assert gateway.stop() == 0


def test_sessions_can_t_start_on_a_full_disk_and_can_afterwards(disk: Path, gateway: GatewayProcess) -> None:
    gateway.execute("a", "1")
    assert full_disk(disk, gateway, "a").status == 507

    def refused() -> Response | None:
        fill(disk)
        answer = gateway.post("/v1/sessions", {}, timeout=60)
        return None if answer.status in {200, 201} else answer

    answer = until(refused, "a full disk takes every session")
    assert (answer.status, answer.reason) == (507, "storage_full")
    assert "space" in answer.json()["detail"].lower()
    (disk / "ballast").unlink()
    is_ready_again(gateway)
    assert gateway.execute("b", "1")["status"] == "ok"


def test_a_session_ends_on_a_full_disk(disk: Path, gateway: GatewayProcess) -> None:
    gateway.execute("a", "1")
    assert full_disk(disk, gateway, "a").status == 507
    with no_room_after_kernels(disk):
        answer = gateway.delete("/v1/sessions/a", timeout=60)
        assert (answer.status, answer.reason) == (507, "storage_full")
        until(
            lambda: not psutil.Process(gateway.process.pid).children(recursive=True),
            "the session's kernel remains",
        )
    (disk / "ballast").unlink()
    is_ready_again(gateway)
    model = gateway.model("a")
    assert (model["state"], model["cause"]) == ("ended", "deleted")


def test_a_cell_that_fills_the_disk_gets_its_own_error(disk: Path, gateway: GatewayProcess) -> None:
    """The cell sees ENOSPC; that its end can't be recorded then is told, until it has cleared up."""
    code = "with open('big', 'wb', buffering=0) as f:\n    while True: f.write(bytes(65536))"
    answer = gateway.post("/v1/sessions/a/execute", {"code": code}, timeout=60)
    assert answer.status == 200, answer.body
    assert answer.json()["error"]["ename"] == "OSError"
    workspace = gateway.data_dir / "workspaces"
    [big] = workspace.rglob("big")
    big.unlink()
    is_ready_again(gateway)
    assert statuses(gateway, "a") == ["error"]
    assert gateway.execute("a", "1")["status"] == "ok"


def test_a_flood_of_output_on_a_full_disk_is_bounded_in_memory_and_ends(
    disk: Path, gateway: GatewayProcess
) -> None:
    """What can't be written stays with the kernel, but for a bounded part; the cell ends all the same."""
    gateway.execute("a", "1")
    assert full_disk(disk, gateway, "a").status == 507
    process = psutil.Process(gateway.process.pid)
    before = process.memory_info().rss
    flood = "import sys\nfor _ in range(120): print('z' * 1_000_000); sys.stdout.flush()"
    answer = gateway.post("/v1/sessions/a/execute", {"code": flood, "timeout": 3}, timeout=40)
    assert (answer.status, answer.reason) == (507, "storage_full")
    assert process.memory_info().rss - before < 200 * 1024 * 1024
    assert gateway.get("/healthz", timeout=60).status == 200


def test_one_output_too_large_to_wait_in_memory_does_not_end_the_session(
    disk: Path, gateway: GatewayProcess
) -> None:
    gateway.execute("a", "1")
    assert full_disk(disk, gateway, "a").status == 507
    flood = "print('z' * 80_000_000); print('more')"
    answer = gateway.post("/v1/sessions/a/execute", {"code": flood, "timeout": 3}, timeout=60)
    assert (answer.status, answer.reason) == (507, "storage_full")
    mount("-o", "remount,size=600m", str(disk))
    is_ready_again(gateway)
    answer = gateway.post("/v1/sessions/a/execute", {"code": "1"}, timeout=60)
    assert (answer.status, answer.json()["status"]) == (200, "ok")


def test_a_gateway_that_ends_with_a_full_disk_says_what_is_lost(disk: Path, gateway: GatewayProcess) -> None:
    gateway.execute("a", "1")
    assert full_disk(disk, gateway, "a").status == 507
    with no_room_after_kernels(disk):
        assert gateway.stop() == 1
    log = gateway.log.read_text()
    assert "Traceback" not in log
    assert log.rstrip().splitlines()[-1].startswith("cellgate: ")
    assert "space" in log.rstrip().splitlines()[-1]
    (disk / "ballast").unlink()
    again = GatewayProcess(gateway.data_dir, "process", pool_size=0, storage_reserve=0)
    try:
        model = again.model("a")
        assert model["state"] == "ended"
        events = again.recorded("a")
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert again.execute("a", "1")["status"] == "ok"
        assert again.stop() == 0
    finally:
        again.kill()


def test_a_disk_without_room_for_files_is_told_and_not_tried_without_end(
    disk: Path, gateway: GatewayProcess
) -> None:
    gateway.execute("a", "1")
    files = [disk / f"file-{number}" for number in range(os.statvfs(disk).f_ffree)]
    for file in files:
        file.touch()
    answer = gateway.post("/v1/sessions", {"session": "b"}, timeout=60)
    assert (answer.status, answer.reason) == (503, "kernel_start_failed")
    assert gateway.execute("a", "1")["status"] == "ok"
    for file in files:
        file.unlink()
    assert gateway.execute("b", "1")["status"] == "ok"
    assert gateway.log.read_text().count("\n") < 200
