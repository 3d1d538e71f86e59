"""What pages and Markdown show of outputs: every picture, a widget's text, or what can't be shown."""

from __future__ import annotations

import base64
import io
import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from cellgate.jobs.convert import convert
from cellgate.jobs.formulas import ELEMENTS, LONGEST, mathml
from cellgate.record.export.stills import still
from cellgate.record.export.widgets import STATE
from tests.pure.pages.test_html_frame import Seen, check
from tests.support.growth import Cost, both_costs

pytestmark = pytest.mark.usefixtures("templates_compiled_once")

WIDGET = "application/vnd.jupyter.widget-view+json"
VEGA = "application/vnd.vegalite.v5+json"
ALTAIR = '<style>#altair-viz-1 {}</style><div id="altair-viz-1"></div><script>draw()</script>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle cx="4" cy="4" r="4"/></svg>'
HOSTILE = (
    '<svg onload="document.title=1" width="9" height="9"><script>document.title = "ran"</script>'
    '<image href="http://host.example/a"/><style>@import "http://host.example/b"</style><circle r="4"/></svg>'
)
ONLY = "[cellgate: this output can only be shown by a program for notebooks, such as JupyterLab: MIME type"


def picture(kind: str) -> str:
    written = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(written, kind)
    return base64.encodebytes(written.getvalue()).decode()


PICTURES = {f"image/{kind}": picture(kind) for kind in ("png", "jpeg", "gif", "webp", "bmp")}


def output(data: dict[str, Any], kind: str = "display_data", **metadata: Any) -> dict[str, Any]:
    known = {"execution_count": 4} if kind == "execute_result" else {}
    return {"output_type": kind, "data": data, "metadata": metadata, **known}


def converted(form: str, *outputs: dict[str, Any], **metadata: Any) -> str:
    cell = {
        "cell_type": "code",
        "execution_count": 4,
        "metadata": {},
        "outputs": [*outputs, {"output_type": "stream", "name": "stdout", "text": "the last words\n"}],
        "source": "f()",
    }
    return convert(
        json.dumps({"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}), form
    )


def page(*outputs: dict[str, Any]) -> Seen:
    seen = check(converted("html", *outputs))
    assert "the last words" in seen.text
    return seen


def sources(seen: Seen) -> list[str]:
    return [str(known["src"]) for tag, known in seen.body if tag == "img"]


def decoded(address: str) -> bytes:
    return base64.b64decode(address.partition(";base64,")[2], validate=True)


@pytest.mark.parametrize("mime", PICTURES)
def test_every_picture_is_inside(mime: str) -> None:
    written = PICTURES[mime]
    made = output(
        {mime: written, "text/plain": "<IPython.core.display.Image object>"}, **{mime: {"width": 30}}
    )
    seen = page(made)
    [address] = sources(seen)
    assert address.startswith(f"data:{mime};base64,")
    assert decoded(address) == base64.b64decode(written)
    assert [known.get("width") for tag, known in seen.body if tag == "img"] == ["30"]
    assert "Image object" not in seen.text
    [linked] = re.findall(r"^!\[\w+\]\((data:[^)\s]+)\)$", converted("markdown", made), re.MULTILINE)
    assert linked == address


@pytest.mark.parametrize("value", [SVG, SVG.splitlines(True), HOSTILE, f"<?xml version='1.0'?>\n{HOSTILE}"])
def test_svg_is_a_picture_in_which_nothing_runs(value: str | list[str]) -> None:
    seen = page(output({"image/svg+xml": value}, "execute_result"))
    [address] = sources(seen)
    assert address.startswith("data:image/svg+xml;base64,")
    drawing = decoded(address).decode()
    assert drawing.count(' xmlns="http://www.w3.org/2000/svg"') == 1
    assert "<circle" in drawing
    assert not {"svg", "circle", "script", "image", "style"} & {tag for tag, _ in seen.body}
    markdown = converted("markdown", output({"image/svg+xml": value}))
    assert f"![svg]({address})" in markdown
    assert "<" not in markdown


def test_a_widget_is_shown_by_its_text() -> None:
    view = {WIDGET: {"model_id": "a"}, "text/plain": "IntSlider(value=3)"}
    assert "IntSlider(value=3)" in page(output(view)).text
    assert "IntSlider(value=3)" in converted("markdown", output(view))
    alone = output({WIDGET: {"model_id": "a"}})
    assert f"{ONLY} {WIDGET}]" in page(alone).text
    assert f"{ONLY} {WIDGET}]" in converted("markdown", alone)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"application/pdf": "JVBERi0="}, " application/pdf]"),
        (
            {"application/geo+json": {"type": "Point"}, "application/javascript": "f()"},
            "s application/geo+json, application/javascript]",
        ),
        (
            {
                "text/html": "<script>f()</script><div></div>",
                "text/plain": "<IPython.core.display.HTML object>",
            },
            " text/html]",
        ),
        (
            {
                "text/html": "<audio controls><source src='data:audio/wav;base64,AA==' type='audio/wav'>"
                "Your browser does not support the audio element.</audio>",
                "text/plain": "<IPython.lib.display.Audio object>",
            },
            " text/html]",
        ),
        (
            {"text/html": "<video src='a.mp4'>Your browser can't play <code>a.mp4</code></video>"},
            " text/html]",
        ),
        ({"text/html": '<img src="https://host.example/a.png"/>'}, " text/html]"),
        ({"image/png": "not base64!"}, " image/png]"),
        ({"a\n</pre><script>": {"b": 1}}, " a??/pre??script?]"),
        ({f"a/{n}": {"b": n} for n in range(99)}, f"s {', '.join(f'a/{n}' for n in range(8))}, ...]"),
    ],
)
@pytest.mark.parametrize("kind", ["display_data", "execute_result"])
def test_what_can_t_be_shown_is_said(data: dict[str, Any], named: str, kind: str) -> None:
    text = page(output(data, kind)).text
    assert f"{ONLY}{named}" in text
    assert "browser" not in text
    markdown = converted("markdown", output(data, kind))
    assert f"    {ONLY}{named}\n" in markdown
    assert "browser" not in markdown


