"""Records of earlier versions are brought up to date with all that is in them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from cellgate.record import migrations
from cellgate.record.journal import Journal
from cellgate.record.verify_store import check_record
from tests.pure.record.conftest import Chain
from tests.pure.record.recorded import Recorded, text

OLD_SESSION = """INSERT INTO sessions
    VALUES (?, 'ada', ?, 'python3', 'none', 'ended', NULL, 'then', 'then', 0, '{}', '{}', '{}')"""


def old_record(path: Path, heads: dict[int, Chain]) -> None:
    """A record of the first schema; session 2 has no rows."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db, db:
        for statement in migrations._SCRIPTS[0].split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
        for session_id in (1, 2, 3):
            db.execute(OLD_SESSION, (session_id, f"s{session_id}"))
        for session_id, chain in heads.items():
            for _ in range(3):
                row = chain.next(None)
                values = (session_id, row.seq, row.type, row.execution, row.body, row.hash)
                db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", values)


async def test_a_record_of_the_first_version_gets_its_heads_and_a_trail(path: Path) -> None:
    heads = {1: Chain(1), 3: Chain(3)}
    old_record(path, heads)
    journal = await Journal.open(path)
    try:
        for session_id in (1, 2, 3):
            row = await journal.session("ada", f"s{session_id}")
            assert row is not None
            chain = heads.get(session_id, Chain(session_id))
            assert (row.head_seq, row.head) == (chain.seq, chain.head)
            assert row.folder == "", "its files are where they were"
        assert [row.seq for row in await journal.events(1)] == [1, 2, 3]
        Recorded(journal, "new").cell("1", text("1"))
        await journal.commit()
    finally:
        await journal.close()
    *sessions, new, trail = check_record(path)
    assert (new.valid, trail.valid, trail.checked) == (True, True, "4 entries")
    # The bodies of these rows tell no session: what they hold is not an event, and that is found.
    assert [found.valid for found in sessions] == [False, True, False]
