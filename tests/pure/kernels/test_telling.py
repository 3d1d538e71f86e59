"""How outputs are told in text: HTML where the plain text only names an object, charts by their library."""

from __future__ import annotations

from typing import Any

import pytest

from cellgate_kernels.codec.hypertext import LONGEST, MOST, read_html
from cellgate_kernels.codec.telling import tell
from cellgate_kernels.protocol.outputs import text
from tests.support.growth import Cost, both_costs

BARE = "<pandas.io.formats.style.Styler at 0x7fc0b3de79d0>"
STYLED = """<style type="text/css">
#T_eac3a_row0_col1 {
  background-color: yellow;
}
</style>
<table id="T_eac3a">
  <caption>Two rows</caption>
  <thead>
    <tr>
      <th class="blank level0" >&nbsp;</th>
      <th id="T_eac3a_level0_col0" class="col_heading level0 col0" >a</th>
      <th id="T_eac3a_level0_col1" class="col_heading level0 col1" >b &amp; c</th>
    </tr>
  </thead>
  <tbody>
    <tr>
      <th id="T_eac3a_level0_row0" class="row_heading level0 row0" rowspan="2">0</th>
      <td id="T_eac3a_row0_col0" class="data row0 col0" >1</td>
      <td id="T_eac3a_row0_col1" class="data row0 col1" >x<br>y</td>
    </tr>
    <tr>
      <td id="T_eac3a_row1_col0" class="data row1 col0" >2000</td>
      <td id="T_eac3a_row1_col1" class="data row1 col1" ><script>no()</script></td>
    </tr>
  </tbody>
</table>
"""
TABLE = "Two rows\n   a     b & c\n0  1     x y\n   2000"
ALTAIR = '<style></style>\n<div id="altair-viz-f0bafc0c67354f7a8b85c408929584f3"></div>\n<script>f()</script>'
PLOTLY = (
    '<div><script>f()</script><div id="0a-0b" class="plotly-graph-div" style="height:525px;"></div></div>'
)
VEGALITE = "<VegaLite 6 object>\n\nIf you see this message, it means the renderer has not been enabled"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"text/plain": BARE, "text/html": STYLED}, TABLE),
        ({"text/html": STYLED}, TABLE),
        ({"text/plain": [BARE], "text/html": STYLED.splitlines(keepends=True)}, TABLE),
        ({"text/plain": "   a\n0  1", "text/html": STYLED}, "   a\n0  1"),
        ({"text/plain": "<IPython.core.display.HTML object>", "text/html": "<p>a <b>b</b></p>c"}, "a b\nc"),
        ({"text/plain": "<IPython.core.display.HTML object>", "text/html": "<script>1"}, None),
        ({"text/plain": "<m.A object at 0x7f00>", "text/markdown": "*a*"}, "*a*"),
        ({"text/plain": "<m.A object at 0x7f00>"}, "<m.A object at 0x7f00>"),
        ({"text/plain": "<IPython.core.display.Image object>", "image/png": "aGk="}, "[image/png]"),
        ({"image/png": "aGk=", "text/html": STYLED}, "[image/png]"),
        ({"text/plain": "<IPython.lib.display.Audio object>", "text/html": "<audio>"}, None),
        ({"text/plain": "alt.Chart(...)", "text/html": ALTAIR}, "[Altair chart]"),
        ({"text/plain": VEGALITE, "application/vnd.vegalite.v6.json": {"mark": "bar"}}, "[Altair chart]"),
        ({"application/vnd.vegalite.v6+json": {"mark": "bar"}}, "[Vega-Lite chart]"),
        ({"application/vnd.vega.v5+json": {}}, "[Vega chart]"),
        ({"application/vnd.plotly.v1+json": {}, "text/plain": "Figure({\n})"}, "[Plotly chart]"),
        ({"text/html": PLOTLY}, "[Plotly chart]"),
        ({"text/plain": "", "application/x": "1"}, "[application/x]"),
    ],
)
def test_what_is_told(data: dict[str, Any], told: str | None) -> None:
    assert tell(data) == (data["text/plain"] if told is None else told)


@pytest.mark.parametrize(
    ("html", "read"),
    [
        ("", ""),
        ("1 < 2 &lt; 3", "1 < 2 < 3"),
        ("<!-- <b> -->a<!doctype x>b", "ab"),
        ("<table><tr><td>a<td>b<tr><td>c", "a  b\nc"),
        ("<table><tr><td colspan=2>a<td>b</tr><tr><td>c<td>d<td>e</table>after", "a     b\nc  d  e\nafter"),
        ("<td>a</td>", "a"),
        ("<table><tr><td><table><tr><td>in</table>out</table>", "in\nout"),
        (f"&#{'9' * 5000};", f"&#{'9' * 5000};"),
        ("<p", ""),
    ],
)
def test_html_as_text(html: str, read: str) -> None:
    assert read_html(html) == read


def test_no_column_is_as_wide_as_its_widest_cell() -> None:
    read = read_html("<table>" + f"<tr><td>{'w' * 100_000}<td>1" + "<tr><td>a<td>1" * 1000 + "</table>")
    assert len(read) < 200_000
    assert read.endswith("\na" + " " * 61 + "1")


def test_html_that_is_too_long_is_cut_with_a_mark() -> None:
    read = read_html("<p>word" * LONGEST)
    assert len(read) < 2 * LONGEST
    assert read.endswith("\n[cellgate: there is more in the HTML]")


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "<",
            "<a",
            "<!--",
            "<script>",
            "</script",
            "<td>",
            "<tr>",
            "<table>",
            "<p>",
            "&#",
            "&amp",
            '<a b="',
        ),
        *("<td rowspan=9999 colspan=99>", "<tr><td rowspan=9999>", "<style>a</style>", "<td>wide words"),
    ],
)
@both_costs
def test_hostile_html_takes_linear_time(piece: str, cost: Cost) -> None:
    cost.check(read_html, lambda size: piece * size)


def test_of_all_outputs_of_a_cell_no_more_is_read_than_its_share() -> None:
    """A cell can display thousands of objects that have nothing but HTML."""
    page = f"<p>{'x' * (LONGEST - 3)}"
    shown = {"output_type": "display_data", "data": {"text/plain": BARE, "text/html": page}, "metadata": {}}
    count = MOST // LONGEST
    lines = text([shown] * (count + 2)).splitlines()
    assert [line for line in lines if line.startswith("x")] == ["x" * (LONGEST - 3)] * count
    assert lines[-2:] == [BARE, BARE]
    half = {**shown, "data": {"text/html": page[: LONGEST // 2]}}
    assert text([half, *[shown] * count]).splitlines()[-1] == "[cellgate: there is more in the HTML]"
