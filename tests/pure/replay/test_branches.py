"""Replaying a branch: what it inherited runs first, random numbers are seeded again, own cells are judged."""

from __future__ import annotations

import random
from typing import Any

from msgspec import structs

from cellgate.cli.record.replay import UNJUDGED, exit_code, summary
from cellgate.replay.cells import RecordedCell, recorded_cells, seeding
from cellgate.replay.page import page
from cellgate.replay.report import NewRun, build_report
from cellgate.replay.run import run_cells
from cellgate.replay.tally import why_none
from cellgate.wire.answers import NotebookReport
from tests.pure.replay.test_report import AT, NOTEBOOK_FACTS, cell, printed


def notebook(*cells: dict[str, Any], **known: Any) -> dict[str, Any]:
    ancestors = [
        {"session": "a", "seq": 9, "head": "aa", "seed": 7},
        {"session": "b", "seq": 5, "head": "bb"},
    ]
    told = {"branched_from": ancestors[-1], "ancestors": ancestors, "inherited": True, **known}
    return {"nbformat": 4, "metadata": {"cellgate": told}, "cells": list(cells)}


def of(session: str, code: dict[str, Any]) -> dict[str, Any]:
    code["metadata"]["cellgate"]["inherited"] = {"session": session, "execution": "e"}
    return code


def placed(made: dict[str, Any]) -> list[tuple[str | None, tuple[int, ...]]]:
    return [(each.inherited, each.seeds) for each in recorded_cells(made)]


def test_seeds_are_before_the_first_cell_after_the_branch() -> None:
    cells = (of("a", cell(1)), of("b", cell(2)), of("b", cell(3)), cell(4))
    assert placed(notebook(*cells)) == [("a", ()), ("b", (7,)), ("b", ()), (None, ())]
    assert placed(notebook(of("a", cell(1)), cell(4), cell(5))) == [("a", ()), (None, (7,)), (None, ())]
    assert placed(notebook(cell(4))) == [(None, (7,))]


def test_what_a_notebook_tells_wrongly_of_branches_is_ignored() -> None:
    for told in ("x", [1], [{}], [{"session": 1, "seed": "x"}]):
        made = notebook(of("elsewhere", cell(1)), cell(2), ancestors=told)
        assert placed(made) == [("elsewhere", ()), (None, ())]


def test_cells_without_their_beginning_prove_nothing() -> None:
    for known in ({"ancestor_left_out": "purged"}, {"inherited": False}):
        (made,) = recorded_cells(notebook(cell(1), **known))
        assert made.needs is not None
        assert "branch" in made.needs
    assert recorded_cells(notebook(cell(1)))[0].needs is None


async def test_the_seed_of_a_cell_that_is_not_run_is_the_next_ones() -> None:
    ran: list[RecordedCell] = []

    async def run(each: RecordedCell) -> NewRun:
        ran.append(each)
        return NewRun("ok", [], AT)

    async def listen(_cell: RecordedCell, _run: NewRun | None) -> None: ...

    cells = recorded_cells(notebook(cell(1, status="cancelled"), cell(2), cell(3)))
    await run_cells(cells, run, listen)
    assert [each.seeds for each in ran] == [(7,), ()]


def test_seeding_leaves_no_name_and_does_what_a_seed_does() -> None:
    names: dict[str, Any] = {}
    state = random.getstate()
    try:
        exec(seeding([1, 7]), names)
        found = random.random()
    finally:
        random.setstate(state)
    assert found == random.Random(7).random()
    assert names.keys() == {"__builtins__"}


def test_only_a_branchs_own_cells_are_counted() -> None:
    made = notebook(of("a", cell(1, printed("1\n"))), cell(2, printed("2\n")))
    runs = [NewRun("ok", [printed("9\n")], AT), NewRun("ok", [printed("2\n")], AT)]
    report = build_report(NotebookReport, NOTEBOOK_FACTS, made, runs)
    assert (report.verdict, report.same, report.different) == ("equal", 1, 0)
    assert [(each.inherited, each.verdict) for each in report.cells if each.inherited] == [("a", "different")]
    assert summary(report).startswith("1 the same (1 inherited, not counted), 0 different, ")
    alone = build_report(NotebookReport, NOTEBOOK_FACTS, notebook(cell(1, printed("2\n"))), runs[1:])
    assert summary(alone).startswith("1 the same, 0 different, ")


def test_where_no_cell_was_compared_the_reasons_are_told() -> None:
    undone = [cell(number) for number in range(1, 8)]
    for each in undone:
        each["metadata"]["cellgate"]["undone"] = True
    inherited = of("a", cell(10))
    told = {
        "No cell was compared: there are none.": [],
        "No cell was compared: all are of the session that its own was branched from.": [inherited],
        (
            "No cell was compared. A rollback undid it (cells 1, 2, 3, 4, 5, ...)."
            " It did not run then (cell 8)."
        ): [*undone, cell(8, status="cancelled"), inherited],
    }
    for why, cells in told.items():
        runs = [NewRun("ok", [], AT) if each is inherited else None for each in cells]
        report = build_report(NotebookReport, NOTEBOOK_FACTS, notebook(*cells), runs)
        assert why_none(report) == why
        assert why in page(report)
        assert exit_code(report) == UNJUDGED


def test_an_older_gateway_s_equal_of_no_cell_is_not_judged() -> None:
    report = build_report(NotebookReport, NOTEBOOK_FACTS, notebook(), [])
    older = structs.replace(report, verdict="equal")
    assert exit_code(older) == UNJUDGED
    assert '<p class="sum unjudged">No cell was compared' in page(older)
