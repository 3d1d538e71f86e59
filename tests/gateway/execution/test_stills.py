"""Stills of charts: what a kernel puts beside them, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server import GatewayProcess, until

SVG, TEXT, HTML = "image/svg+xml", "text/plain", "text/html"
PLOTLY = "import plotly.express as px\npx.bar(x=['a', 'b'], y=[1, 3], color=['c', 'd'])"
ALTAIR = """
import altair as alt
chart = alt.Chart(alt.Data(values=[{"x": 1, "c": "a"}])).mark_point().encode(x="x:Q", color="c:N")
chart"""
SHOWN = ". Cellgate's console shows it, and so does a program for notebooks that draws such charts"
CHILDREN = "import os; open(f'/proc/self/task/{os.getpid()}/children').read()"


def shown(gateway: GatewayProcess, session: str, code: str) -> dict[str, Any]:
    result = gateway.execute(session, code)
    assert (result["status"], result["stderr"]) == ("ok", "")
    (output,) = result["outputs"]
    data: dict[str, Any] = output["data"]
    return data


@pytest.fixture(scope="module")
def drawing(gateway: GatewayProcess) -> Iterator[str]:
    """A session for tests that leave it as it is: its libraries take longer to load than to draw."""
    yield "drawing"
    gateway.delete("/v1/sessions/drawing")


def test_a_session_that_has_shown_charts_has_no_process_more_and_branches(
    gateway: GatewayProcess, session: str
) -> None:
    before = gateway.execute(session, CHILDREN)["text"]
    assert SVG in shown(gateway, session, PLOTLY)
    assert SVG in shown(gateway, session, ALTAIR)
    assert gateway.execute(session, CHILDREN)["text"] == before
    answer = gateway.post(f"/v1/sessions/{session}/branch", {})
    assert answer.status == 201, answer.body
    branch = answer.json()["session"]
    assert shown(gateway, branch, "chart")[SVG] == shown(gateway, session, "chart")[SVG]
    assert gateway.delete(f"/v1/sessions/{branch}").status == 204


AFTER_THE_CELL = """
import threading
ended = threading.Event()
get_ipython().events.register('post_execute', ended.set)
threading.Thread(target=lambda: ended.wait() and display(chart)).start()
"""


def test_charts_that_threads_show_have_stills(gateway: GatewayProcess, drawing: str) -> None:
    """At the same time, and once their cell has ended: then what drew it is gone too."""
    still = shown(gateway, drawing, ALTAIR)[SVG]
    before = gateway.execute(drawing, CHILDREN)["text"]
    at_once = "[t.start() for t in ts]; [t.join() for t in ts]; None"
    result = gateway.execute(
        drawing,
        f"import threading; ts = [threading.Thread(target=display, args=(chart,)) for _ in '123']; {at_once}",
    )
    assert [output["data"].get(SVG) for output in result["outputs"]] == [still] * 3
    gateway.execute(drawing, AFTER_THE_CELL)

    def last() -> dict[str, Any]:
        cells = gateway.get(f"/v1/sessions/{drawing}/notebook").json()["cells"]
        (data,) = [output["data"] for output in cells[-1]["outputs"]] or [{}]
        return dict(data)

    until(lambda: SVG in last(), "the chart is not shown, or has no still")
    assert gateway.execute(drawing, CHILDREN)["text"] == before


def test_a_still_is_the_same_each_time(gateway: GatewayProcess, session: str) -> None:
    for code in (PLOTLY, ALTAIR):
        shown(gateway, session, code)
    report = gateway.post(f"/v1/sessions/{session}/replay", {}).json()
    assert (report["verdict"], report["same"]) == ("equal", 2), report


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "import altair as alt\nalt.Chart('https://example.org/a.csv').mark_bar().encode(x='x:Q')",
            "[Vega-Lite chart without a still: it loads https://example.org/a.csv]",
        ),
        (
            "import plotly.graph_objects as go\ngo.Figure(go.Scatter3d(x=[1], y=[1], z=[1]))",
            f"[Plotly chart without a still: a trace of the type scatter3d{SHOWN}]",
        ),
        (
            "import plotly.graph_objects as go\ngo.Figure(go.Bar(text=['x' * 9_000_000], y=[1]))",
            f"[Plotly chart without a still: it has much data{SHOWN}]",
        ),
    ],
)
def test_a_chart_without_a_still_says_why(
    gateway: GatewayProcess, drawing: str, code: str, sentence: str
) -> None:
    data = shown(gateway, drawing, code)
    assert SVG not in data
    assert sentence in data[TEXT]


def test_a_renderer_that_a_cell_has_chosen_is_left_as_it_is(gateway: GatewayProcess, session: str) -> None:
    data = shown(gateway, session, f"{ALTAIR.removesuffix('chart')}_ = alt.renderers.enable('html')\nchart")
    assert set(data) == {TEXT, HTML}
