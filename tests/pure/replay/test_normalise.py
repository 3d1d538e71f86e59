"""What is known to vary is told from what may be a result: each rule, and what no rule may hide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate.replay.moments import Window, moment, window
from cellgate.replay.normalise import Context, Explanation, explain, shown
from cellgate.replay.sets import order_sets

BEGIN = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
AGAIN = datetime(2026, 11, 21, 16, 5, tzinfo=UTC)
RUN = Window(BEGIN, BEGIN + timedelta(minutes=5))
REPLAY = Window(AGAIN, AGAIN + timedelta(minutes=2))
CONTEXT = Context(RUN, REPLAY)
TIMEIT = "{} ± {} per loop (mean ± std. dev. of 7 runs, {} loops each)"


@pytest.mark.parametrize(
    ("then", "now", "rules"),
    [
        ("<object at 0x7f1c2a4d5e90>", "<object at 0x55d0c1b2>", {"memory addresses"}),
        ("<function f at 0x7F1C2A4D5E90>", "<function f at 0x7f0000000000>", {"memory addresses"}),
        (
            "[<function <lambda> at 0x7f1c2a4d5e90>]",
            "[<function <lambda> at 0x7f1c2a4d5e91>]",
            {"memory addresses"},
        ),
        ("&lt;A at 0x7f1c2a4d5e90&gt;", "&lt;A at 0x7f1c2a4d5e91&gt;", {"memory addresses"}),
        (
            '<code object f at 0x7f1c2a4d5e90, file "a", line 1>',
            '<code object f at 0x7f1c2a4d5e91, file "a", line 1>',
            {"memory addresses"},
        ),
        ("2026-03-01 09:30:01.123456", "2026-11-21 16:05:09.000001", {"timestamps"}),
        ("2026-03-01T09:34:59Z", "2026-11-21T16:05:09+00:00", {"timestamps"}),
        ("2026-03-01T11:34:59+02:00", "2026-11-21T08:05:09-08:00", {"timestamps"}),
        ("2026-03-01 09:30:01,123 INFO go", "2026-11-21 16:05:09,999 INFO go", {"timestamps"}),
        ("2026/03/01 09:31", "2026/11/21 16:06", {"timestamps"}),
        ("model_20260301_093100.pt", "model_20261121_160500.pt", {"timestamps"}),
        ("Sun Mar  1 09:30:01 2026", "Sat Nov 21 16:05:09 2026", {"timestamps"}),
        ("Sun, 01 Mar 2026 09:30:01 GMT", "Sat, 21 Nov 2026 16:05:09 GMT", {"timestamps"}),
        (f"{BEGIN.timestamp()}", f"{AGAIN.timestamp() + 0.25}", {"timestamps"}),
        (f"{int(BEGIN.timestamp())}", f"{int(AGAIN.timestamp())}", {"timestamps"}),
        (f"{int(BEGIN.timestamp())}123", f"{int(AGAIN.timestamp())}456", {"timestamps"}),
        (
            "CPU times: user 1.2 ms, sys: 0 ns, total: 1.2 ms\nWall time: 1.3 ms",
            "CPU times: user 2 ms, sys: 1e+03 ns, total: 5 ms\nWall time: 1min 2s\nCompiler : 120 ms",
            {"execution times"},
        ),
        (
            TIMEIT.format("12.3 ns", "0.1 ns", "100,000,000"),
            TIMEIT.format("1.3 µs", "45 ns", "1,000,000"),
            {"execution times"},
        ),
        (
            "The slowest run took 4.36 times longer than the fastest. This could mean that an intermediate"
            " result is being cached.\n" + TIMEIT.format("12.3 ns", "0.1 ns", "100"),
            TIMEIT.format("1.3 µs", "45 ns", "1,000"),
            {"execution times"},
        ),
        (
            "100%|##| 10/10 [00:01<00:00,  9.1it/s]\n",
            "100%|##| 10/10 [00:12<00:00,  1.10s/it]\n",
            {"progress bars"},
        ),
        (
            (
                "\r  0%|  | 0/9 [00:00<?, ?it/s]\r 50%|# | 4/9 [00:01<00:00, 9.1it/s]"
                "\r100%|##| 9/9 [00:01<00:00, 9.1it/s]\nend"
            ),
            "\r  0%|  | 0/9 [00:00<?, ?it/s]\r100%|##| 9/9 [00:00<00:00, 99.1kit/s]   \nend",
            {"progress bars"},
        ),
        ("9it [00:01,  9.1it/s]", "9it [00:02,  4.1it/s]", {"progress bars"}),
        (
            "100%|##| 9/9 [00:01<00:00, 9.1it/s, loss=1]",
            "100%|##| 9/9 [00:02<00:00, 8it/s, loss=1]",
            {"progress bars"},
        ),
        (
            "/tmp/ipykernel_71/1234.py:1: FutureWarning",
            "/tmp/ipykernel_9/88.py:1: FutureWarning",
            {"temporary names"},
        ),
        ("/tmp/tmpab12_x9z/a.csv", "/tmp/tmp00000000/a.csv", {"temporary names"}),
        (
            "'/branches/0b2c3d4e-1111-2222-3333-444455556666/a.csv'",
            "'/workspace/a.csv'",
            {"folders of branches"},
        ),
        (
            "/branches/0b2c3d4e-1111-2222-3333-444455556666",
            "/branches/9b2c3d4e-1111-2222-3333-444455556666",
            {"folders of branches"},
        ),
        (
            "/sessions/0b2c3d4e-1111-2222-3333-444455556666/a.csv",
            "/sessions/9b2c3d4e-1111-2222-3333-444455556666/a.csv",
            {"folders of branches"},
        ),
        (
            "/sessions/0b2c3d4e-1111-2222-3333-444455556666.branches/1b2c3d4e-1111-2222-3333-444455556666/a",
            "/workspace/a",
            {"folders of branches"},
        ),
        ("/tmp/0b2c3d4e-1111/home/x", "/tmp/home/x", {"folders of branches"}),
        ("/tmp/0b2c3d4e-1111/tmpabcd1234", "/tmp/tmpabcd1235", {"temporary names"}),
        ("Cell In[3], line 1", "Cell In[12], line 1", {"execution counts"}),
        ("{'b', 'a'}", "{'a', 'b'}", {"order of sets"}),
        (
            "<A at 0x7f1c2a4d5e90> 2026-03-01 09:30:01",
            "<A at 0x7f1c2a4d5e91> 2026-11-21 16:05:09",
            {"memory addresses", "timestamps"},
        ),
    ],
)
def test_what_is_known_to_vary_is_left_out_of_account(then: str, now: str, rules: set[str]) -> None:
    why = explain(then, now, CONTEXT)
    assert why is not None
    assert (set(why.rules), why.doubts) == (rules, ())


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("/branches/0b2c3d4e-1111-2222-3333-444455556666/a.csv", "/workspace/b.csv"),
        ("/mnt/branches/0b2c3d4e-1111-2222-3333-444455556666", "/mnt/workspace"),
        ("/branches/mine", "/workspace"),
    ],
)
def test_only_the_folder_of_a_branch_is_the_workspace(then: str, now: str) -> None:
    assert explain(then, now, CONTEXT) is None


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ('<table id="T_0a1b2">', '<table id="T_9f8e7">'),
        ('<path id="m0a1b2c3d4e"/>', '<path id="mffffffffff"/>'),
    ],
)
def test_the_ids_of_generated_markup_vary_in_markup_only(then: str, now: str) -> None:
    assert explain(then, now, Context(RUN, REPLAY, markup=True)) == Explanation(("identifiers of markup",))
    assert explain(then, now, CONTEXT) is None


@pytest.mark.parametrize(
    ("then", "now", "doubt"),
    [
        ("took 1.234 s", "took 0.2 s", "durations"),
        ("Elapsed time: 3 minutes 2 s", "Elapsed time: 59 s", "durations"),
        ("Wall time: 1.3 ms", "Wall time: 2 s", "durations"),
        ("12.5 ms", "950.1 ms", "durations"),
        ("half-life 3.20 s", "half-life 9.99 s", "durations"),
        ("09:31:00", "16:05:01", "times of day"),
        ("2026-03-01", "2026-11-21", "dates"),
        ("0b2c3d4e-1111-2222-3333-444455556666", "9b2c3d4e-1111-2222-3333-444455556666", "identifiers"),
        ("d41d8cd98f00b204e9800998ecf8427e", "9e107d9d372bb6826bd81d3542a419d6", "identifiers"),
        ("0x7f1c2a4d5e90", "0x55d0c1b2a390", "memory addresses"),
    ],
)
def test_what_may_vary_or_be_a_result_is_doubtful(then: str, now: str, doubt: str) -> None:
    why = explain(then, now, CONTEXT)
    assert why is not None
    assert why.doubts == (doubt,)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("mean 1.234", "mean 1.235"),
        ("1 000 000", "1 000 001"),
        ("0x1f", "0x2f"),
        ("0xFF0000", "0x00FF00"),
        ("<span color=0xFF0000>", "<span color=0x00FF00>"),
        ("0x7f1c2a4d5e90 a", "0x7f1c2a4d5e90 b"),
        ("stopped at 0xDEADBEEF", "stopped at 0xDEADBEEE"),
        ("2025-01-02 03:04:05", "2025-01-03 03:04:05"),
        ("2026-03-01 09:30:01", "2026-11-21 03:04:05"),
        ("2026-03-01 03:04:05", "2026-11-21 16:05:09"),
        ("2026-03-01T09:30:01+02:00", "2026-11-21 16:05:09"),
        ("2025-01-02", "2025-01-03"),
        ("2026-03-01 09:30:01 up", "2026-11-21 16:05:09 down"),
        ("1234567890", "1234567891"),
        ("08:00:00 first bus", "08:20:00 first bus"),
        ("5 s", "6 s"),
        ("3 hours", "4 hours"),
        ("12 samples", "13 samples"),
        ("deadbeef", "deadbeed"),
        ("da39a3ee5e6b4b0d3255bfef95601890afd80709", "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"),
        ("distance 10 km", "distance 11 km"),
        ("weight 1.5 g", "weight 1.6 g"),
        ("v1.2.3", "v1.2.4"),
        ("In [3]", "In [4]"),
        ("In[3]: 1", "In[4]: 1"),
        ("100%|##| 9/9 [00:01<00:00, 9it/s, loss=1]", "100%|##| 9/9 [00:01<00:00, 9it/s, loss=2]"),
        ("100%|##| 9/9 [00:01<00:00, 9it/s]", "100%|##| 8/8 [00:01<00:00, 9it/s]"),
        ("\rnote\r100%|#| 9/9 [00:01<00:00, 9it/s]", "\r100%|#| 9/9 [00:01<00:00, 9it/s]"),
        ("{'a', 'b'}", "{'a', 'c'}"),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
        ("dict_keys(['a', 'b'])", "dict_keys(['b', 'a'])"),
        ("['a', 'b']", "['b', 'a']"),
        ("<address>", "0x7f1c2a4d5e90"),
        ("<\ue000address\ue000>", "<A at 0x7f1c2a4d5e90>"),
        ("a\n", "a"),
        ("", "x"),
    ],
)
def test_what_may_be_a_result_is_a_difference(then: str, now: str) -> None:
    assert explain(then, now, CONTEXT) is None


def test_a_time_counts_as_the_runs_only_within_it() -> None:
    def same(told: datetime, run: Window | None) -> bool:
        return explain(told.isoformat(" "), AGAIN.isoformat(" "), Context(run, REPLAY)) == Explanation(
            ("timestamps",)
        )

    for seconds, within in (
        (0, True),
        (300, True),
        (-5, False),
        (305, False),
        (86400, False),
        (-3600, False),
    ):
        assert same(BEGIN + timedelta(seconds=seconds), RUN) is within, seconds
    assert not same(BEGIN, None), "without a time of the run, none is known to be of it"
    why = explain(BEGIN.isoformat(" "), AGAIN.isoformat(" "), Context(None, REPLAY))
    assert why is not None
    assert why.doubts == ("timestamps",)
    assert explain("2001-99-99 04:05:06", "2001-99-98 04:05:06", Context()) is None


@pytest.mark.parametrize(
    "told",
    [
        "",
        "x",
        "2026-03-01",
        "2026-03-01T09:30:01",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        None,
        5,
        [1],
    ],
)
def test_a_moment_that_is_none_is_not_known(told: object) -> None:
    assert moment(told) is None
    assert window(moment(told), BEGIN) is None
    assert window(BEGIN, BEGIN - timedelta(seconds=1)) is None


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        ("{3, 1, 2}", "{1, 2, 3}"),
        ("x = {'b', 'a'} and {\"d\", \"c\"}", "x = {'a', 'b'} and {\"c\", \"d\"}"),
        ("frozenset({'b', 'a'})", "frozenset({'a', 'b'})"),
        ("{frozenset({2, 1}), (3, 'x'), None}", "{(3, 'x'), None, frozenset({1, 2})}"),
        ("{'k': {2, 1}}", "{'k': {1, 2}}"),
        ("{'b',\n 'a'}", "{'a', 'b'}"),
        ("{Decimal('2'), datetime.date(2020, 1, 2)}", "{Decimal('2'), datetime.date(2020, 1, 2)}"),
        ("{<Colour.RED: 1>, <Colour.BLUE: 2>}", "{<Colour.BLUE: 2>, <Colour.RED: 1>}"),
        ("{b'b', b'a', -1.5e3, 2j}", "{-1.5e3, 2j, b'a', b'b'}"),
        ("{Point(y=1, x=2), A}", "{A, Point(y=1, x=2)}"),
        ("{'it\\'s', '}'}", "{'it\\'s', '}'}"),
        ("{}", "{}"),
        ("{a: b}", "{a: b}"),
        ("{x; y}", "{x; y}"),
        ("{[2], [1]}", "{[2], [1]}"),
        ("{'b', 'a'", "{'b', 'a'"),
        ("{1, 2, ...}", "{1, 2, ...}"),
    ],
)
def test_the_members_of_sets_are_put_in_order(text: str, ordered: str) -> None:
    assert order_sets(text) == ordered


def test_a_diff_hides_what_is_known_to_vary_and_nothing_else() -> None:
    texts = shown("<A at 0x7f1c2a4d5e90> 1.5 s", "<A at 0x7f1c2a4d5e91> 2.5 s", CONTEXT)
    assert texts == ("<A at <address>> 1.5 s", "<A at <address>> 2.5 s")


TEXTS = st.text(st.sampled_from("{}()<>'\",: 0x7fabcdef1.5e-3\r\n|%[]/atms\ue000")) | st.text()


@given(TEXTS)
def test_a_text_is_the_same_as_itself(text: str) -> None:
    assert explain(text, text, CONTEXT) == Explanation()


@given(TEXTS, TEXTS)
def test_order_does_not_matter(then: str, now: str) -> None:
    context = Context(RUN, RUN, rtol=1e-3)
    assert (explain(then, now, context) is None) == (explain(now, then, context) is None)


@given(TEXTS)
def test_putting_sets_in_order_is_done_after_once(text: str) -> None:
    ordered = order_sets(text)
    assert order_sets(ordered) == ordered


@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "0",
        "0x",
        "1,234",
        "a-",
        "12:",
        "00:00:00",
        " ms",
        "Mon ",
        "± ",
        "1e",
        "<",
        "{",
        "{'",
        "{1,",
        "{(",
        "\r [0:01, 1/",
        " [",
        "1.",
        "{a",
        "{<",
    ],
)
@pytest.mark.timeout(60)
def test_a_long_text_ends(piece: str) -> None:
    """Each rule's work grows with the text and no faster: a quadratic one would end at the deadline."""
    text = piece * 10_000
    assert explain(text, text + "x", Context(RUN, REPLAY, rtol=1e-6, markup=True)) is None
