"""Large events are made in threads; nothing overtakes them, and nobody else waits."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import NotRecorded, StorageFull
from cellgate.record import events
from cellgate.record.chain import verify
from cellgate.record.events import LARGE_EVENT, EventLog
from cellgate.record.store.sqlite.journal import Journal
from cellgate.testing.record_store import execution_row, session_row
from cellgate_kernels.base.resources import KIB, MIB
from cellgate_kernels.base.threads import Lane
from tests.pure.record.conftest import all_events, journal_at

DEADLINE = 60.0
LARGE: Any = {"size": LARGE_EVENT + 1}
"""What makes an event a large one; how much it really is does not matter."""
TEXT = {"name": "stdout", "text": "x"}


class Making:
    """Stands for the making of large events: each waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go = threading.Semaphore(0), threading.Semaphore(0)
        self.threads = set[int]()
        self._make = events._make
        monkeypatch.setattr(events, "_make", self)

    def __call__(self, event: dict[str, Any], head: bytes) -> tuple[bytes, bytes]:
        self.threads.add(threading.get_ident())
        self.begun.release()
        assert self.may_go.acquire(timeout=DEADLINE)
        return self._make(event, head)

    async def wait(self) -> None:
        """Returns once the next one is being made."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=DEADLINE)


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Making:
    return Making(monkeypatch)


@pytest.fixture
def log(journal: Journal, lane: Lane) -> EventLog:
    """The log of a session with its first event."""
    row = session_row(journal.new_session_id())
    log = EventLog(journal, row.id, row.key, lane=lane)
    log.append("session", None, {"state": "idle"})
    journal.save_session(row)
    return log


async def seen(log: EventLog) -> list[int]:
    """What a follower is shown now."""
    return [row.seq for row in await log.read(0)]


async def test_nothing_overtakes_a_large_event(journal: Journal, log: EventLog) -> None:
    """Real ones, of megabytes, among small ones: the chain is as if all had been made at once."""
    for size in (10, 2 * MIB, 10, 3 * MIB, 10):
        log.append("stream", "e", {"name": "stdout", "text": "\n" * size}, size=size)
    assert log.last_seq == 6
    assert log.head_seq == 2, "they are made later"
    await log.commit()
    rows = await all_events(journal, log.session_id)
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5, 6]
    assert verify((row.seq, row.body, row.hash) for row in rows).valid
    assert [len(row.body) > MIB for row in rows] == [False, False, True, False, True, False]
    assert (log.head_seq, log.head) == (6, rows[-1].hash)


async def test_who_follows_or_waits_is_told_in_order(journal: Journal, log: EventLog, making: Making) -> None:
    saved = list[int]()
    log.append("stream", "e", TEXT, **LARGE)
    log.append("stream", "e", TEXT)
    log.then(lambda: saved.append(log.head_seq))
    log.append("finished", "e", {"execution_count": 1}, withhold=True)
    released = asyncio.ensure_future(log.release(4))
    await making.wait()
    assert threading.get_ident() not in making.threads
    assert (log.last_seq, await seen(log), saved) == (4, [1], [])
    assert not released.done()
    making.may_go.release()
    await released
    assert (await seen(log), saved) == ([1, 2, 3, 4], [3])
    log.then(lambda: saved.append(log.head_seq))
    assert saved == [3, 4], "at once, where nothing is before it"


async def test_a_follower_gets_what_is_still_made_when_the_log_is_closed(
    log: EventLog, making: Making
) -> None:
    log.append("stream", "e", TEXT, **LARGE)
    log.append("session", None, {"state": "ended"})
    log.close()
    making.may_go.release()
    async with aclosing(log.follow(0)) as batches:
        assert [row.seq async for rows in batches for row in rows] == [1, 2, 3]


async def test_other_sessions_do_not_wait(journal: Journal, log: EventLog, making: Making) -> None:
    log.append("stream", "e", TEXT, **LARGE)
    await making.wait()
    other = EventLog(journal, journal.new_session_id(), "other")
    other.append("session", None, {"state": "idle"})
    journal.save_session(session_row(other.session_id, "other"))
    await other.commit()
    assert await seen(other) == [1]
    making.may_go.release()
    await log.commit()


async def test_its_bytes_count_as_waiting(path: Path, lane: Lane, making: Making) -> None:
    """A kernel is held back, and beyond the bound refused, by what is not made yet as by what is."""
    async with journal_at(path, pending_bytes=64 * KIB) as journal:
        row = session_row(journal.new_session_id())
        log = EventLog(journal, row.id, row.key, lane=lane)
        log.append("session", None, {"state": "idle"})
        journal.save_session(row)
        log.append("stream", "e", TEXT, **LARGE)
        assert journal.full_for()
        with pytest.raises(StorageFull):
            log.append("stream", "e", TEXT, size=LARGE_EVENT + 1)
        log.append("stream", "e", TEXT)
        with pytest.raises(StorageFull):
            log.append("stream", "e", TEXT, size=16 * KIB)
        log.append("finished", "e", {"execution_count": 1})
        assert log.last_seq == 4, "a refused event has no number"
        making.may_go.release()
        await log.commit()
        await journal.applied()
        assert (journal.pending_bytes, journal.full_for()) == (0, False)
        await journal.room()
        assert await seen(log) == [1, 2, 3, 4]


async def test_one_that_cant_be_written_down_ends_the_recording(journal: Journal, log: EventLog) -> None:
    """As a small one does."""
    await log.commit()
    await journal.applied()
    log.append("stream", "e", {"name": "stdout", "text": "\ud800"}, **LARGE)
    log.append("stream", "e", TEXT)
    with pytest.raises(NotRecorded, match="can't be written down"):
        await log.commit()
    await journal.applied()
    assert journal.pending_bytes == 0
    assert await seen(log) == [1]


async def test_nobody_waits_for_one_that_no_thread_makes(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    lane = Lane("closed", 1)
    lane.close()
    row = session_row(journal.new_session_id())
    log = EventLog(journal, row.id, row.key, lane=lane)
    log.append("session", None, {"state": "idle"})
    journal.save_session(row)
    await log.commit()
    await journal.applied()
    saved = list[str]()
    log.append("stream", "e", TEXT, **LARGE)
    log.append("stream", "e", TEXT)
    log.then(lambda: saved.append("never"))
    with pytest.raises(NotRecorded):
        await log.commit()
    await journal.applied()
    assert journal.pending_bytes == 0
    assert saved == []
    assert await seen(log) == [1]
    assert "Task 'large event' failed" in caplog.text
    caplog.clear()


async def test_a_row_is_not_stored_before_the_events_that_it_tells_of(
    journal: Journal, log: EventLog, making: Making
) -> None:
    """Else a crash at this moment would leave an execution whose end is missing."""
    log.append("queued", "e", {"code": "1"})
    log.append("stream", "e", TEXT, **LARGE)
    last = log.append("finished", "e", {"execution_count": 1})
    done = execution_row(log.session_id, 1, id="e", first_seq=2, last_seq=last["seq"], status="ok")
    log.then(lambda: journal.save_execution(done))
    await making.wait()
    await journal.commit()
    await journal.applied()
    assert await journal.reads.executions(log.session_id, limit=10, after=0) == []
    making.may_go.release()
    await log.commit()
    await journal.applied()
    assert await journal.reads.executions(log.session_id, limit=10, after=0) == [done]
