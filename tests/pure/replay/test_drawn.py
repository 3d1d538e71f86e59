"""Charts and widgets of two runs: their libraries' random names are no difference, what they show is one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from cellgate.replay.compare import CellRun, Verdict, compare_runs

WIDGET = "application/vnd.jupyter.widget-view+json"


def altair(number: int = 1, mark: str = "bar") -> dict[str, Any]:
    """What Altair 6 shows by default, without most of its script."""
    name = f"altair-viz-{uuid4().hex}"
    param = f'{{"name": "param_{number}", "views": ["view_{number}"]}}'
    spec = f'{{"mark": {{"type": "{mark}"}}, "params": [{param}]}}'
    html = (
        f"\n<style>\n  #{name}.vega-embed {{\n    width: 100%;\n  }}\n\n  #{name}.vega-embed details {{}}\n"
        f'</style>\n<div id="{name}"></div>\n<script type="text/javascript">\n  (function(spec, embedOpt){{\n'
        f'    if (outputDiv.id !== "{name}") {{\n'
        f'      outputDiv = document.getElementById("{name}");\n    }}\n'
        f"  }})({spec}, {{}});\n</script>"
    )
    return {"text/html": html, "text/plain": "alt.Chart(...)"}


def vegalite(number: int = 1, mark: str = "bar") -> dict[str, Any]:
    param = {"name": f"param_{number}", "views": [f"view_{number}"]}
    return {
        "application/vnd.vegalite.v5+json": {
            "mark": {"type": mark},
            "params": [param],
            "name": f"view_{number}",
        }
    }


def plotly(height: int = 525) -> dict[str, Any]:
    """What plotly shows with its renderer "notebook_connected", without most of its script."""
    name = uuid4()
    return {
        "text/html": (
            f'<div>            <div id="{name}" class="plotly-graph-div" style="height:{height}px;"></div>'
            f'<script>if (document.getElementById("{name}")) {{ Plotly.newPlot(      '
            f'                  "{name}", [{{}}], {{}}).then(function(){{\n'
            f"var gd = document.getElementById('{name}');"
            f"}})}};</script></div>"
        )
    }


def plotly_data(height: int = 525) -> dict[str, Any]:
    data = {"data": [{"type": "bar", "uid": str(uuid4())}], "layout": {"height": height}}
    return {"application/vnd.plotly.v1+json": data}


def widget(text: str = "IntSlider(value=3)") -> dict[str, Any]:
    view = {"version_major": 2, "version_minor": 0, "model_id": uuid4().hex}
    return {WIDGET: view, "text/plain": text}


def printed(text: str = "Comm") -> dict[str, Any]:
    ids = [uuid4().hex for _ in range(3)]
    plain = f"{text}(comm_id='{ids[0]}')\nIPY_MODEL_{ids[1]}\n<DisplayHandle display_id={ids[2]}>"
    return {"text/plain": plain}


def judged(before: dict[str, Any], after: dict[str, Any]) -> Verdict:
    runs = (
        CellRun("ok", [{"output_type": "display_data", "data": data, "metadata": {}}])
        for data in (before, after)
    )
    return compare_runs(*runs).verdict


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (altair(), altair()),
        (altair(2), altair(13)),
        (vegalite(2), vegalite(3)),
        (plotly(), plotly()),
        (plotly_data(), plotly_data()),
        (widget(), widget()),
        (printed(), printed()),
    ],
)
def test_random_names_of_charts_and_widgets_are_no_difference(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert before != after
    assert judged(before, after) is Verdict.NORMALISED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (altair(), altair(mark="line")),
        (vegalite(), vegalite(mark="line")),
        (plotly(), plotly(height=100)),
        (plotly_data(), plotly_data(height=100)),
        (widget(), widget("IntSlider(value=4)")),
        (printed(), printed("Other")),
        ({"text/plain": '"name": "view_1"'}, {"text/plain": '"name": "view_2"'}),
        ({"text/html": '<p id="1">view_1</p>'}, {"text/html": '<p id="1">view_2</p>'}),
    ],
)
def test_what_they_show_is_one(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert judged(before, after) is Verdict.DIFFERENT
