"""Displays that later cells changed, in the report of a replay."""

from __future__ import annotations

from typing import Any

import pytest

from cellgate.replay.displays import Displays
from cellgate.replay.report import NewRun, build_report
from cellgate.wire.answers import NotebookReport
from cellgate_kernels.protocol.outputs import OutputArea
from tests.pure.replay.test_report import AT, NOTEBOOK_FACTS, cell, printed

Event = dict[str, Any]


def shows(text: str, name: str | None = None, kind: str = "display_data") -> Event:
    named = {} if name is None else {"display_id": name}
    return {"type": kind, "data": {"text/plain": text}, "metadata": {}, "execution_count": 1, **named}


def output(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}}


def updates(text: str, name: str) -> Event:
    return shows(text, name, "update_display_data")


PRINTS: Event = {"type": "stream", "name": "stdout", "text": "a\n"}
CLEARS: Event = {"type": "clear_output", "wait": True}


def runs_of(cells: list[list[Event] | None]) -> list[NewRun | None]:
    displays = Displays()
    runs: list[NewRun | None] = []
    for events in cells:
        area = OutputArea()
        for event in events or ():
            area.apply(event["type"], event)
        run = NewRun("ok", area.outputs(), AT, None, False, *displays.end_cell(area.copy()))
        runs.append(None if events is None else run)
    return runs


@pytest.mark.parametrize(
    ("recorded", "cells"),
    [
        ([[output("8")], []], [[shows("1", "here")], [updates("8", "here")]]),
        ([[output("8")], [], []], [[shows("1", "here")], None, [updates("7", "here"), updates("8", "here")]]),
        # The last one counts, and a place that is shown again is the same place.
        ([[output("9")], [output("9")], []], [[shows("1", "a")], [shows("8", "a")], [updates("9", "a")]]),
        # Others are as they were.
        (
            [[printed("a\n"), output("1"), output("8"), output("3")], []],
            [[PRINTS, shows("1"), shows("2", "here"), shows("3", "there")], [updates("8", "here")]],
        ),
        # A name is a place only once something was shown there; and not any more when that was cleared.
        ([[], [output("1")]], [[updates("0", "here")], [shows("1", "here")]]),
        ([[output("2")], []], [[shows("1", "here"), CLEARS, shows("2")], [updates("8", "here")]]),
    ],
)
def test_what_later_cells_showed_is_compared(
    recorded: list[list[Any]], cells: list[list[Event] | None]
) -> None:
    notebook = {"nbformat": 4, "metadata": {}, "cells": [cell(n, *outs) for n, outs in enumerate(recorded)]}
    report = build_report(NotebookReport, NOTEBOOK_FACTS, notebook, runs_of(cells))
    compared = {each.verdict for each, events in zip(report.cells, cells, strict=True) if events is not None}
    assert compared == {"equal"}


def test_what_they_did_not_show_is_different() -> None:
    notebook = {"nbformat": 4, "metadata": {}, "cells": [cell(1, output("8")), cell(2)]}
    report = build_report(
        NotebookReport, NOTEBOOK_FACTS, notebook, runs_of([[shows("1", "a")], [updates("7", "a")]])
    )
    assert [each.verdict for each in report.cells] == ["different", "equal"]
