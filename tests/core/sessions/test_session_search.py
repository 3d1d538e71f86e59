"""Sessions searched by their cells: each request reads a limited part, lets others have their turn, and ends
when its client has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest

from cellgate.errors import NotFound
from cellgate.identity.principal import EVERYWHERE, Reach
from cellgate.record.rows import EventRow, ExecutionRow
from cellgate.sessions import cell_search
from cellgate.sessions.reader import Archive
from cellgate.testing.record_store import session_row
from cellgate.wire.queries import ExecutionsQuery, SessionsQuery
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.threads import Lane
from tests.core.sessions.test_heavy_work import Sessions
from tests.pure.sessions.test_cell_search import Recorded

CELLS = 300
Cells = list[tuple[str, str]]


class Searched(Sessions):
    """Sessions with cells: of each, code and output. `on_read` is called at each batch of events."""

    def __init__(self, cells: list[Cells]) -> None:
        super().__init__([session_row(number) for number, _ in enumerate(cells, 1)])
        self.cells = {number: Recorded(each, 3) for number, each in enumerate(cells, 1)}
        self.read: list[int] = []
        self.on_read: Callable[[], None] = lambda: None

    async def session(self, principal: str, key: str) -> Any:
        return next((row for row in self._rows if row.key == key), None)

    async def executions(self, session_id: int, *, limit: int, after: int) -> list[ExecutionRow]:
        return await self.cells[session_id].executions(session_id, limit=limit, after=after)

    async def event_batches(
        self, session_id: int, *, after: int, until: int | None
    ) -> AsyncGenerator[list[EventRow], None]:
        async for batch in self.cells[session_id].event_batches(session_id, after=after, until=until):
            self.read.append(session_id)
            self.on_read()
            await asyncio.sleep(0)
            yield batch


def archive_of(searched: Searched, lane: Lane) -> Archive:
    return Archive(cast(Any, searched), cast(Any, searched), cast(Any, None), lane)


def cells(*words: int) -> Cells:
    """Return the cells of a session, of which those with these numbers have the word."""
    return [("code", "word" if number in words else "other") for number in range(1, CELLS + 1)]


@pytest.fixture(autouse=True)
def little_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_search, "MOST_READ", 4000)


async def searched_through(
    archive: Archive, principal: str | None = "ada", **wanted: Any
) -> tuple[list[str], list[str]]:
    """Return the keys of all sessions that are found, and each page's `next` but the last one's."""
    found, ends, after = list[str](), list[str](), None
    while True:
        query = SessionsQuery(search="WORD", cells=True, after=after, **wanted)
        models, after = await archive.models(principal, EVERYWHERE, query)
        found += [model.session for model in models]
        if after is None:
            return found, ends
        assert after not in ends
        ends.append(after)


async def test_a_page_ends_inside_of_a_long_session_and_the_next_goes_on_there(lane: Lane) -> None:
    sessions = Searched([cells(), cells(CELLS), [("word", "")], cells(2), cells()])
    archive = archive_of(sessions, lane)
    found, ends = await searched_through(archive)
    assert found == ["s2", "s3", "s4"]
    inside = [end for end in ends if ":" in end]
    assert {end.partition(":")[0] for end in inside} == {"s1", "s2", "s5"}
    batches = sum(len(each.events) / 3 for each in sessions.cells.values())
    assert len(sessions.read) < 1.5 * batches, "what was looked at is not read again"
    most = max(len(event.body) for event in sessions.cells[1].events) * 3
    sessions.read.clear()
    query = SessionsQuery(search="word", cells=True)
    assert await archive.models("ada", EVERYWHERE, query) == ([], ends[0])
    assert len(sessions.read) <= 4000 / (most / 3) + 4


async def test_everybodys_pages_end_inside_of_sessions_too(lane: Lane) -> None:
    found, ends = await searched_through(archive_of(Searched([cells(), cells(CELLS)]), lane), None)
    assert found == ["s2"]
    assert all(end.startswith("ada/s") for end in ends)
    assert any(":" in end for end in ends)


@pytest.mark.parametrize(
    ("after", "error"),
    [
        ("s1:", InvalidInput),
        ("s1:0", InvalidInput),
        ("s1:-1", InvalidInput),
        ("s1:x", InvalidInput),
        ("s1:1:1", InvalidInput),
        ("s1:\u0661", InvalidInput),
        ("s1:" + "9" * 17, InvalidInput),
        (":1", InvalidInput),
        ("s 1:1", InvalidInput),
        ("other:1", NotFound),
        ("s1:1", None),
        ("s1:" + "9" * 16, None),
    ],
)
async def test_what_no_page_ended_with_is_refused(
    lane: Lane, after: str, error: type[CellgateError] | None
) -> None:
    archive = archive_of(Searched([[("word", "word")]]), lane)
    query = SessionsQuery(search="word", cells=True, after=after)
    if error is None:
        assert await archive.models("ada", EVERYWHERE, query) == ([], None)
        return
    with pytest.raises(error):
        await archive.models("ada", EVERYWHERE, query)


async def test_a_place_inside_of_a_session_is_for_a_search_of_cells_within_reach(lane: Lane) -> None:
    archive = archive_of(Searched([cells()]), lane)
    for query in (SessionsQuery(after="s1:1"), SessionsQuery(search="word", after="s1:1")):
        with pytest.raises(InvalidInput, match="after"):
            await archive.models("ada", EVERYWHERE, query)
    with pytest.raises(NotFound):
        await archive.models("ada", Reach("b-"), SessionsQuery(search="word", cells=True, after="s1:1"))


@pytest.mark.parametrize("limit", ["SESSIONS_A_TURN", "READ_A_TURN"])
async def test_others_have_their_turn_while_sessions_are_searched(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(cell_search, "MOST_READ", 10**9)
    monkeypatch.setattr(cell_search, limit, 1)
    sessions = Searched([cells()] * 6)
    archive = archive_of(sessions, lane)
    others: list[asyncio.Task[int]] = []

    async def heavy(principal: str) -> int:
        async with archive._heavy.turn(principal):
            return len(set(sessions.read))

    def on_read() -> None:
        if not others:
            others.extend(asyncio.ensure_future(heavy(name)) for name in ("bob", "cy"))

    sessions.on_read = on_read
    async with archive._heavy.turn("eve"):
        await archive.models("ada", EVERYWHERE, SessionsQuery(search="word", cells=True))
    assert await asyncio.gather(*others) == [1, 1], "both before the second session"
    assert len(set(sessions.read)) == 6


async def test_a_search_ends_when_its_client_has_gone(lane: Lane) -> None:
    sessions = Searched([cells()] * 6)
    archive = archive_of(sessions, lane)
    query = SessionsQuery(search="word", cells=True)
    await archive.models("ada", EVERYWHERE, query, is_gone=lambda: len(sessions.read) >= 5)
    assert 5 <= len(sessions.read) <= 7
    sessions.read.clear()
    wanted = ExecutionsQuery(search="word")
    await archive.executions("ada", "s1", wanted, is_gone=lambda: len(sessions.read) >= 5)
    assert 5 <= len(sessions.read) <= 7
    assert not archive._heavy._running


async def test_a_search_that_comes_to_its_turn_too_late_reads_nothing(lane: Lane) -> None:
    sessions = Searched([cells()])
    archive = archive_of(sessions, lane)
    query = SessionsQuery(search="word", cells=True)
    gone: list[int] = []
    async with archive._heavy.turn("bob"), archive._heavy.turn("eve"):
        search = asyncio.ensure_future(archive.models("ada", EVERYWHERE, query, is_gone=lambda: bool(gone)))
        for _ in range(5):
            await asyncio.sleep(0)
        gone.append(1)
    await search
    assert sessions.read == []
