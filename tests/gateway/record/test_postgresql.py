"""A gateway whose record is in PostgreSQL, as its users and operators see it: nothing is different."""

from __future__ import annotations

import builtins
import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import nbformat
import psycopg
import pytest

from cellgate.errors import StorageError
from cellgate.record.store.opening import record_address
from cellgate.record.store.postgresql.check import check_database
from cellgate.record.store.postgresql.migration import move_back, move_in
from cellgate.record.store.postgresql.record_connection import RecordAddress
from cellgate.record.store.postgresql.store import PostgresStore
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.location import RECORD
from cellgate.record.verify.notebooks import check_bundle
from cellgate.server.doctor import Grade, try_database
from tests.conftest import StartGateway
from tests.pure.record.conftest import all_events, journal_at
from tests.pure.record.recorded import Recorded, image, text
from tests.support import commands
from tests.support.postgresql import PostgresServer
from tests.support.server import GatewayProcess, until

AGAIN = {"Idempotency-Key": "again"}


def events_of(gateway: GatewayProcess, session: str) -> list[tuple[int, str]]:
    return [(event["seq"], event["type"]) for event in gateway.recorded(session)]


def test_a_session_lives_as_in_sqlite(start_gateway: StartGateway, database: str, tmp_path: Path) -> None:
    """Cells, followers, repeats, exports, a resume after a crash, the trail and a purge."""
    gateway = start_gateway(record=database)
    first = gateway.post("/v1/sessions/s/execute", {"code": "print(6 * 7)"}, headers=AGAIN).json()
    assert first["status"] == "ok"
    repeated = gateway.post("/v1/sessions/s/execute", {"code": "print(6 * 7)"}, headers=AGAIN).json()
    assert repeated["execution"] == first["execution"]
    live = list(gateway.events("POST", "/v1/sessions/s/execute", {"code": "for i in range(3): print(i)"}))
    assert live[-1]["type"] == "finished"
    assert [event for event in gateway.recorded("s") if event["execution"] == live[-1]["execution"]] == live
    notebook = nbformat.reads(gateway.get("/v1/sessions/s/notebook").body.decode(), as_version=4)
    assert [cell.source for cell in notebook.cells] == ["print(6 * 7)", "for i in range(3): print(i)"]
    (tmp_path / "s.zip").write_bytes(gateway.get("/v1/sessions/s/bundle").body)
    assert check_bundle(tmp_path / "s.zip").valid
    assert gateway.get("/v1/sessions/s/audit/verify").json()["valid"]
    flood = gateway.submit("s", "import time\nwhile True: print(flush=True) or time.sleep(0.001)")
    until(lambda: len(events_of(gateway, "s")) > 30, "nothing is printed")
    before = events_of(gateway, "s")
    gateway.kill()

    gateway = start_gateway(gateway.data_dir, record=database)
    after = events_of(gateway, "s")
    assert after[: len(before)] == before
    assert gateway.model("s")["state"] == "ended"
    assert gateway.result("s", flood)["status"] == "died"
    assert gateway.execute("s", "1 + 1")["status"] == "ok"
    again = gateway.post("/v1/sessions/s/execute", {"code": "print(6 * 7)"}, headers=AGAIN).json()
    assert again["execution"] == first["execution"], "the key is known beyond a crash"
    assert gateway.get("/v1/sessions/s/audit/verify").json()["valid"]
    assert gateway.delete("/v1/sessions/s?purge=true").status == 204
    assert gateway.get("/v1/sessions/s").reason == "not_found"
    with closing(psycopg.connect(database)) as db:
        count = db.execute("SELECT count(*) FROM cellgate.events").fetchone()
        kinds = db.execute("SELECT type FROM cellgate.trail WHERE type <> 'act' ORDER BY seq").fetchall()
    assert count == (0,)
    assert kinds == [("record_begun",), ("record_purged",)]
    assert not (gateway.data_dir / "record.sqlite3").exists()
    assert "record     database record" in gateway.log.read_text()


