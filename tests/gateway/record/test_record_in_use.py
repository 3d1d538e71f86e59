"""A gateway whose record is read slowly, refused, backed up, restored or robbed of a file while it serves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.commands import cellgate
from tests.support.server import GatewayProcess, until

MARKER = "a-marker-to-be-purged-"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path / "data", "process", pool_size=0, shutdown_grace=1)
    try:
        yield process
        assert "Traceback" not in process.log.read_text()
    finally:
        process.stop()
        process.kill()


def holding(folder: Path) -> list[str]:
    """The files of the data folder that hold the marker."""
    marker = MARKER.encode()
    return [file.name for file in folder.iterdir() if file.is_file() and marker in file.read_bytes()]


def test_a_purge_answers_204_only_when_the_bytes_are_gone(gateway: GatewayProcess) -> None:
    """While somebody reads the record slowly: 202, other sessions go on, and its end can be seen."""
    gateway.execute("gone", f"print('{MARKER}' * 1000)")
    gateway.execute("stays", "x = 0")
    path = "/v1/sessions/gone"
    with closing(sqlite3.connect(gateway.data_dir / "record.sqlite3", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        gateway.execute("stays", "x += 1")
        answer = gateway.delete(f"{path}?purge=true", timeout=60)
        assert (answer.status, answer.headers["Location"]) == (202, path)
        assert gateway.model("gone")["state"] == "purging"
        assert gateway.get(f"{path}/notebook").reason == "not_found"
        assert "gone" not in [one["session"] for one in gateway.get("/v1/sessions").json()["sessions"]]
        for _ in range(10):
            gateway.execute("stays", "x += 1")
            assert gateway.get("/v1/sessions/stays/events").status == 200
        assert gateway.model("gone")["state"] == "purging"
        assert gateway.delete(f"{path}?purge=true", timeout=60).status == 202
        reader.execute("ROLLBACK")
    until(lambda: gateway.get(path).status == 404, "the purge does not end")
    assert holding(gateway.data_dir) == []
    assert gateway.delete(f"{path}?purge=true").reason == "not_found"
    assert gateway.execute("stays", "x")["text"].strip() == "11"
    # Without readers all is gone when the answer comes.
    gateway.execute("gone", f"print('{MARKER}' * 1000)")
    assert gateway.delete(f"{path}?purge=true").status == 204
    assert holding(gateway.data_dir) == []
    checked = cellgate("verify", "--data-dir", gateway.data_dir)
    assert checked.returncode == 0, checked.stdout


def test_a_session_whose_rows_are_refused_is_told_and_others_go_on(gateway: GatewayProcess) -> None:
    gateway.execute("bad", "1")
    gateway.execute("good", "1")
    before = gateway.recorded("bad")
    with closing(sqlite3.connect(gateway.data_dir / "record.sqlite3")) as db, db:
        db.execute("UPDATE sessions SET head_seq = head_seq - 1 WHERE key = 'bad'")

    def refused() -> bool:
        answer = gateway.post("/v1/sessions/bad/execute", {"code": "1"})
        return answer.status == 503 and answer.reason == "recording_failed"

    until(refused, "a session goes on whose rows are refused")
    model = gateway.model("bad")
    assert "not recorded any more" in model["problem"]
    assert "problem" not in gateway.model("good")
    listed = {one["session"]: one for one in gateway.get("/v1/sessions").json()["sessions"]}
    assert ("problem" in listed["bad"], "problem" in listed["good"]) == (True, False)
    ready = gateway.get("/readyz")
    assert (ready.status, ready.json()["sessions_not_recorded"]) == (200, 1)
    assert gateway.execute("good", "2")["status"] == "ok"
    assert gateway.recorded("bad") == before
    assert gateway.delete("/v1/sessions/bad").status == 204
    # Its key stays closed until the record is purged.
    assert gateway.post("/v1/sessions/bad/execute", {"code": "1"}).reason == "recording_failed"
    assert gateway.stop() == 0
    checked = cellgate("verify", "--data-dir", gateway.data_dir, "--json")
    found = {one["subject"].split()[1]: one["valid"] for one in json.loads(checked.stdout)}
    assert (checked.returncode, found["good"], found["bad"]) == (1, True, False)


def test_a_backup_while_cells_run_is_restored_elsewhere(gateway: GatewayProcess, tmp_path: Path) -> None:
    first = gateway.execute("a", "print('first')")
    target = tmp_path / "backup.sqlite3"
    done = cellgate("record", "backup", target, "--data-dir", gateway.data_dir)
    assert (done.returncode, done.stderr) == (0, "")
    assert cellgate("record", "backup", target, "--data-dir", gateway.data_dir).returncode == 1
    gateway.execute("a", "print('second')")
    refused = cellgate("record", "restore", target, "--data-dir", gateway.data_dir, "--force")
    assert (refused.returncode, "in use" in refused.stderr) == (1, True)
    other = tmp_path / "other"
    done = cellgate("record", "restore", target, "--data-dir", other)
    assert (done.returncode, done.stderr) == (0, "")
    assert cellgate("verify", "--data-dir", other).returncode == 0
    again = GatewayProcess(other, "process", pool_size=0)
    try:
        assert again.result("a", first["execution"]) == first
        assert len(again.get("/v1/sessions/a/executions").json()["executions"]) == 1
        assert again.execute("a", "print('third')")["status"] == "ok"
    finally:
        assert again.stop() == 0
    assert cellgate("record", "restore", target, "--data-dir", other).returncode == 1
    assert cellgate("record", "restore", target, "--data-dir", other, "--force").returncode == 0


@pytest.mark.parametrize("name", ["record.sqlite3.lock", "record.sqlite3.redo", "gateway.json"])
def test_a_second_gateway_is_refused_whatever_was_removed(gateway: GatewayProcess, name: str) -> None:
    (gateway.data_dir / name).unlink()
    second = cellgate("serve", "--port=0", "--data-dir", gateway.data_dir, "--backend=process", "--no-auth")
    assert second.returncode != 0
    assert "in use by another gateway" in second.stderr
    assert gateway.execute("a", "1")["status"] == "ok"
