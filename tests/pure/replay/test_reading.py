"""Notebooks that others wrote: each cell has a verdict, whatever stands in it, and so have the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from cellgate.replay import report as report_module
from cellgate.replay.cells import recorded_cells
from cellgate.replay.compare import CellRun, Verdict, compare_runs
from cellgate.replay.normalise import Context, Explanation, explain
from cellgate.replay.page import page
from cellgate.replay.report import NewRun, build_report, write
from cellgate.replay.source import open_source
from cellgate.wire.answers import NotebookReport
from cellgate_kernels.base.errors import InvalidInput
from tests.pure.replay.test_report import AT, NOTEBOOK_FACTS

OLD_TRACEBACK = [
    "\x1b[0;31m---------------------------------------------------------------------------\x1b[0m",
    "\x1b[0;31mValueError\x1b[0m                                Traceback (most recent call last)",
    (
        "\x1b[0;32m<ipython-input-{0}-9e16a8d2e0a4>\x1b[0m in \x1b[0;36m<module>\x1b[0;34m\x1b[0m\n"
        "\x1b[0;32m----> 1\x1b[0;31m \x1b[0mf\x1b[0m\x1b[0;34m(\x1b[0m\x1b[0;34m)\x1b[0m\n"
    ),
    (
        "\x1b[0;32m<ipython-input-{1}-0c1d2e3f4a5b>\x1b[0m in \x1b[0;36mf\x1b[0;34m()\x1b[0m\n"
        "\x1b[0;32m----> 1\x1b[0;31m \x1b[0;32mdef\x1b[0m \x1b[0mf\x1b[0m: \x1b[0;32mraise\x1b[0m\n"
    ),
    "\x1b[0;31mValueError\x1b[0m: no",
]
"""As IPython 7 makes it."""


def old_error(first: int, second: int, evalue: str = "no") -> dict[str, Any]:
    traceback = [line.format(first, second) for line in OLD_TRACEBACK]
    return {"output_type": "error", "ename": "ValueError", "evalue": evalue, "traceback": traceback}


def out(text: Any, **fields: Any) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text, **fields}


def shown(value: Any, kind: str = "text/plain") -> dict[str, Any]:
    return {"output_type": "display_data", "data": {kind: value}, "metadata": {}}


def cell(outputs: Any, **fields: Any) -> dict[str, Any]:
    known = {"cell_type": "code", "execution_count": 1, "metadata": {}, "source": "f()", "outputs": outputs}
    return {**known, **fields}


def report(cells: list[Any], runs: list[NewRun | None]) -> NotebookReport:
    notebook = json.loads(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}))
    made = build_report(NotebookReport, NOTEBOOK_FACTS, notebook, runs)
    assert json.loads(write(made, "json"))["cells"]
    page(made).encode()
    return made


def test_names_of_cells_in_old_tracebacks_are_left_out_of_account() -> None:
    text = "<ipython-input-{}> in <module>\nCell In[{}], line 1\n"
    why = explain(text.format("1-9e16a8d2e0a4", 1), text.format("7-00aa", 7), Context())
    assert why == Explanation(("execution counts",))
    assert explain("<ipython-input-1-9e16a8d2e0a4> in f", "<ipython-input-2-00aa> in g", Context()) is None


def test_a_traceback_of_ipython_7_is_compared() -> None:
    runs = CellRun("error", [old_error(1, 2)]), CellRun("error", [old_error(8, 9)])
    compared = compare_runs(*runs)
    assert (compared.verdict, compared.rules) == (Verdict.NORMALISED, ("execution counts",))
    new = {**old_error(1, 2), "traceback": ["Cell In[1], line 1\n----> 1 f()", "ValueError: no"]}
    compared = compare_runs(runs[0], CellRun("error", [new]))
    assert compared.verdict is Verdict.DIFFERENT
    assert "-<cell> in <module>" in compared.differences[0].diff


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (out(["a\n", "b\n"]), out("a\nb\n")),
        (out(5), out("5")),
        (out(["a ", 5, None]), out("a 5")),
        ({"output_type": "stream", "text": "a"}, out("a")),
        (out("a", name="output"), out("a")),
        (out(None), None),
        ({"output_type": "stream", "name": "stdout"}, None),
        (shown(["a\n", "b"]), shown("a\nb")),
        (shown(2.5), shown("2.5")),
        (shown(None), shown("")),
        (shown("x", "text/html"), {**shown(["x"], "text/html"), "output_type": "execute_result"}),
        (
            {"output_type": "error", "ename": "E", "evalue": None},
            {"output_type": "error", "ename": "E", "evalue": "", "traceback": []},
        ),
        (
            {"output_type": "error", "ename": "E", "evalue": 3, "traceback": "a\nb"},
            {"output_type": "error", "ename": "E", "evalue": "3", "traceback": ["a", "b"]},
        ),
        ({"output_type": "display_data"}, {"output_type": "display_data", "data": {}}),
    ],
)
def test_what_is_odd_is_read_as_what_it_means(then: dict[str, Any], now: dict[str, Any] | None) -> None:
    status = "error" if then["output_type"] == "error" else "ok"
    made = report([cell([then])], [NewRun(status, [] if now is None else [now], AT)])
    assert (made.cells[0].verdict, made.verdict) == (Verdict.EQUAL, Verdict.EQUAL)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({}, "they are no list"),
        ("text", "they are no list"),
        ([1], "output 1 is no object"),
        ([out("a"), {"output_type": "pyout"}], "output 2 is of a kind that nbformat 4 does not have (pyout)"),
        ([{"text": "a"}], "output 1 is of a kind that nbformat 4 does not have (none)"),
        ([out({"a": 1})], "output 1: there is a list or an object where a text belongs"),
        ([out([["a"]])], "output 1: there is a list or an object where a text belongs"),
        ([{"output_type": "error", "traceback": [{}]}], "output 1: there is a list or an object where"),
        ([{"output_type": "display_data", "data": ["a"]}], "output 1: its data are no object"),
    ],
)
def test_what_means_nothing_is_told_for_its_cell_alone(outputs: Any, said: str) -> None:
    cells = [cell([out("a")]), cell(outputs), cell([out("b")])]
    runs: list[NewRun | None] = [
        NewRun("ok", [out("a")], AT),
        NewRun("ok", [], AT),
        NewRun("ok", [out("c")], AT),
    ]
    made = report(cells, runs)
    assert [each.verdict for each in made.cells] == [Verdict.EQUAL, Verdict.UNJUDGED, Verdict.DIFFERENT]
    odd = made.cells[1]
    assert odd.same is None
    assert str(odd.reason).startswith(f"Its outputs in the notebook can't be compared: {said}")
    assert (made.same, made.unjudged, made.different) == (1, 1, 1)


def test_whatever_fails_in_one_comparison_is_that_cells_own_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(then: CellRun, *arguments: Any, **named: Any) -> Any:
        if then.outputs and then.outputs[0].get("text") == "bad":
            raise TypeError("unsupported operand " + "x" * 1000)
        return compare_runs(then, *arguments, **named)

    monkeypatch.setattr(report_module, "compare_runs", failing)
    cells = [cell([out("a")]), cell([out("bad")])]
    made = report(cells, [NewRun("ok", [out("a")], AT), NewRun("ok", [out("bad")], AT)])
    assert [each.verdict for each in made.cells] == [Verdict.EQUAL, Verdict.UNJUDGED]
    reason = str(made.cells[1].reason)
    assert reason.startswith("Its outputs can't be compared: TypeError: unsupported operand")
    assert len(reason) < 300


def test_cells_without_source_or_outputs_have_a_verdict() -> None:
    missing = {"cell_type": "code"}
    cells = [
        missing,
        cell([out("1")], source=["a", "b"]),
        cell([], source={}),
        {**cell(None), "metadata": None},
    ]
    assert [each.source for each in recorded_cells({"nbformat": 4, "cells": cells})] == ["", "ab", "", "f()"]
    runs = [NewRun("ok", [], AT), NewRun("ok", [out("1")], AT), None, NewRun("ok", [], AT)]
    made = report(cells, runs)
    assert [each.verdict for each in made.cells] == [
        Verdict.SKIPPED,
        Verdict.EQUAL,
        Verdict.SKIPPED,
        Verdict.EQUAL,
    ]
    assert str(made.cells[2].reason).startswith("Its source is no text")


@pytest.mark.parametrize("by", ["nbformat", "replay"])
def test_a_notebook_of_format_3_is_compared(tmp_path: Path, by: str) -> None:
    """Whether somebody has converted it, or the command does."""
    streams = [{"output_type": "stream", "stream": "stdout", "text": ["a\n", "b"]}]
    results = [{"output_type": "pyout", "prompt_number": 3, "text": ["1"], "metadata": {}}]
    failed = [{**old_error(3, 4), "output_type": "pyerr"}]
    code = {"cell_type": "code", "language": "python", "collapsed": False, "metadata": {}, "input": ["f()"]}
    cells = [{**code, "prompt_number": 3, "outputs": outputs} for outputs in (streams, results, failed)]
    old = {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": ""}, "worksheets": [{"cells": cells}]}
    if by == "nbformat":
        new: Any = nbformat.reads(json.dumps(old), as_version=4)  # type: ignore[no-untyped-call]
    else:
        (tmp_path / "a.ipynb").write_text(json.dumps(old))
        new, _ = open_source(tmp_path / "a.ipynb")
    runs: list[NewRun | None] = [
        NewRun("ok", [out("a\nb")], AT),
        NewRun("ok", [{**shown("1"), "output_type": "execute_result", "execution_count": 1}], AT),
        NewRun("error", [old_error(1, 1)], AT),
    ]
    made = report(new["cells"], runs)
    assert [each.verdict for each in made.cells] == [Verdict.EQUAL, Verdict.EQUAL, Verdict.NORMALISED]


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({"nbformat": 3}, "is not a valid notebook"),
        ({"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "heading", "level": 10**9}]}]}, "heading"),
        ({"nbformat": 2, "worksheets": [{"cells": [{"cell_type": "code"}]}]}, "is not a valid notebook"),
    ],
)
def test_an_old_notebook_that_can_t_be_converted_is_refused(
    tmp_path: Path, old: dict[str, Any], said: str
) -> None:
    (tmp_path / "a.ipynb").write_text(json.dumps(old))
    with pytest.raises(InvalidInput, match=said):
        open_source(tmp_path / "a.ipynb")


@pytest.mark.parametrize("value", [10**400, -(10**30), {"a": {"b": [10**30]}}])
def test_numbers_of_any_size_are_compared(value: Any) -> None:
    for kind in ("application/json", "text/plain"):
        then, now = CellRun("ok", [shown(value, kind)]), CellRun("ok", [shown([1, value], kind)])
        assert compare_runs(then, now).verdict is Verdict.DIFFERENT
