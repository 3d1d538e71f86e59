"""Each session's files are its own, also when the record is an older one than the files."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cellgate_kernels.base import trees
from tests.support.nightly import at_night
from tests.support.server import GatewayProcess


def record_files(data: Path) -> list[Path]:
    """The record, whatever files it consists of."""
    return [path for path in data.iterdir() if path.name.startswith("record.sqlite3")]


def stopped(data: Path, session: str, code: str, *, kill: bool = False) -> None:
    """A life of a gateway in which this session runs this cell."""
    gateway = GatewayProcess(data, "process")
    try:
        assert gateway.execute(session, code)["status"] == "ok"
        if not kill:
            assert gateway.stop() == 0
    finally:
        gateway.kill()


def rows(data: Path) -> dict[str, tuple[int, str]]:
    """Ids and folders of all sessions, by their keys."""
    with closing(sqlite3.connect(data / "record.sqlite3")) as db:
        return {
            key: (number, folder)
            for key, number, folder in db.execute("SELECT key, id, folder FROM sessions")
        }


def files(gateway: GatewayProcess, session: str) -> list[str]:
    return [file["path"] for file in gateway.get(f"/v1/sessions/{session}/files").json()["files"]]


@pytest.mark.parametrize("crash", [at_night(False), True])
def test_a_restored_record_gives_no_session_anothers_files(tmp_path: Path, *, crash: bool) -> None:
    """A session that is made after the restore has the number of one that the record has forgotten."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    backup.mkdir()
    stopped(data, "before", "open('own', 'w').write('own')")
    for path in record_files(data):
        shutil.copy2(path, backup)
    stopped(data, "forgotten", "open('secret', 'w').write('hunter2')", kill=crash)
    forgotten = None if crash else rows(data)["forgotten"]
    for path in record_files(data):
        path.unlink()
    for path in backup.iterdir():
        shutil.copy2(path, data)

    gateway = GatewayProcess(data, "process")
    try:
        assert gateway.execute("new", "import os; os.listdir()")["text"] == "[]"
        assert files(gateway, "new") == []
        assert gateway.execute("before", "open('own').read()")["text"] == "'own'"
        assert gateway.get("/v1/sessions/forgotten").status == 404
        (aside,) = (data / "workspaces" / "orphans").iterdir()
        assert (aside / "secret").read_text() == "hunter2"
        assert str(aside) in gateway.log.read_text()
        assert gateway.stop() == 0
    finally:
        gateway.kill()
    if forgotten is not None:
        number, folder = rows(data)["new"]
        assert number == forgotten[0], "it is the same number, or this test shows nothing"
        assert folder != forgotten[1]
    stopped(data, "another", "1")
    assert (aside / "secret").exists(), "what is set aside stays"
    trees.remove(data)
