"""Cells found by what they say: in capital letters or not, in pieces, page by page."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from cellgate.record.rows import EventRow, ExecutionRow
from cellgate.record.store.interface import Reads
from cellgate.sessions import cell_search
from cellgate.sessions.cell_search import CellMatcher, CellSearch
from cellgate_kernels.base.threads import Lane


def event(seq: int, execution: str, kind: str, **said: Any) -> EventRow:
    return EventRow(1, seq, kind, execution, json.dumps(said).encode(), b"")


class Recorded:
    """Reads of cells with four events each: queued, started with code, a stream and the end."""

    def __init__(self, cells: list[tuple[str, str]], batch: int) -> None:
        self.rows = []
        self.events: list[EventRow] = []
        self.batch = batch
        self.looked_at = 0
        for number, (code, text) in enumerate(cells, 1):
            first = 4 * number - 3
            name = f"e{number}"
            self.rows.append(ExecutionRow(1, name, number, "", first, first + 3, "ok", "", None, None))
            self.events += [
                event(first, name, "queued", code=code),
                event(first + 1, name, "started", code=code),
                event(first + 2, name, "stream", name="stdout", text=text),
                event(first + 3, name, "finished", status="ok"),
            ]

    async def executions(self, _: int, *, limit: int, after: int) -> list[ExecutionRow]:
        return self.rows[after : after + limit]

    async def event_batches(
        self, _: int, *, after: int, until: int | None
    ) -> AsyncGenerator[list[EventRow], None]:
        chosen = [each for each in self.events if after < each.seq <= (until or len(self.events))]
        for place in range(0, len(chosen), self.batch):
            self.looked_at += 1
            yield chosen[place : place + self.batch]


async def found(recorded: Recorded, text: str, limit: int) -> tuple[list[int], int]:
    """Return the numbers of all cells that are found, and how many pages they took."""
    lane = Lane("search", 1)
    numbers: list[int] = []
    after = pages = 0
    try:
        while True:
            search = CellSearch(cast(Reads, recorded), lane, text, lambda: False)
            rows, following = await search.page(1, limit=limit, after=after)
            numbers += [row.number for row in rows]
            pages += 1
            if following is None:
                return numbers, pages
            assert following > after
            after = following
    finally:
        lane.close()


@pytest.mark.parametrize("batch", [1, 3, 1000])
async def test_cells_are_found_by_code_and_output(batch: int) -> None:
    cells = [("Orders = 1", "x"), ("y", "many ORDERS"), ("z", "none"), ("a\nb", "straße")] * 80
    recorded = Recorded(cells, batch)
    by_both = [number for number in range(1, 321) if number % 4 in {1, 2}]
    assert await found(recorded, "orders", 1000) == (by_both, 1)
    assert await found(recorded, "STRASSE", 1000) == ([*range(4, 321, 4)], 1)
    assert await found(recorded, "a\nb", 7) == ([*range(4, 321, 4)], 12)
    assert await found(recorded, "finished", 1000) == ([], 1)


@pytest.mark.parametrize("batch", [1, 3, 1000])
async def test_a_page_reads_a_limited_part_of_the_record(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_search, "MOST_READ", 2000)
    cells = [("code", "word" if number % 50 == 0 else "other") for number in range(1, 301)]
    numbers, pages = await found(Recorded(cells, batch), "word", 1000)
    assert numbers == [*range(50, 301, 50)]
    assert pages > 3


async def test_a_text_that_is_printed_in_pieces_is_one() -> None:
    matcher = CellMatcher("Hello world")
    pieces = ["He", "llo", " wo", "rld", "!"]
    matcher.look([event(seq, "a", "stream", text=piece) for seq, piece in enumerate(pieces)])
    matcher.look(
        [event(seq, "b", "stream", text=piece) for seq, piece in enumerate(["Hello ", "-", "world"])]
    )
    assert matcher.found == {"a"}


async def test_errors_and_results_are_searched_and_pictures_are_not() -> None:
    matcher = CellMatcher("needle")
    matcher.look(
        [
            event(1, "a", "error", ename="ValueError", evalue="a needle", traceback=[]),
            event(2, "b", "execute_result", data={"text/plain": "Needle"}),
            event(3, "c", "display_data", data={"image/png": "needle", "text/plain": 7}),
            event(4, "d", "file_changed", path="needle"),
        ]
    )
    assert matcher.found == {"a", "b"}
