"""The long runs of rows' bodies, which are stored once: which they are, and that short ones cost nothing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.record import blobs
from gateway.record.blobs import LEAST, long_runs

lengths = st.one_of(st.integers(0, 40), st.integers(LEAST - 3, LEAST + 3), st.integers(0, 3 * LEAST))


@given(st.lists(st.tuples(lengths, st.sampled_from([b'"', b"\\", b'\\"'])), max_size=8), lengths)
def test_all_long_runs_are_found_and_no_others(parts: list[tuple[int, bytes]], last: int) -> None:
    body = b"".join(b"x" * length + mark for length, mark in parts) + b"x" * last
    runs = [m.span() for m in re.finditer(rb'[^"\\]+', body) if m.end() - m.start() >= LEAST]
    assert list(long_runs(body)) == runs


def test_short_runs_are_not_looked_at_one_by_one() -> None:
    looked = 0

    class Run:
        def match(self, body: bytes, place: int) -> re.Match[bytes] | None:
            nonlocal looked
            looked += 1
            return run.match(body, place)

    run, blobs._RUN = blobs._RUN, Run()  # type: ignore[assignment]
    try:
        body = b"\\n" * 1_000_000
        assert list(long_runs(body)) == []
    finally:
        blobs._RUN = run
    assert looked <= len(body) // LEAST + 1