def test_an_outage_of_the_server_ends_no_session(
    start_gateway: StartGateway, postgres_server: PostgresServer, database: str
) -> None:
    """A cell that runs meanwhile is recorded afterwards; new ones are refused clearly until then."""
    gateway = start_gateway(record=database)
    running = gateway.hold("s", "x = input(); print('got', x)")
    gateway.execute("other", "1")
    postgres_server.stop()
    try:
        gateway.answer("s", running, "it")
        refused = gateway.post("/v1/sessions/new/execute", {"code": "1"})
        assert (refused.status, refused.reason) == (503, "storage_error")
        assert "PostgreSQL" in refused.json()["detail"]

        def told() -> bool:
            return gateway.get("/readyz").status == 503

        until(told, "the gateway does not notice")
        refused = gateway.post("/v1/sessions/other/execute", {"code": "1"})
        assert (refused.status, refused.reason) == (503, "storage_error")
    finally:
        postgres_server.start()
    until(lambda: gateway.get("/readyz").status == 200, "the gateway does not go on")
    assert gateway.ended("s", running)["status"] == "ok"
    assert gateway.printed("s", "got it")
    assert gateway.execute("other", "2")["status"] == "ok"
    for session in ("s", "other"):
        assert gateway.get(f"/v1/sessions/{session}/audit/verify").json()["valid"]


def test_a_gateway_that_has_lost_its_record_to_another_one_writes_nothing_and_says_so(
    start_gateway: StartGateway, postgres_server: PostgresServer, database: str
) -> None:
    """As if another gateway was first after a restart of the server. Later its sessions are told."""
    first = start_gateway(record=database)
    first.execute("s", "x = 1")
    running = first.hold("runs", "print('got', input())")
    first.process.send_signal(signal.SIGSTOP)
    try:
        postgres_server.stop()
        postgres_server.start()
        second = start_gateway(record=database)
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert second.execute("s", "2")["kernel"]["cause"] == "gateway_restart"
    first.answer("runs", running, "it")
    until(lambda: first.get("/readyz").status == 503, "the gateway does not notice")
    refused = first.post("/v1/sessions/s/execute", {"code": "1"})
    assert (refused.status, refused.reason) == (503, "storage_error")
    assert "Another gateway, or a command, uses the record" in first.log.read_text()
    assert second.result("runs", running)["cause"] == "gateway_restart"
    before = second.recorded("runs"), second.recorded("s")
    assert second.stop() == 0

    until(lambda: first.get("/readyz").status == 200, "the gateway has not its record again")
    until(lambda: first.model("runs")["state"] == "ended", "its session goes on")
    told = first.post("/v1/sessions/s/execute", {"code": "1"})
    assert (told.status, told.reason) == (503, "fenced")
    assert first.execute("s", "1")["kernel"]["cause"] == "gateway_shutdown"
    for session, events in zip(("runs", "s"), before, strict=True):
        assert first.recorded(session)[: len(events)] == events
    assert "valid" in said("verify", f"--record={database}")


def problem_of(*words: str | Path, **environment: str) -> str:
    """What `cellgate serve` says that does not start, and not once the password."""
    done = commands.cellgate("serve", "--port=0", "--backend=process", *words, **environment)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "hunter2" not in said
    assert "Traceback" not in said
    return said


def test_what_can_not_be_served_is_said_clearly(
    start_gateway: StartGateway, postgres_server: PostgresServer, database: str, tmp_path: Path
) -> None:
    data = f"--data-dir={tmp_path / 'data'}"
    unreachable = problem_of(data, "--record=postgresql://ada:hunter2@127.0.0.1:1/record")
    assert "PostgreSQL can't be reached (database record at 127.0.0.1:1)" in unreachable
    assert "--record takes a database of PostgreSQL" in problem_of(
        data, "--record=mysql://ada:hunter2@db/record"
    )
    latin = postgres_server.database("--encoding=LATIN1", "--template=template0")
    assert "has the encoding LATIN1" in problem_of(data, f"--record={latin}")
    gateway = start_gateway(record=database)
    assert "Another gateway, or a command, uses the record" in problem_of(data, f"--record={database}")
    busy = problem_of(f"--data-dir={gateway.data_dir}", f"--record={postgres_server.database()}")
    assert "is in use by another gateway" in busy
    sqlite = tmp_path / "sqlite"
    sqlite.mkdir()
    (sqlite / "record.sqlite3").touch()
    assert "has a record in SQLite already" in problem_of(f"--data-dir={sqlite}", f"--record={database}")