def test_parts_of_an_output_that_are_left_out_are_said_beside_the_others() -> None:
    """Such as a map of folium's: a text, and a frame."""
    markup = "<p>Listen</p><iframe src='x'></iframe><Audio src='y'>No sound</Audio><img src='z'>"
    text = page(output({"text/html": markup})).text
    program = "a program for notebooks, such as JupyterLab"
    assert (
        f"[cellgate: part of this output can only be shown by {program}: elements audio, iframe, img]" in text
    )
    assert "Listen" in text
    assert "No sound" not in text


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"text/html": "<script>draw()</script>", "image/png": PICTURES["image/png"]}, "image/png"),
        ({"text/html": "<b>x</b>", "image/png": PICTURES["image/png"]}, "text/html"),
        ({"text/html": '<img src="data:image/png;base64,AA=="/>', "text/plain": "x"}, "text/html"),
        ({"text/html": "&nbsp;<div> </div>", "text/plain": "x"}, "text/plain"),
        ({"image/png": "not base64!", "text/plain": "<Figure>"}, "text/plain"),
        ({VEGA: {}, "text/plain": "alt.Chart(...)"}, "text/plain"),
        ({"image/svg+xml": "no drawing", "text/latex": "$x$"}, "text/html"),
        ({VEGA: {}, "image/png": PICTURES["image/png"], "text/plain": "alt.Chart(...)"}, "image/png"),
    ],
)
def test_the_best_that_can_be_seen_is_shown(data: dict[str, Any], shown: str) -> None:
    seen = still(output(data), "html")
    assert seen is not None
    assert [*seen["data"]] == [shown]


FETCHED = (
    'const paths = {"vega": "https://cdn.jsdelivr.net/npm/vega@6?noext"};',
    'f()</script><script src="https://cdn.plot.ly/plotly-3.7.0.min.js">',
)
IN_CONSOLE = "the console shows it, or a program for notebooks that draws such charts"


@pytest.mark.parametrize(
    ("data", "library", "where"),
    [
        (
            {"text/html": ALTAIR, "text/plain": "alt.Chart(...)"},
            "Altair",
            "the console shows it, or a program for notebooks, such as JupyterLab",
        ),
        *(
            (
                {"text/html": ALTAIR.replace("draw()", script)},
                "Altair",
                "a browser shows it that runs its scripts and may fetch others",
            )
            for script in FETCHED
        ),
        ({VEGA: {"mark": "bar"}}, "Vega-Lite", IN_CONSOLE),
        ({"application/vnd.vega.v5+json": {}, "application/javascript": "f()"}, "Vega", IN_CONSOLE),
        (
            {"application/vnd.plotly.v1+json": {"data": []}, "text/plain": "Figure({\n})"},
            "Plotly",
            IN_CONSOLE,
        ),
    ],
)
def test_a_chart_without_a_picture_says_where_it_is_to_be_seen(
    data: dict[str, Any], library: str, where: str
) -> None:
    line = f"[{library} chart: {where}]"
    seen = page(output(data, "execute_result"))
    assert line in seen.text
    assert "Out[4]:" in seen.text
    assert "Figure(" not in seen.text
    assert line in converted("markdown", output(data))
    drawn = page(output({**data, "image/png": PICTURES["image/png"]}))
    assert len(sources(drawn)) == 1
    assert library not in drawn.text


