"""The long parts of rows' bodies, which are stored apart: which they are, and that rows stay short."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate.record.store.sqlite import blobs
from cellgate.record.store.sqlite.blobs import LEAST, long_runs
from cellgate.record.store.sqlite.journal import Journal
from tests.pure.record.conftest import to_tables
from tests.pure.record.recorded import Recorded

TABLES = [
    "CREATE TABLE blobs (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, body BLOB NOT NULL) STRICT",
    "CREATE TABLE blob_uses (blob_id INTEGER, session_id INTEGER, PRIMARY KEY (blob_id, session_id)) STRICT",
]
lengths = st.one_of(st.integers(0, 40), st.integers(LEAST - 3, LEAST + 3), st.integers(0, 3 * LEAST))


@given(st.lists(st.tuples(lengths, st.sampled_from([b'"', b"\\", b'\\"'])), max_size=8), lengths)
def test_all_long_runs_are_found_and_no_others(parts: list[tuple[int, bytes]], last: int) -> None:
    body = b"".join(b"x" * length + mark for length, mark in parts) + b"x" * last
    runs = [m.span() for m in re.finditer(rb'[^"\\]+', body) if m.end() - m.start() >= LEAST]
    assert list(long_runs(body)) == runs


def test_short_runs_are_not_looked_at_one_by_one() -> None:
    assert looks(b"\\n" * 1_000_000) <= 2_000_000 // LEAST + 1


def looks(body: bytes) -> int:
    """How often the end of a run is looked for."""
    with pytest.MonkeyPatch.context() as patch:
        looked, find = list[int](), blobs._end_of_run
        patch.setattr(blobs, "_end_of_run", lambda body, place: looked.append(place) or find(body, place))
        assert list(long_runs(body)) == []
        return len(looked)


@pytest.mark.parametrize("mark", [b'"', b"\\"])
def test_no_search_goes_through_all_of_a_long_body(mark: bytes) -> None:
    """No other thread runs meanwhile; and where runs are short, each would look at all the rest."""
    searched = list[int]()

    class Body(bytes):
        def find(self, sub: Any, start: Any = 0, end: Any = None) -> int:
            searched.append(end - start)
            return super().find(sub, start, end)

    body = Body((b"x" * LEAST * 4 + mark) * 100)
    assert [end - start for start, end in long_runs(body)] == [4 * LEAST] * 100
    assert max(searched) <= 16 * LEAST
    assert sum(searched) <= 16 * len(body)


pieces = st.tuples(lengths, st.sampled_from([b"x", b"\\n"]), st.sampled_from([b'"', b"\\"]))


@given(st.lists(pieces, max_size=12))
def test_what_a_row_keeps_is_short_and_its_body_comes_back(drawn: list[tuple[int, bytes, bytes]]) -> None:
    body = b"".join(content * length + mark for length, content, mark in drawn)
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in TABLES:
            db.execute(statement)
        kept, uses = blobs.take_out(db, 1, body)
        assert len(kept) + len(uses or b"") < LEAST
        assert (uses is None) == (len(body) < LEAST)
        assert blobs.put_back(db, kept, uses) == body


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        pytest.param(b"\\n" * 1_000_000, 1, id="no run at all"),
        pytest.param((b"x" * LEAST + b'"' * (LEAST - 1)) * 500, 1, id="as long between runs"),
        pytest.param((b"x" * LEAST + b'"') * 500, 1, id="more runs than fit into a row"),
        pytest.param(b'"' + b"x" * LEAST + b"\\n" * LEAST + b"y" * LEAST + b'"', 3, id="long between runs"),
    ],
)
def test_no_body_makes_a_row_long(body: bytes, stored: int) -> None:
    """Each comparison of a key on the way to another row reads a row as a whole."""
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in TABLES:
            db.execute(statement)
        kept, uses = blobs.take_out(db, 1, body)
        assert len(kept) + len(uses or b"") < LEAST
        assert db.execute("SELECT count(*) FROM blobs").fetchone() == (stored,)
        assert blobs.put_back(db, kept, uses) == body


async def test_the_size_of_events_is_told_without_reading_them(journal: Journal) -> None:
    """Parts that are stored elsewhere count, each time that they are used."""
    session = Recorded(journal, "s")
    run = b"x" * (LEAST * 25)
    for number in range(4):
        session.cell("1", ("display_data", {"data": {"text/plain": run.decode()}, "metadata": {"n": number}}))
    await to_tables(journal)
    for size, after, until, larger in (
        (len(run) * 4, 0, None, True),
        (len(run) * 5, 0, None, False),
        (len(run) * 2, 0, 9, True),
        (len(run) * 3, 0, 9, False),
        (3000, 3, 3, False),
    ):
        told = await journal.reads.are_larger(session.row.id, size, after=after, until=until)
        assert told is larger, (size, after, until)
