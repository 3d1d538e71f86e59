"""A record and several processes: one gateway for it, and nothing lost with a process that is killed."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import StorageError
from cellgate.record.chain import verify
from cellgate.record.store.sqlite import file_watch
from cellgate.record.store.sqlite.journal import Journal
from cellgate.testing.record_store import Chain
from tests.pure.record.conftest import all_events
from tests.pure.record.test_lock import closed_once_it_knows
from tests.pure.record.test_redo import cells

PROJECT = Path(__file__).parents[3]
FILES = [
    "record.sqlite",
    "record.sqlite.lock",
    "record.sqlite.redo",
    "record.sqlite.last",
    "record.sqlite-wal",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "record.sqlite"


async def opened_elsewhere(path: Path) -> str:
    """What a process says that opens the record, and ends."""
    code = f"""
        import asyncio, pathlib
        from cellgate.record.store.sqlite.journal import Journal
        asyncio.run(Journal.open(pathlib.Path({str(path)!r})))
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    done = await asyncio.to_thread(
        subprocess.run, program, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr


@pytest.mark.parametrize("name", FILES)
async def test_a_removed_file_lets_no_second_gateway_in(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of this process nor of another one."""
    monkeypatch.setattr(file_watch, "WATCH_SECONDS", 0.02)
    journal = await Journal.open(path)
    await cells(journal, Chain(journal.new_session_id()), 1)
    path.with_name(name).unlink()
    with pytest.raises(StorageError, match="in use by another gateway"):
        await Journal.open(path)
    assert "in use by another gateway" in await opened_elsewhere(path)
    if name != "record.sqlite":
        await journal.close()
        await (await Journal.open(path)).close()
        return
    with pytest.raises(StorageError, match="removed or replaced"):
        await closed_once_it_knows(journal)


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_two_gateways_can_not_share_a_folder(path: Path, sync: Any) -> None:
    """Whether they are two processes or one; afterwards it is free again."""
    journal = await Journal.open(path, sync=sync)
    with pytest.raises(StorageError, match="in use by another gateway"):
        await Journal.open(path)
    assert "in use by another gateway" in await opened_elsewhere(path)
    await journal.close()
    await (await Journal.open(path)).close()


WRITER = """
    import asyncio, itertools, pathlib, sys
    from cellgate.record.store.sqlite.journal import Journal
    from cellgate.testing.record_store import Chain, execution_row, session_row

    async def write(journal, session_id):
        journal.save_session(session_row(session_id))
        chain = Chain(session_id)
        for number in itertools.count(1):
            for _ in range(7):
                journal.append(chain.next(f"e{number}", size=300))
            journal.save_execution(execution_row(session_id, number, last_seq=chain.seq, status="ok"))
            await journal.commit()
            print(session_id, chain.seq, flush=True)
            await asyncio.sleep(0)

    async def main():
        journal = await Journal.open(pathlib.Path(sys.argv[1]), sync=sys.argv[2])
        await asyncio.gather(*(write(journal, journal.new_session_id()) for _ in range(3)))

    asyncio.run(main())
"""


def killed_while_writing(path: Path, acknowledged: Path, sync: str) -> dict[int, int]:
    """Let a process write and kill it; returns for each session up to which row it had a commit's answer."""
    program = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), sync]
    with acknowledged.open("wb") as out, subprocess.Popen(program, stdout=out, cwd=PROJECT) as child:
        try:
            while acknowledged.read_bytes().count(b"\n") < 200:
                assert child.poll() is None
                time.sleep(0.01)
        finally:
            child.kill()
    assert child.returncode == -signal.SIGKILL
    complete = acknowledged.read_bytes().rpartition(b"\n")[0].splitlines()
    return {int(session): int(seq) for session, seq in map(bytes.split, complete)}


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_what_was_committed_outlives_kill_9(path: Path, tmp_path: Path, sync: str) -> None:
    """The file is sound, and has every row whose commit returned."""
    last = await asyncio.to_thread(killed_while_writing, path, tmp_path / "acknowledged", sync)
    assert len(last) == 3
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    journal = await Journal.open(path)
    for session_id, seq in last.items():
        rows = await all_events(journal, session_id)
        assert verify((row.seq, row.body, row.hash) for row in rows).valid
        assert len(rows) >= seq
        assert len(await journal.reads.executions(session_id, limit=100_000)) == len(rows) // 7
    await journal.close()