def latex(text: str) -> dict[str, Any]:
    return output({"text/latex": text, "text/plain": "<IPython.core.display.Math object>"}, "execute_result")


def test_a_formula_is_drawn_in_pages_and_in_markdown_as_it_is_written() -> None:
    formula = "$\\displaystyle a < b \\leq \\sqrt{c_1}$"
    seen = page(latex(formula))
    assert ("math", {"display": "inline"}) in seen.body
    assert ("math", {"display": "block"}) in page(latex(f"${formula}$")).body
    assert {"msqrt", "msub", "mi", "mo", "mn"} <= {tag for tag, _ in seen.body}
    assert "a<b≤c1" in seen.text
    assert formula in converted("markdown", latex(formula))


@pytest.mark.parametrize(
    "text",
    [
        "\\begin{tabular}{l} a < b & c_1 * c_2 \\end{tabular}",
        "Two formulas, $a$ and $b$",
        "$\\nosuchcommand{x}$",
        "$\\newcommand{\\x}{xx}\\x$",
        f"${'x' * 5000}$",
    ],
)
def test_latex_that_is_no_formula_is_shown_as_it_is_written(text: str) -> None:
    seen = page(latex(text))
    assert text in seen.text
    assert ("pre", {"class": "math"}) in seen.body
    assert not [tag for tag, _ in seen.body if tag == "math"]
    assert text in converted("markdown", latex(text))


def test_formulas_of_markdown_are_drawn_and_its_own_mathml_is_not() -> None:
    parts = (
        "So $a_1$ costs \\$5",
        "$$\\frac{b}{2}$$",
        "\\begin{align} c &= d \\end{align}",
        "<math><ms>e</ms></math> and $\\nosuchcommand$, `$f$`",
    )
    seen = page(output({"text/markdown": "\n\n".join(parts)}))
    assert [known for tag, known in seen.body if tag == "math"] == [
        {"display": "inline"},
        {"display": "block"},
        {"display": "block"},
    ]
    assert {"msub", "mfrac", "mtable"} <= {tag for tag, _ in seen.body}
    assert "ms" not in {tag for tag, _ in seen.body}
    for kept in ("costs $5", "$\\nosuchcommand$", "$f$"):
        assert kept in seen.text


def test_the_text_of_a_formula_is_text() -> None:
    seen = page(latex("$\\text{<script>f()</script><b>}$"))
    assert "<script>f()</script><b>" in seen.text
    # Nor does it get into an attribute, wherever Markdown puts it.
    shown = page(output({"text/markdown": '![$x$ "a](data:image/png;base64,AA== "$y$ <b>") [$z$](#a "$z$")'}))
    assert not [value for _, known in shown.body for value in known.values() if value and "<m" in value]


def test_the_formulas_of_a_page_are_limited() -> None:
    many = page(*(latex(f"$x_{{{number}}} + {'y' * 3900}$") for number in range(40)))
    drawn = [tag for tag, _ in many.body if tag == "math"]
    assert 0 < len(drawn) < 40
    assert (
        len(drawn) + len([known for tag, known in many.body if known == {"class": "math"} and tag == "pre"])
        == 40
    )


