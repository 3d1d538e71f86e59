"""Rows as sessions make them, and a journal in a folder of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from cellgate.record.store.sqlite.journal import EventRow, Journal

MOMENT = "2026-11-21T10:00:00.000000Z"


async def eventually(check: Callable[[], bool | Awaitable[bool]]) -> None:
    """Return when it is so; the test's own timeout bounds the waiting."""
    while True:
        so = check()
        if so if isinstance(so, bool) else await so:
            return
        await asyncio.sleep(0.01)


@asynccontextmanager
async def journal_at(path: Path, **options: Any) -> AsyncGenerator[Journal, None]:
    journal = await Journal.open(path, **options)
    try:
        yield journal
    finally:
        await journal.close()


async def all_events(journal: Journal, session_id: int) -> list[EventRow]:
    return [row async for batch in journal.reads.event_batches(session_id) for row in batch]


async def to_tables(journal: Journal) -> None:
    """Commit, and have it written into the tables."""
    await journal.commit()
    await journal.applied()


async def limit_pages(journal: Journal, pages: int) -> int:
    """Let the file have no more than `pages` pages, as on a disk that is full; returns what it has."""
    run = journal._files.writer.run
    await run(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    count: int = (await run(lambda db: db.execute("PRAGMA page_count").fetchone()))[0]
    return count


def another_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """One to the same tables, to hold their lock; for fixtures that open the journal first."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "record.sqlite"


@pytest.fixture(params=["normal", "full"])
async def journal(path: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Journal, None]:
    """Whether commits go by the redo log or not, all is the same to who uses it."""
    async with journal_at(path, sync=request.param) as opened:
        yield opened