def test_without_psycopg_sqlite_works_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("psycopg"):
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *rest)

    for name in [name for name in sys.modules if "postgresql" in name and name.startswith("cellgate")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(StorageError, match=r"pip install 'cellgate\[server,postgresql\]'"):
        record_address("postgresql://db/record")


def test_a_gateway_with_sqlite_loads_nothing_of_postgresql() -> None:
    code = "import sys, json, cellgate.server.assembly; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert [name for name in json.loads(done.stdout) if "psycopg" in name or "postgresql" in name] == []


# ---- commands ---------------------------------------------------------------------------------------------


def said(*words: str | Path, status: int = 0) -> str:
    """The output of a command that must leave with `status`."""
    done = commands.cellgate(*words)
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def recorded(gateway: GatewayProcess) -> dict[str, bytes]:
    """The rows of each session with their hashes, as they were written."""
    keys = [model["session"] for model in gateway.get("/v1/sessions").json()["sessions"]]
    return {key: gateway.get(f"/v1/sessions/{key}/audit").body for key in keys}


def test_a_record_moves_there_and_back(
    start_gateway: StartGateway, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """With long rows and a purge; row by row the same, checked, the original set aside."""
    data, database = tmp_path / "data", postgres_server.database()
    gateway = start_gateway(data)
    to, back = f"--record={database}", "--back"
    folder = f"--data-dir={data}"
    gateway.execute("long", "print('x' * 100_000); print('ü')")
    gateway.execute("gone", "1")
    assert gateway.delete("/v1/sessions/gone?purge=true").status == 204
    gateway.post("/v1/sessions/long/execute", {"code": "2"}, headers=AGAIN)
    before = recorded(gateway)
    assert "is in use by another gateway" in said("record", "migrate", folder, to, status=1)
    gateway.stop()

    told = said("record", "migrate", folder, to)
    assert "1 session, 2 executions" in told
    assert not (data / "record.sqlite3").exists()
    assert len([*data.glob("record.sqlite3.moved-*")]) == 1
    assert "valid      session long of default" in said("verify", to)
    assert "record_purged" in said("record", "trail", folder, to)
    assert "executions                   2" in said("record", "stats", folder, to)
    gateway = start_gateway(data, record=database)
    assert recorded(gateway).keys() == {"long"}
    assert recorded(gateway)["long"].startswith(before["long"])
    gateway.execute("long", "3")
    last = gateway.get("/v1/sessions/long/events").json()["events"][-1]["seq"]
    assert "uses the record" in said("record", "migrate", folder, to, back, status=1)
    gateway.stop()

    empty = postgres_server.database()
    assert "There is no record" in said("record", "migrate", folder, f"--record={empty}", back, status=1)
    assert "checked" in said("record", "migrate", folder, to, back)
    assert "There is no record" in said("verify", to, status=1)
    assert "valid      session long of default" in said("verify", folder)
    gateway = start_gateway(data)
    assert gateway.get("/v1/sessions/long/audit/verify").json()["valid"]
    assert gateway.get("/v1/sessions/long/events").json()["events"][-1]["seq"] > last
    assert gateway.execute("long", "4")["status"] == "ok"


async def test_branches_pictures_and_names_of_any_kind_move_too(database: str, tmp_path: Path) -> None:
    record = tmp_path / "data" / RECORD
    async with journal_at(record) as journal:
        parent = Recorded(journal, "täglich")
        parent.cell("plot()", image(), text("\U0001f600\x00"))
        child = Recorded(journal, "child", parent)
        for session in (parent, child):
            session.cell("plot()", image(), image())
        child.end()
    before = {found.subject: found for found in check_record(record)}
    size = record.stat().st_size
    moved = move_in(record, RecordAddress.of(database))
    assert {found.subject: found for found in check_database(RecordAddress.of(database))} == before
    assert (moved.counts.sessions, moved.counts.executions) == (2, 3)
    back = move_back(RecordAddress.of(database), record)
    assert back.counts == moved.counts
    assert {found.subject: found for found in check_record(record)} == before
    assert record.stat().st_size <= size, "equal pictures are stored once again"
    async with journal_at(record) as journal:
        assert journal.new_session_id() > child.row.id
        assert await all_events(journal, child.row.id)


def test_a_migration_that_is_refused_changes_nothing(
    start_gateway: StartGateway, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    one, other = start_gateway(tmp_path / "one"), start_gateway(tmp_path / "two")
    for gateway in (one, other):
        gateway.execute("s", "1")
        gateway.stop()
    database = postgres_server.database()
    to = f"--record={database}"
    with closing(sqlite3.connect(one.data_dir / "record.sqlite3")) as db:
        db.execute("UPDATE events SET body = CAST(body || ' ' AS BLOB) WHERE type = 'queued'")
        db.commit()
    assert "is not valid: session s" in said("record", "migrate", f"--data-dir={one.data_dir}", to, status=1)
    said("record", "migrate", f"--data-dir={other.data_dir}", to)
    one_more = start_gateway(tmp_path / "three")
    one_more.execute("s", "1")
    one_more.stop()
    folder = f"--data-dir={one_more.data_dir}"
    assert "has a record already" in said("record", "migrate", folder, to, status=1)
    for gateway in (one, one_more):
        assert (gateway.data_dir / "record.sqlite3").exists()
    with closing(psycopg.connect(database, autocommit=True)) as db:
        db.execute("UPDATE cellgate.events SET body = body || 'x' WHERE seq = 3")
    assert "row 3 was changed" in said("verify", to, status=1)
    folder = f"--data-dir={other.data_dir}"
    assert "is not valid: session s" in said("record", "migrate", folder, to, "--back", status=1)
    assert not (other.data_dir / "record.sqlite3").exists()


async def test_a_backup_by_pg_dump_is_a_record(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """With the commands of the guide; and the next session has an id that none had before."""
    record, database = tmp_path / "data" / RECORD, postgres_server.database()
    async with journal_at(record) as journal:
        session = Recorded(journal, "s")
        session.cell("1", text("ü"))
    move_in(record, RecordAddress.of(database))
    dump = postgres_server.folder / "record.dump"
    postgres_server.run("pg_dump", "--format=custom", "--schema=cellgate", f"--file={dump}", database)
    restored = postgres_server.database("--encoding", "UTF8", "--template", "template0")
    postgres_server.run("pg_restore", "--no-owner", f"--dbname={restored}", dump)
    assert said("verify", f"--record={restored}") == said("verify", f"--record={database}")
    store = await PostgresStore.open(RecordAddress.of(restored))
    try:
        assert await store.begin_session("ada", "t") > session.row.id
    finally:
        await store.close()


async def test_doctor_tries_the_database(database: str) -> None:
    def found(url: str) -> tuple[Grade, str]:
        finding = try_database(url)
        assert finding.subject == "record"
        return finding.outcome, finding.found

    outcome, words = found(database)
    assert outcome is Grade.OK
    assert "can keep a record, and has none yet" in words
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE ROLE reader LOGIN")
        outcome, words = found(f"{database}&user=reader")
        assert outcome is Grade.PROBLEM
        assert "may not create a schema" in words
        db.execute("DROP ROLE reader")
    await (await PostgresStore.open(RecordAddress.of(database))).close()
    assert "has a record" in found(database)[1]
    outcome, words = found("postgresql://cellgate@127.0.0.1:1/cellgate")
    assert (outcome, "can't be reached" in words) == (Grade.PROBLEM, True)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("backup", "/nowhere"), "pg_dump --format=custom --schema=cellgate"),
        (("restore", "/nowhere"), "pg_restore"),
        (("compact",), "VACUUM FULL"),
    ],
)
def test_what_is_for_files_alone_says_what_does_it_in_postgresql(
    words: tuple[str, ...], answer: str, tmp_path: Path
) -> None:
    record = "--record=postgresql://db/record"
    assert answer in said("record", *words, record, f"--data-dir={tmp_path}", status=2)
    assert "say which database" in said("record", "migrate", f"--data-dir={tmp_path}", status=2)
    bare = said("record", "migrate", "postgresql://ada:secret@db/record", f"--data-dir={tmp_path}", status=2)
    assert "takes the database by --record" in bare
    assert "secret" not in bare
