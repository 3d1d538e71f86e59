"""What old notebooks hold, against what a replay gives now: each cell is compared, and none breaks it.

`compare_runs` is called itself: the report would turn whatever fails in it into a verdict of its cell.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from cellgate.replay.cells import recorded_cells
from cellgate.replay.compare import CellRun, Verdict, compare_runs
from cellgate.replay.images import PixelBudget
from cellgate.replay.moments import Window
from cellgate.replay.normalise import Context, Explanation, explain, shown
from tests.fuzz.budget import Fuzz
from tests.fuzz.test_fuzz_notebooks import PICTURE

BEGIN = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
THEN = Window(BEGIN, BEGIN + timedelta(minutes=5))
NOW = Window(BEGIN + timedelta(days=90), BEGIN + timedelta(days=90, minutes=5))

PIECES = [
    *(
        "<ipython-input-1-9e16a8d2e0a4>",
        "<ipython-input-23-00>",
        " in <module>",
        "<ipython-input-",
        "----> 1 f()\n",
    ),
    *("Cell In[1], line 1", "Input In [12], in <cell line: 1>()", "File In [", "Cell ", "In [3]", "]:"),
    *("\x1b[0;31m", "\x1b[1;32m", "\x1b[0m", "\x1b[", "\x1b", "\x1b[2K", "\x1b]0;t\x07", "---------------\n"),
    *(
        "Traceback (most recent call last)",
        "ValueError: ",
        "~/a.py in f(x)\n",
        "/tmp/ipykernel_71/1234.py:1: ",
    ),
    *(
        "\r",
        "\b",
        "\r\n",
        "\n",
        "\b\b\b",
        " 50%|#5  | 5/10 [00:01<00:01,  4.9it/s]",
        "\r100%|##| 9/9 [00:01<?, ?it/s]",
    ),
    *("<A at 0x7f1c2a4d5e90>", " at 0x", "0x7f1c2a4d5e90", "<object object at ", "&lt;B at 0x55d0c1b2&gt;"),
    *(
        "2026-03-01 09:30:01.123456",
        "2026-03-01T09:31:00+9999",
        "9999-12-31T23:59:59.999999-23:59",
        "0000-00-00 00:00",
    ),
    *(
        "Sun Mar  1 09:30:01 2026",
        "Sun, 99 Mar 2026 99:30:01 GMT",
        "1772357401",
        "9999999999.999999999",
        "09:30:01",
    ),
    *(
        "2026-03-01",
        "1.2 ms",
        "took 1,234.5e-9 s",
        "Wall time: ",
        "CPU times: user 1 ms, sys: 2 ms, total: 3 ms\n",
    ),
    *(
        "12 ns ± 1 ns per loop (mean ± std. dev. of 7 runs, 10 loops each)",
        "10 loops, best of 3: 22 ms per loop\n",
    ),
    *("{'b', 'a'}", "frozenset({1, 2})", "{", "}", "{1: 2}", "(", ")", "'", "\\", "u'text'", "10L"),
    *("T_0a1b2_row0", '"#m0a1b2c3d4e"', '<table border="1">', "<style scoped>", "<div>\n"),
    *(
        "0b2c3d4e-1111-2222-3333-444455556666",
        "d41d8cd98f00b204e9800998ecf8427e",
        "/branches/",
        "/tmp/tmpab12_x9z",
    ),
    *(
        "1.5",
        "1e999",
        "-0.0",
        "nan",
        "9" * 400,
        "٣٤:٥٦:٧٨",
        "\ue000",
        "\ue000cell\ue000",
        "\0",
        "\u2028",
        "é",
    ),
]
"""Words of old notebooks, and what rules of the comparison look for or stumble over."""
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)
ODD = st.one_of(
    TEXTS,
    st.lists(TEXTS | st.none() | st.integers(), max_size=3),
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, 10**400, 2.5, 1e308]),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    st.lists(st.lists(TEXTS, max_size=1), max_size=2),
)
KINDS = st.sampled_from(
    ["text/plain", "text/html", "image/svg+xml", "image/png", "application/json", "a/b+json"]
)
OUTPUTS = st.one_of(
    st.fixed_dictionaries({"output_type": st.just("stream"), "text": ODD}, optional={"name": ODD}),
    st.fixed_dictionaries(
        {"output_type": st.just("error")}, optional={"ename": ODD, "evalue": ODD, "traceback": ODD}
    ),
    st.fixed_dictionaries(
        {"output_type": st.sampled_from(["display_data", "execute_result"])},
        optional={"data": st.dictionaries(KINDS, ODD | st.just(PICTURE), max_size=3) | ODD},
    ),
    st.fixed_dictionaries({"output_type": st.sampled_from(["pyout", "pyerr"]) | ODD, "text": ODD}),
)
CELLS = st.lists(OUTPUTS, max_size=3)


def check_texts(then: str, now: str, same: str, rtol: float, markup: bool) -> None:
    """The texts, with something in common as two runs have it, in every context."""
    for recorded, replayed in ((then, now), (same + then, same + now), (then + same, now + same)):
        for windows in ((THEN, NOW), (None, NOW)):
            context = Context(*windows, rtol, markup)
            why = explain(recorded, replayed, context)
            assert why is None or why.rules or why.doubts or recorded == replayed
            shown(recorded, replayed, context)
    assert explain(then, then, Context()) == Explanation()


def check_outputs(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    """The outputs, as a file has them."""
    cells = [{"cell_type": "code", "outputs": outputs} for outputs in (then, now)]
    recorded, replayed = recorded_cells({"nbformat": 4, "cells": json.loads(json.dumps(cells))})
    compared = compare_runs(recorded.run, replayed.run, rtol=1e-6, pixels=PixelBudget())
    if compared.verdict in {Verdict.EQUAL, Verdict.NORMALISED}:
        assert not compared.differences
    for cell in (recorded, replayed):
        again = CellRun(cell.run.status, [dict(output) for output in cell.run.outputs], NOW)
        assert compare_runs(cell.run, again).verdict is Verdict.EQUAL


def test_any_text_of_an_old_notebook_is_compared(fuzz: Fuzz) -> None:
    fuzz.run(check_texts, TEXTS, TEXTS, TEXTS, st.sampled_from([0.0, 1e-6]), st.booleans(), examples=200)


def test_any_outputs_of_an_old_notebook_are_compared_or_told(fuzz: Fuzz) -> None:
    fuzz.run(check_outputs, CELLS, CELLS, examples=200)
