"""A reserve of space: no cell is begun that could not be recorded, and what runs has room for its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.record.chain import verify
from cellgate.record.store.sqlite.blobs import put_back
from cellgate.record.store.sqlite.schema import open_reader
from tests.gateway.record.test_storage import disk, fill, is_ready_again, statuses
from tests.support.server import GatewayProcess, until

__all__ = ["disk"]


@pytest.fixture
def reserved(disk: Path) -> Iterator[GatewayProcess]:
    """A gateway on the small disk that begins nothing when less than 2 MB are left."""
    process = GatewayProcess(
        disk / "data", "process", pool_size=0, shutdown_grace=1, storage_reserve="2m", cell_timeout=30
    )
    try:
        yield process
        assert process.stop() == 0, process.log.read_text()
        assert "Traceback" not in process.log.read_text()
    finally:
        process.kill()


def shrink(ballast: Path) -> None:
    """Give back what a cell's end needs: less than the reserve, so that still nothing is begun."""
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - 1024 * 1024)


def test_on_a_full_disk_an_execution_is_refused_before_it_runs(disk: Path, reserved: GatewayProcess) -> None:
    """The very first one too, through every door; the service is back as soon as there is room."""
    reserved.execute("a", "x = 1")
    before = reserved.recorded("a")
    ballast = fill(disk)
    shrink(ballast)
    for accept in ("application/json", "application/x-ndjson", "text/event-stream"):
        refused = reserved.post("/v1/sessions/a/execute", {"code": "x += 1"}, headers={"Accept": accept})
        assert (refused.status, refused.reason) == (507, "storage_full")
        assert "space" in refused.json()["detail"]
    for path, body in (("/v1/sessions/new/execute", {"code": "1"}), ("/v1/sessions", {"session": "new"})):
        refused = reserved.post(path, body)
        assert (refused.status, refused.reason) == (507, "storage_full")
    assert reserved.get("/v1/sessions/new").status == 404
    ready = reserved.get("/readyz")
    assert (ready.status, ready.json()["missing"]) == (503, ["storage"])
    assert reserved.recorded("a") == before

    def logs(text: str) -> bool:
        return reserved.log.read_text().count(text) == 1

    where = f"The gateway takes no new work: the record can't be written, or the disk of {disk / 'data'} has"
    until(lambda: logs(where), "that no new work is taken is not logged")
    ballast.unlink()
    is_ready_again(reserved)
    assert reserved.execute("a", "x")["text"].strip() == "1", "what was refused did not run"
    until(lambda: logs("The gateway takes new work again"), "that work is taken again is not logged")


def test_what_runs_when_the_disk_fills_up_ends_as_usual_and_what_waits_does_not_begin(
    disk: Path, reserved: GatewayProcess
) -> None:
    running = reserved.hold("a", "x = input(); print('done', x)")
    waiting = reserved.submit("a", "x = 'begun'")
    ballast = fill(disk)
    shrink(ballast)
    reserved.answer("a", running, "well")
    result = reserved.ended("a", running)
    assert (result["status"], result["stdout"]) == ("ok", "done well\n")
    result = reserved.ended("a", waiting)
    assert (result["status"], result["cause"], result["started_at"]) == ("died", "storage_full", None)

    ballast.unlink()
    is_ready_again(reserved)
    assert reserved.execute("a", "x")["text"].strip() == "'well'"
    assert statuses(reserved, "a") == ["ok", "died", "ok"]


def test_a_disk_without_a_byte_loses_nothing_that_was_recorded(disk: Path, reserved: GatewayProcess) -> None:
    """The end of a cell waits in memory, is told as not recorded yet, and is recorded when there is room."""
    running = reserved.hold("a", "print('y' * 200_000); input()")
    fill(disk)
    reserved.answer("a", running)
    path = f"/v1/sessions/a/executions/{running}"

    def told() -> bool:
        answer = reserved.get(path)
        return answer.status == 507 or answer.json()["status"] == "ok"

    until(told, "the cell's end is not told")
    (disk / "ballast").unlink()
    is_ready_again(reserved)
    assert reserved.result("a", running)["status"] == "ok"
    events = reserved.recorded("a")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    reader = open_reader(disk / "data" / "record.sqlite3")
    stored = reader.execute("SELECT seq, body, blobs, hash FROM events ORDER BY seq").fetchall()
    rows = [(seq, put_back(reader, body, blobs), digest) for seq, body, blobs, digest in stored]
    assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    reader.close()
    assert verify(rows).valid
    assert [json.loads(body) for _, body, _ in rows] == events
