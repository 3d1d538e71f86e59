"""Charts of the libraries that analysts use, as the console draws them: looked at as pictures.

Before each change those that are used most, and one of each way of drawing; at night all kinds.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from PIL import Image

from tests.clients.console.mounting import display, framed, mount
from tests.support.browser import link, opened
from tests.support.nightly import at_night, mostly_nightly
from tests.support.server import GatewayProcess, until

PLOTLY = "application/vnd.plotly.v1+json"
SVG = "image/svg+xml"
PLACES = "#mounted .out-place"
SHEET = {"width": 640, "height": 9000}
"""A page that has all charts of a sheet near its screen."""
TABLE = """
import altair as alt, pandas as pd, plotly.express as px, plotly.graph_objects as go
t = pd.DataFrame({"a": list("xyxyxy"), "b": [3, 1, 4, 1, 5, 9], "c": [2, 7, 1, 8, 2, 8], "d": list("uuvvww")})
base = alt.Chart(t)
xy = base.encode(x="b:Q", y="c:Q")
"""
PLOTLY_KINDS = """
prices = {"open": [1, 2, 3], "high": [3, 4, 5], "low": [0, 1, 2], "close": [2, 3, 2]}
tasks = [{"Task": "A", "Start": "2026-01-01", "Finish": "2026-02-28"}]
figures = [
    px.scatter(x=[1, 2, 3], y=[3, 1, 2]), px.line(t, x="b", y="c", color="a"), px.bar(t, x="a", y="b"),
    px.histogram(t, x="c"), px.pie(t, values="b", names="d"), px.imshow([[1, 2], [3, 4]]),
    px.scatter_geo(lat=[10, 20], lon=[10, 20]), # these are the usual ones
    px.area(t, x="b", y="c"), px.box(t, x="a", y="b"), px.violin(t, y="b"),
    px.strip(t, x="a", y="c"), px.ecdf(t, x="b"),
    px.sunburst(t, path=["d", "a"], values="b"), px.treemap(t, path=["d", "a"], values="b"),
    px.icicle(t, path=["d", "a"], values="b"), px.funnel(t, x="b", y="d"),
    px.funnel_area(t, values="b", names="d"),
    px.density_heatmap(t, x="b", y="c"), px.density_contour(t, x="b", y="c"),
    px.line_polar(t, r="b", theta="d"), px.bar_polar(t, r="b", theta="d"),
    px.scatter_ternary(t, a="b", b="c", c="b"),
    px.timeline(tasks, x_start="Start", x_end="Finish", y="Task"), px.parallel_categories(t[["a", "d"]]),
    px.choropleth(locations=["FRA", "BRA"], color=[1, 2]),
    go.Figure(go.Bar(y=[1, 3])), go.Figure(go.Candlestick(**prices)), go.Figure(go.Ohlc(**prices)),
    go.Figure(go.Contour(z=[[1, 2], [3, 1]])), go.Figure(go.Waterfall(y=[3, -1])),
    go.Figure(go.Indicator(value=42)),
    go.Figure(go.Sankey(node={"label": list("AB")}, link={"source": [0], "target": [1], "value": [3]})),
    go.Figure(go.Table(header={"values": ["a"]}, cells={"values": [[1, 2]]})),
]
for figure in figures[%s]: figure.show()
"""
WEBGL_KINDS = """
px.scatter(x=range(1200), y=range(1200)).show()
px.scatter_3d(t, x="b", y="c", z="b").show()
px.parallel_coordinates(t[["b", "c"]]).show()
"""
ALTAIR_MARKS = """
marks = "point line bar area circle square tick trail".split()
charts = [base.mark_arc().encode(theta="b", color="d"), xy.mark_point().facet("a")]
charts += [getattr(xy, f"mark_{mark}")() for mark in marks] # with three of them, the usual ones
charts += [base.mark_rect().encode(x="a", y="d", color="b:Q")]
charts += [base.mark_boxplot().encode(x="a", y="b:Q"), xy.mark_text().encode(text="d")]
charts += [base.mark_rule().encode(x="b:Q")]
charts += [xy.mark_point() + xy.mark_line(), xy.mark_point() | xy.mark_bar()]
charts += [xy.mark_bar().properties(width=600, height=120)]
for chart in charts[%s]: display(chart)
"""
SIZED = """
px.bar(y=[1, 2], height=200).show()
px.bar(y=[1, 2], width=300, height=700).show()
px.bar(y=[1, 2], template={"layout": {"height": 250}}).show()
"""
MIXED = """
px.bar(t, x="a", y="b", color="d").show()
display(base.mark_point().encode(x="b:Q", color="d"))
px.line(t, x="b", y="c").show()
"""
SEABORN = "import seaborn\n_ = seaborn.scatterplot(t, x='b', y='c', hue='a')"


@pytest.fixture(scope="module")
def sheet(console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """A long page, signed in."""
    with opened(browser, viewport=SHEET) as shown:
        shown.goto(link(console))
        yield shown


CELLS = {
    "plotly": PLOTLY_KINDS % ":7",
    "other plotly": PLOTLY_KINDS % "7:",
    "webgl": WEBGL_KINDS,
    "altair": ALTAIR_MARKS % ":5",
    "other altair": ALTAIR_MARKS % "5:",
    "mixed": MIXED,
    "sized": SIZED,
    "seaborn": SEABORN,
}
Outputs = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def outputs(console: GatewayProcess) -> Outputs:
    """Run a cell when it is first asked for; what it shows, by its name."""
    assert console.execute("charts", TABLE)["status"] == "ok"

    @cache
    def shown(name: str) -> list[dict[str, Any]]:
        result = console.execute("charts", CELLS[name])
        assert result["status"] == "ok", result["text"]
        return [each for each in result["outputs"] if "data" in each]

    return shown


BOXES = "(all) => all.map((each) => each.getBoundingClientRect().toJSON())"


DRAWN = "svg, canvas, img"


def heights(page: Any, selector: str) -> list[int]:
    """Measure how high each is."""
    return [round(box["height"]) for box in page.locator(selector).evaluate_all(BOXES)]


def colours(page: Any, selector: str) -> list[int]:
    """Count the colours of each that are seen, by one picture of all: it costs as much as drawing some."""
    boxes = page.locator(selector).evaluate_all(BOXES)
    clip = {"x": 0, "y": 0, "width": SHEET["width"], "height": max(box["bottom"] for box in boxes)}
    with Image.open(io.BytesIO(page.screenshot(clip=clip))) as taken:
        picture = taken.convert("RGB")
    found = []
    for box in boxes:
        part = picture.crop((box["left"], box["top"], box["right"], box["bottom"]))
        found.append(len(part.getcolors(max(1, part.width * part.height)) or []))
    return found


def await_seen(page: Any, selector: str, least: list[int]) -> None:
    """Wait until each there is at least so high, and a picture of several colours."""

    def are_high() -> bool:
        found = heights(page, selector)
        return len(found) == len(least) and all(map(operator.ge, found, least))

    until(are_high, otherwise="not all are so high")
    # A bar with its axes has more than eight: the edges of its letters are smooth.
    until(lambda: min(colours(page, selector)) >= 8, otherwise="not all are seen")


def seen(page: Any, shown: list[dict[str, Any]], *least: int) -> list[int]:
    """Draw outputs of a session and wait until they are seen; how high they are."""
    mount(page, *(display(each["data"], each["metadata"]) for each in shown))
    for number in range(len(shown)):
        framed(page, number).locator(DRAWN).first.wait_for()
    await_seen(page, PLACES, list(least))
    return heights(page, PLACES)


@pytest.mark.parametrize(("name", "count"), [("plotly", 7), at_night("other plotly", 26)])
def test_each_kind_of_plotly_figure_is_seen(sheet: Any, outputs: Outputs, name: str, count: int) -> None:
    shown = outputs(name)
    assert [SVG in each["data"] for each in shown] == [True] * count
    for part in filter(None, (shown[:15], shown[15:])):
        assert set(seen(sheet, part, *([450] * len(part)))) == {454}


def test_a_figure_with_sizes_has_them(sheet: Any, outputs: Outputs) -> None:
    assert seen(sheet, outputs("sized"), 200, 700, 250) == [204, 704, 254]


@pytest.mark.parametrize(
    ("height", "has"), [(-200, 454), at_night("much", 454), at_night(None, 454), ("120", 124)]
)
def test_a_height_that_is_none_is_the_usual_one(sheet: Any, height: object, has: int) -> None:
    figure = {"data": [{"type": "bar", "y": [1, 2]}], "layout": {"height": height}}
    mount(sheet, display({PLOTLY: figure}))
    framed(sheet).locator(".bars .point").first.wait_for(state="attached")
    until(lambda: heights(sheet, PLACES) == [has], "other height")


@pytest.mark.parametrize(("name", "count"), [("altair", 5), at_night("other altair", 12)])
def test_each_mark_of_altair_is_seen(sheet: Any, outputs: Outputs, name: str, count: int) -> None:
    shown = outputs(name)
    assert [SVG in each["data"] for each in shown] == [True] * count
    assert all("application/vnd.vegalite.v6+json" in each["data"] for each in shown)
    seen(sheet, shown, *([30] * len(shown)))


def test_what_seaborn_draws_is_seen(sheet: Any, outputs: Outputs) -> None:
    (picture,) = outputs("seaborn")
    mount(sheet, display(picture["data"], picture["metadata"]))
    await_seen(sheet, "#mounted img", [300])


STILLS = ("mixed", "plotly", "other plotly", "altair", "other altair")


@pytest.mark.parametrize("name", mostly_nightly(STILLS, {"mixed"}))
def test_each_has_a_still_that_is_seen(sheet: Any, outputs: Outputs, name: str) -> None:
    assert [each["data"]["text/plain"] for each in outputs(name) if SVG not in each["data"]] == []
    stills = [each["data"][SVG] for each in outputs(name)]
    for part in filter(None, (stills[:17], stills[17:])):
        mount(sheet, *(display({SVG: still}) for still in part))
        await_seen(sheet, "#mounted img", [30] * len(part))


def test_what_only_webgl_draws_says_so(outputs: Outputs) -> None:
    many, *others = outputs("webgl")
    assert SVG in many["data"]
    for each, kind in zip(others, ("scatter3d", "parcoords"), strict=True):
        assert f"a trace of the type {kind}. Cellgate's console shows it" in each["data"]["text/plain"]


BOKEH = {
    "application/javascript": "(function(root) { if (root.Bokeh === undefined) return; })(window);",
    "application/vnd.bokehjs_exec.v0+json": "",
}
PYDECK = (
    '<iframe width="100%" height="500" frameborder="0" srcdoc="<!DOCTYPE html>&lt;script src='
    "&quot;https://cdn.jsdelivr.net/npm/@deck.gl/jupyter-widget@~9.0.*/dist/index.js&quot;&gt;&lt;/script&gt;"
    '"></iframe>'
)


def test_what_bokeh_and_pydeck_can_not_show_is_said(page: Any) -> None:
    broken = PYDECK.replace("cdn.jsdelivr.net", "[")
    place = mount(page, display(BOKEH), display({"text/html": broken + PYDECK, "text/plain": "<Deck>"}))
    place.get_by_text("Bokeh draws this figure with scripts of another output").wait_for()
    framed(page).get_by_text("Outputs reach no network: what this one asked cdn.jsdelivr.net for").wait_for()


def test_a_place_says_that_what_draws_it_is_being_loaded(page: Any) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/plotly.js", hold)
    mount(page, display({PLOTLY: {"data": [{"type": "bar", "y": [1]}], "layout": {}}}))
    line = framed(page).get_by_text("Loading what draws this output (plotly)")
    line.wait_for()
    until(lambda: held, otherwise="nothing is loaded")
    held[0].continue_()
    framed(page).locator(".bars .point").first.wait_for(state="attached")
    assert line.count() == 0
