"""What changes from run to run is told from what does not: each rule, and what no rule may hide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.replay.normalise import normalise, what_differs

THEN = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
NOW = datetime(2026, 11, 21, 16, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("then", "now", "rules"),
    [
        ("<object at 0x7f1c2a4d5e90>", "<object at 0x55d0c1b2>", {"memory addresses"}),
        ("<function f at 0x7F1C2A4D5E90>", "<function f at 0x7f0000000000>", {"memory addresses"}),
        ("2026-03-01 09:30:01.123456", "2026-11-21 16:05:09.000001", {"timestamps"}),
        ("2026-03-01T09:30:01Z", "2026-11-21T16:05:09+00:00", {"timestamps"}),
        ("2026-03-01 10:30:01,123 INFO go", "2026-11-21 17:05:09,999 INFO go", {"timestamps"}),
        ("Sun Mar  1 09:30:01 2026", "Sat Nov 21 16:05:09 2026", {"timestamps"}),
        ("Sun, 01 Mar 2026 09:30:01 GMT", "Sat, 21 Nov 2026 16:05:09 GMT", {"timestamps"}),
        (f"{THEN.timestamp()}", f"{NOW.timestamp() + 0.25}", {"timestamps"}),
        (f"{int(THEN.timestamp())}", f"{int(NOW.timestamp())}", {"timestamps"}),
        (f"{int(THEN.timestamp())}123", f"{int(NOW.timestamp())}456", {"timestamps"}),
        ("09:31:00", "16:05:01", {"timestamps"}),
        (
            "CPU times: user 1.2 ms, sys: 0 ns, total: 1.2 ms\nWall time: 1.3 ms",
            "CPU times: user 2 ms, sys: 3 ms, total: 5 ms\nWall time: 2 s",
            {"execution times"},
        ),
        (
            "12.3 ns ± 0.1 ns per loop (mean ± std. dev. of 7 runs, 100,000,000 loops each)",
            "1.3 µs ± 45 ns per loop (mean ± std. dev. of 7 runs, 1,000,000 loops each)",
            {"execution times"},
        ),
        ("took 1.234 s", "took 0.2 s", {"execution times"}),
        ("Elapsed time: 3 minutes 2 s", "Elapsed time: 59 s", {"execution times"}),
        (
            "100%|##| 10/10 [00:01<00:00, 9.1it/s]",
            "100%|##| 10/10 [00:12<00:00, 1.10it/s]",
            {"execution times"},
        ),
        (
            "/tmp/ipykernel_71/1234.py:1: FutureWarning",
            "/tmp/ipykernel_9/88.py:1: FutureWarning",
            {"temporary names"},
        ),
        (
            'id="df-0b2c3d4e-1111-2222-3333-444455556666"',
            'id="df-9b2c3d4e-1111-2222-3333-444455556666"',
            {"random identifiers"},
        ),
        ('<table id="T_0a1b2">', '<table id="T_9f8e7">', {"random identifiers"}),
        ('<path id="m0a1b2c3d4e"/>', '<path id="mffffffffff"/>', {"random identifiers"}),
        ("Cell In[3], line 1", "Cell In[12], line 1", {"execution counts"}),
        (
            "<A at 0x7f1c2a4d5e90> 2026-03-01 09:30:01",
            "<A at 0x7f1c2a4d5e91> 2026-11-21 16:05:09",
            {"memory addresses", "timestamps"},
        ),
    ],
)
def test_what_changes_from_run_to_run_is_left_out_of_account(then: str, now: str, rules: set[str]) -> None:
    assert set(what_differs(then, now, THEN, NOW) or ()) == rules


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("mean 1.234", "mean 1.235"),
        ("1 000 000", "1 000 001"),
        ("0x1f", "0x2f"),
        ("0x7f1c2a4d5e90 a", "0x7f1c2a4d5e90 b"),
        ("2025-01-02 03:04:05", "2025-01-03 03:04:05"),
        ("2025-01-02", "2025-01-03"),
        ("2026-03-01 09:30:01 up", "2026-11-21 16:05:09 down"),
        ("1234567890", "1234567891"),
        ("08:00:00 first bus", "08:20:00 first bus"),
        ("5 s", "6 s"),
        ("3 hours", "4 hours"),
        ("12 samples", "13 samples"),
        ("deadbeef", "deadbeed"),
        ("distance 10 km", "distance 11 km"),
        ("weight 1.5 g", "weight 1.6 g"),
        ("v1.2.3", "v1.2.4"),
        ("a\n", "a"),
        ("", "x"),
    ],
)
def test_what_may_be_a_result_is_a_difference(then: str, now: str) -> None:
    assert what_differs(then, now, THEN, NOW) is None


def test_a_time_counts_as_the_runs_only_near_it() -> None:
    for hours, near in ((0, True), (14, True), (-12, True), (40, False), (-40, False)):
        text = (THEN + timedelta(hours=hours)).isoformat(" ")
        assert (normalise(text, THEN) == "<time>") is near
    assert normalise("2001-02-03 04:05:06") == "<time>", "without a time of the run, every one may be it"
    assert normalise("2001-99-99 04:05:06") == "2001-99-99 04:05:06"


@given(st.text())
def test_a_text_is_the_same_as_itself(text: str) -> None:
    assert what_differs(text, text, THEN, NOW) == ()


@given(st.text(), st.text())
def test_order_does_not_matter(then: str, now: str) -> None:
    assert (what_differs(then, now, THEN, THEN) is None) == (what_differs(now, then, THEN, THEN) is None)


@pytest.mark.parametrize(
    "piece", ["1", "0", "0x", "1,234", "a-", "12:", "00:00:00", " ms", "Mon ", "± ", "1e"]
)
def test_a_long_text_ends(piece: str) -> None:
    """Each rule's work grows with the text and no faster: a quadratic one would end at the deadline."""
    text = piece * 100_000
    assert what_differs(text, text + "x", THEN, NOW) is None