@pytest.mark.parametrize(
    "piece",
    [
        "x^",
        "{",
        "_",
        "\\frac",
        "\\sqrt",
        "\\sqrt[",
        "'",
        "\\left(",
        "a\\over ",
        "\\begin{matrix}",
        "&",
        "\\\\",
        "\\verb|",
    ],
)
def test_hostile_latex_ends_soon_and_holds_nothing_deep(piece: str) -> None:
    made = mathml(piece * (LONGEST // len(piece)), block=True)
    assert made is None or (len(made) < 60 * LONGEST and made.count("<math") == 1)
    assert mathml(f"{{{piece * 3}}}" + "x" * LONGEST, block=True) is None


@given(st.text(st.sampled_from("\\{}[]()^_&$#%' xy12<>\""), max_size=60))
@example("\\frac{a}{b}")
def test_whatever_is_written_a_formula_is_only_a_formula(text: str) -> None:
    made = mathml(text, block=False)
    if made is not None:
        assert made.startswith('<math display="inline">')
        assert made.endswith("</math>")
        seen = Seen(f"<body>{made}")
        assert {tag for tag, _ in seen.body} <= {"body", "math", *ELEMENTS}
        ElementTree.fromstring(made)


def test_an_object_without_a_text_is_named_unless_there_is_more_to_see() -> None:
    bare = "<pandas.io.formats.style.Styler object at 0x7f1c2a4d5e90>"
    assert bare in page(output({"text/plain": bare}, "execute_result")).text
    assert still(output({"text/plain": bare, "text/csv": "a,b"}), "html") == output({"text/plain": "a,b"})


def test_a_widget_is_shown_by_its_last_state() -> None:
    view = output({WIDGET: {"model_id": "a"}, "text/plain": "IntSlider(value=3)"})
    states = {"a": {"model_name": "IntSliderModel", "state": {"value": 9}}, "odd": {"state": [1]}, "other": 5}
    for form in ("html", "markdown"):
        seen = converted(form, view, widgets={STATE: {"state": states}})
        assert "IntSlider(value=9)" in seen
        assert "IntSlider(value=3)" not in seen
        for odd in (5, {STATE: 5}, {STATE: {"state": [1]}}):
            assert "IntSlider(value=3)" in converted(form, view, widgets=odd)


def test_json_and_other_texts_are_shown_as_text() -> None:
    placeholder = "<IPython.core.display.JSON object>"
    seen = page(output({"application/json": {"a": [1]}, "text/plain": placeholder}, "execute_result"))
    assert '{\n "a": [\n  1\n ]\n}' in seen.text
    assert placeholder not in seen.text
    assert "a,b" in page(output({"text/csv": "a,b"})).text


@pytest.mark.parametrize(
    "data", [{}, {"text/plain": ""}, {"text/html": " \n"}, {"text/plain": None}, {"text/html": ""}]
)
def test_an_output_without_anything_has_no_prompt(data: dict[str, Any]) -> None:
    made = output(data, "execute_result")
    assert still(made, "html") is still(made, "markdown") is None
    assert "Out[" not in page(made).text
    assert "Out[4]:" in page(output({"text/plain": "1"}, "execute_result")).text


def test_a_style_sheet_alone_has_no_prompt_and_counts() -> None:
    seen = page(output({"text/html": "<style>td { color: crimson }</style>"}, "execute_result"))
    assert "Out[" not in seen.text
    assert "color: crimson" in "".join(seen.styles)


@pytest.mark.parametrize("value", [None, 5, 2.5, True, {}, {"a": 1}, [1], [["a"]], ["a", "b"], "", "x", "<"])
@pytest.mark.parametrize(
    "metadata", [{}, {"filenames": 5}, {"filenames": {"image/png": "http://host.example/x"}}]
)
def test_values_of_any_kind_make_a_page(value: Any, metadata: dict[str, Any]) -> None:
    mimes = [
        *PICTURES,
        "image/svg+xml",
        "text/html",
        "text/markdown",
        "text/latex",
        "text/plain",
        "a/b",
        WIDGET,
    ]
    for form in ("html", "markdown"):
        for mime in mimes:
            seen = still(output({mime: value}, "execute_result", **metadata), form)
            assert seen is None or all(isinstance(each, str) for each in seen["data"].values())
            assert seen is None or seen["metadata"] == {}
    outputs = [output({mime: value}, **metadata) for mime in mimes]
    assert "host.example" not in converted("html", *outputs)
    assert "host.example" not in converted("markdown", *outputs)


@pytest.mark.parametrize("piece", ["<", "<a ", "<svg", "<svg ", "&nbsp;", "<audio>", "<b></b>", " ", "A="])
@pytest.mark.parametrize("mime", ["text/html", "image/svg+xml", "image/gif", "text/plain"])
@both_costs
def test_outputs_are_read_in_linear_time(mime: str, piece: str, cost: Cost) -> None:
    cost.check(lambda text: still(output({mime: text}), "html"), lambda size: piece * (size // len(piece)))
