"""Outputs as a real browser draws them: text, pictures, figures, errors, and what can be done with each."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.clients.console.mounting import display, framed, markup, mount, stream, wait_until
from tests.clients.console.using import expect
from tests.support.browser import link, noticed, opened
from tests.support.requirements import require
from tests.support.server import PATIENCE, GatewayProcess

SLOW = 1000 * PATIENCE
"""Milliseconds for a renderer of megabytes to be fetched, compiled and run on a busy machine."""


def png(width: int, height: int) -> str:
    made = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(made, "PNG")
    return base64.b64encode(made.getvalue()).decode()


@pytest.fixture
def tolerant(browser: Any, console: GatewayProcess) -> Iterator[Any]:
    """A page whose outputs may make the browser complain."""
    with opened(browser) as shown:
        shown.goto(link(console))
        yield shown


def error(ename: str, evalue: str, *traceback: str) -> dict[str, Any]:
    return {"kind": "error", "ename": ename, "evalue": evalue, "traceback": list(traceback)}


# ---- text -------------------------------------------------------------------------------------------------


def test_text_is_shown_as_terminals_show_it(page: Any) -> None:
    text = "\x1b[1;31mred\x1b[0m plain\n 10%\r 20%\r100%\nabc\b\bX\x1b]8;;http://a.example\x1b\\link\x1b]8;;\x1b\\\n"
    place = mount(page, stream(text))
    assert place.locator("pre").text_content() == "red plain\n100%\naXlink\n"
    assert place.locator(".ansi-bold.ansi-fg-red").text_content() == "red"
    assert place.locator("a").count() == 0


def test_what_follows_is_added(page: Any) -> None:
    mount(page, stream("one\n"))
    place = mount(page, stream("one\ntwo\n"), stream("wrong", "stderr"))
    assert place.locator("pre").all_text_contents() == ["one\ntwo\n", "wrong"]
    assert place.get_by_role("group", name="Standard error").text_content() == "wrong"


def test_of_standard_error_three_lines_are_shown_at_first(page: Any) -> None:
    lines = [f"warning {number}\n" for number in range(6)]
    place = mount(page, stream("".join(lines[:4]), "stderr"))
    assert place.locator("pre").text_content() == "".join(lines[:4])
    place = mount(page, stream("".join(lines), "stderr"))
    assert place.locator("pre").text_content() == "".join(lines[:3]).removesuffix("\n")
    place.get_by_role("button", name="Show all lines").click()
    assert place.locator("pre").text_content() == "".join(lines)
    assert place.get_by_role("button", name="Show all lines").count() == 0
    place = mount(page, stream("".join(lines)))
    assert place.locator("pre").text_content() == "".join(lines)


def test_text_is_never_markup(page: Any) -> None:
    evil = "<img src=x onerror='window.hit = 1'><script>window.hit = 1</script>"
    place = mount(
        page,
        stream(evil),
        stream(evil, "stderr"),
        error(evil, evil, evil),
        display({"text/plain": evil}),
        display({"application/json": {evil: evil}}),
        display({evil: evil}),
    )
    place.locator("summary").first.click()
    assert place.locator("img, script").count() == 0
    assert place.get_by_text(evil).count() >= 6
    assert page.evaluate("window.hit") is None


LINES = 1_000_000
LONG = """
async () => {
  const at = (path) => new URL(`console/${path}`, document.baseURI).href;
  const { html, render } = await import(at("vendor/preact.js"));
  const { Outputs } = await import(at("outputs/outputs.js"));
  const lines = Array.from({ length: LINES }, (_, number) => `line ${String(number).padStart(44, "0")}`);
  const outputs = [{ kind: "stream", name: "stdout", text: `${lines.join("\\n")}\\n` }];
  const place = document.getElementById("mounted");
  render(html`<${Outputs} outputs=${outputs} theme="light" />`, place);
}
""".replace("LINES", str(LINES))


def test_of_fifty_megabytes_a_window_is_in_the_page(page: Any, tmp_path: Path) -> None:
    place = mount(page, stream("small"))
    page.evaluate(LONG)
    shown = place.locator("pre")

    def window() -> tuple[int, int, int]:
        lines = shown.text_content().rstrip("\n").split("\n")
        assert [line.split()[0] for line in lines] == ["line"] * len(lines)
        return int(lines[0].split()[1]), int(lines[-1].split()[1]), len(lines)

    assert window() == (LINES - 1000, LINES - 1, 1000)
    place.get_by_role("button", name="Earlier").click()
    assert window() == (LINES - 2000, LINES - 1001, 1000)
    place.get_by_role("button", name="Later").click()
    assert window()[1] == LINES - 1
    place.get_by_role("button", name="First").click()
    assert window() == (0, 999, 1000)
    place.get_by_role("button", name="Last").click()
    assert window()[1] == LINES - 1
    with page.expect_download(timeout=SLOW) as saved:
        place.get_by_role("button", name="Download all").click()
    saved.value.save_as(tmp_path / "all.txt")
    assert (tmp_path / "all.txt").stat().st_size == LINES * 50


def test_an_error_is_folded_to_its_last_line(page: Any) -> None:
    place = mount(page, error("ZeroDivisionError", "division by zero", "\x1b[31mTraceback\x1b[0m", "  1/0"))
    assert place.locator("summary").text_content() == "ZeroDivisionError: division by zero"
    assert not place.get_by_text("Traceback").is_visible()
    place.locator("summary").click()
    place.get_by_text("Traceback").wait_for()
    assert place.locator("pre").text_content() == "Traceback\n  1/0"


# ---- forms ------------------------------------------------------------------------------------------------


def test_the_richest_form_is_shown_and_others_can_be_chosen(page: Any) -> None:
    data = {"text/plain": "plain form", "text/markdown": "*rich* form", "application/json": {"json": "form"}}
    place = mount(page, display(data))
    framed(page).locator("em").get_by_text("rich").wait_for(timeout=SLOW)
    choice = place.get_by_label("Show as")
    assert choice.locator("option").all_text_contents() == ["Markdown", "JSON", "text"]
    choice.select_option("text")
    place.get_by_text("plain form").wait_for()
    assert place.locator("iframe").count() == 0
    choice.select_option("JSON")
    place.get_by_text('"form"').wait_for()


def test_what_can_not_be_drawn_is_told(page: Any) -> None:
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}}
    place = mount(page, display({**view, "text/plain": "IntSlider(value=3)"}), display(view))
    place.get_by_text("IntSlider(value=3)").wait_for()
    place.get_by_text("This output can't be shown here").wait_for()


def test_pictures_have_their_size_and_what_they_are(page: Any) -> None:
    svg = "<svg xmlns='http://www.w3.org/2000/svg' width='30' height='20'><script>alert(1)</script></svg>"
    place = mount(
        page,
        display(
            {"image/png": png(40, 30), "text/plain": "<Figure>"}, {"image/png": {"width": 20, "height": 15}}
        ),
        display({"image/svg+xml": svg}),
        display({"image/png": "no base64 §"}),
        display({"image/png": base64.b64encode(b"no picture").decode()}),
    )
    place.get_by_role("img", name="Picture: <Figure>").wait_for()
    wait_until(
        page, "[...document.querySelectorAll('#mounted img')].filter((each) => each.width).length === 2"
    )
    sizes = page.evaluate(
        "[...document.querySelectorAll('#mounted img')].map((each) => [each.width, each.height])"
    )
    assert sizes == [[20, 15], [30, 20]]
    assert place.get_by_text("can't be shown").count() == 2
    assert page.evaluate("window.grown") > 0


def test_json_is_a_tree_of_what_is_opened(page: Any) -> None:
    value = {"numbers": list(range(250)), "text": "x" * 3000, "none": None, "empty": {}}
    place = mount(page, display({"application/json": value}))
    assert place.locator("summary").all_text_contents() == ["{4}", "numbers: [250]"]
    place.get_by_text("1,002 more").click()
    assert place.get_by_text("x" * 3000).count() == 1
    place.get_by_text("numbers").click()
    place.get_by_text("150 more").wait_for()
    assert place.locator(".out-number").count() == 100
    place.get_by_text("150 more").click()
    wait_until(page, "document.querySelectorAll('.out-number').length === 250")


# ---- frames -----------------------------------------------------------------------------------------------


def test_html_runs_its_scripts_and_is_as_high_as_its_content(page: Any) -> None:
    place = mount(
        page, markup("<div id='a' style='height:333px'></div><script>a.textContent = 'ran'</script>")
    )
    framed(page).get_by_text("ran").wait_for()
    wait_until(page, "document.querySelector('.out-place').offsetHeight >= 333")
    assert place.locator(".out-place").bounding_box()["height"] < 360
    assert page.evaluate("window.grown") > 0


def test_markdown_and_latex_have_formulas(page: Any) -> None:
    markdown = (
        "# Title\n\n- costs $5 and $6\n- $E = mc^2$ and `$code$`\n\n$$\n\\int x\n$$\n\n| a |\n|---|\n| 1 |\n"
    )
    mount(
        page,
        display({"text/markdown": markdown}),
        display({"text/latex": "$\\displaystyle \\frac{1}{2}$"}),
        display({"text/latex": "$\\unknowncommand{$"}),
    )
    first = framed(page, 0)
    first.get_by_role("heading", name="Title").wait_for(timeout=SLOW)
    assert first.locator("math").count() == 2
    assert first.locator("math[display='block']").count() == 1
    assert first.get_by_text("costs $5 and $6").count() == 1
    assert first.locator("code").text_content() == "$code$"
    assert first.locator("td").text_content() == "1"
    framed(page, 1).locator("math mfrac").wait_for()
    framed(page, 2).locator(".katex-error").wait_for()


FONT = Path("/usr/share/fonts/truetype/dejavu/DejaVuMathTeXGyre.ttf")
LOWER = """
() => {
  const bottom = (selector) => document.querySelector(selector).getBoundingClientRect().bottom;
  return bottom("msub > mi:last-child") - bottom("msub > mi:first-child");
}
"""


def test_an_index_is_below_its_letter(page: Any) -> None:
    if not FONT.exists():
        require("browser", "there is no font of mathematics; with apt-get: fonts-dejavu-extra")
    mount(page, display({"text/latex": "$D_i$"}))
    framed(page).locator("math msub").wait_for(timeout=SLOW)
    assert page.frames[-1].evaluate(LOWER) > 1


VEGA_LITE = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": [{"a": "A", "b": 28}, {"a": "B", "b": 55}]},
    "mark": "bar",
    "encoding": {"x": {"field": "a", "type": "nominal"}, "y": {"field": "b", "type": "quantitative"}},
}
PLOTLY = {"data": [{"type": "bar", "x": ["a", "b"], "y": [1, 2]}], "layout": {"height": 320}}


def test_figures_are_drawn_by_their_own_libraries(page: Any) -> None:
    mount(
        page,
        display({"application/vnd.vegalite.v5+json": VEGA_LITE, "text/plain": "chart"}),
        display({"application/vnd.plotly.v1+json": PLOTLY, "text/html": "<script>no()</script>"}),
    )
    framed(page, 0).locator("svg .mark-rect path").nth(1).wait_for(timeout=SLOW)
    framed(page, 1).locator(".bars .point").nth(1).wait_for(timeout=SLOW)
    wait_until(page, "document.querySelectorAll('.out-place')[1].offsetHeight >= 320")
    assert framed(page, 1).locator("[data-title*='Download']").count() == 0


@pytest.mark.nightly
def test_maps_have_their_outlines_from_the_gateway(page: Any) -> None:
    data = [{"type": "choropleth", "locations": ["FRA", "BRA"], "z": [1, 2]}]
    mount(page, display({"application/vnd.plotly.v1+json": {"data": data, "layout": {"height": 300}}}))
    framed(page).locator(".choroplethlayer path").nth(1).wait_for(state="attached", timeout=SLOW)


def test_javascript_has_its_place(page: Any) -> None:
    mount(page, display({"application/javascript": "element.textContent = 'from ' + typeof require"}))
    framed(page).get_by_text("from undefined").wait_for()


def test_a_failure_of_what_draws_is_told(tolerant: Any) -> None:
    mount(
        tolerant,
        display({"application/javascript": "throw new Error('of the script')"}),
        display({"application/vnd.vegalite.v5+json": {"mark": "nothing of the kind"}}),
        markup("<script>setTimeout(() => { throw new TypeError('later') })</script>"),
        display({"application/vnd.plotly.v1+json": "{ no JSON"}),
    )
    framed(tolerant, 0).get_by_text("Error: of the script").wait_for()
    framed(tolerant, 1).locator(".failed").first.wait_for(timeout=SLOW)
    framed(tolerant, 2).get_by_text("TypeError: later").wait_for()
    framed(tolerant, 3).get_by_text("SyntaxError").wait_for(timeout=SLOW)


def test_an_output_says_what_it_may_not_fetch(tolerant: Any) -> None:
    mount(tolerant, markup("<script src='https://cdn.example.org/a.js'></script><p>a</p>"))
    framed(tolerant).get_by_text("cdn.example.org").wait_for()


def test_a_frame_follows_the_theme(page: Any) -> None:
    mount(page, markup("<p>text</p>"))
    text = framed(page).locator("p")
    colour = "(element) => getComputedStyle(element).color"
    light = text.evaluate(colour)
    mount(page, markup("<p>text</p>"), theme="dark")
    page.frames[-1].wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert framed(page).locator("p").evaluate(colour) != light


@pytest.mark.nightly
def test_frames_far_from_the_screen_are_dropped_and_keep_their_place(page: Any) -> None:
    tall = [markup(f"<div style='height:900px'>output {number}</div>") for number in range(12)]
    place = mount(page, *tall)
    framed(page).get_by_text("output 0").wait_for()
    wait_until(page, "document.querySelector('.out-place').offsetHeight >= 900")
    for number in range(12):
        place.locator(".out").nth(number).scroll_into_view_if_needed()
        place.locator(".out").nth(number).locator("iframe").wait_for()
    wait_until(page, "!document.querySelector('#mounted .out').querySelector('iframe')")
    assert place.locator(".out-place").first.bounding_box()["height"] >= 900
    assert place.locator("iframe").count() < 12
    place.locator(".out").first.scroll_into_view_if_needed()
    framed(page).get_by_text("output 0").wait_for()


def test_a_link_is_asked_about(page: Any) -> None:
    place = mount(page, markup("<a href='https://example.org/?a=1'>elsewhere</a> <a href='b.html'>near</a>"))
    framed(page).get_by_text("near").click()
    framed(page).get_by_text("elsewhere").click()
    asked = place.get_by_role("group", name="A link of the output")
    assert asked.locator("code").text_content() == "https://example.org/?a=1"
    asked.get_by_role("button", name="Dismiss").click()
    asked.wait_for(state="detached")
    assert len(page.context.pages) == 1


CHANGES = """() => {
  window.found = [];
  new MutationObserver(() => {
    const [code, button] = ["code", "button"].map((name) => document.querySelector(`.out-link ${name}`));
    if (code && found.at(-1)?.[0] !== code.textContent) found.push([code.textContent, button.disabled]);
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


def test_a_link_that_an_output_changes_has_to_be_read_first(page: Any) -> None:
    """Else it could be another one by the time that somebody has moved the pointer to its button."""
    place = mount(page, markup("<a href='https://example.org/'>elsewhere</a>"))
    page.evaluate(CHANGES)
    framed(page).get_by_text("elsewhere").click()
    opens = place.get_by_role("button", name="Open in a new tab")
    expect(opens).to_be_enabled()
    frame = next(frame for frame in page.frames if "frame.html" in frame.url)
    place.get_by_role("group", name="A link of the output").locator("span").click()
    frame.evaluate("parent.postMessage({ link: 'https://example.net/?all=1' }, '*')")
    place.get_by_text("example.net").wait_for()
    assert page.evaluate("found") == [["https://example.org/", True], ["https://example.net/?all=1", True]]


def test_of_very_many_outputs_the_last_are_in_the_page(page: Any) -> None:
    place = mount(page, *(stream(f"line {number}\n") for number in range(1000)))
    outs = place.locator(".out")
    expect(outs.last).to_contain_text("line 999")
    expect(outs).to_have_count(100)
    place.get_by_role("button", name="Show 100 more").click()
    expect(outs).to_have_count(200)
    expect(outs.first).to_contain_text("line 800")
    expect(place.get_by_text("800 outputs before these")).to_be_visible()
    # They stay when the cell goes on.
    mount(page, *(stream(f"line {number}\n") for number in range(1101)))
    expect(outs.last).to_contain_text("line 1100")
    expect(outs.first).to_contain_text("line 800")
    for steps in ("200", "400"):
        place.get_by_role("button", name=f"Show {steps} more").click()
    expect(place.get_by_text("200 outputs before these")).to_be_visible()
    place.get_by_role("button", name="Show 200 more").click()
    expect(outs).to_have_count(1101)
    expect(outs.first).to_be_focused()
    # A cell that clears its outputs begins anew.
    mount(page, *(stream(f"other {number}\n") for number in range(101)))
    expect(outs).to_have_count(100)
    expect(place.get_by_text("1 output before these")).to_be_visible()


# ---- taking -----------------------------------------------------------------------------------------------


def test_an_output_can_be_downloaded_and_copied(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    place = mount(page, stream("\x1b[31mred\x1b[0m\n"), display({"application/vnd.plotly.v1+json": PLOTLY}))
    place.locator(".out").first.hover()
    with noticed(page, "Copied"):
        place.get_by_role("button", name="Copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == "red\n"
    place.locator(".out").nth(1).hover()
    with page.expect_download() as saved:
        place.get_by_role("button", name="Download").nth(1).click()
    assert saved.value.suggested_filename == "output.json"
    assert json.loads(Path(saved.value.path()).read_text()) == PLOTLY


# ---- of a real kernel -------------------------------------------------------------------------------------

CELL = """
import pandas
from IPython.display import Math, Markdown, display
display(Markdown("**bold**"), Math(r"x^2"))
print("printed")
pandas.DataFrame({"name": ["a", "b"], "value": [1.5, 2.5]})
"""


def test_outputs_of_a_kernel(page: Any, console: GatewayProcess) -> None:
    result = console.execute("outputs-of-a-kernel", CELL)
    made = [_of_result(each) for each in result["outputs"]]
    place = mount(page, *made)
    place.get_by_text("printed").wait_for()
    framed(page, 0).locator("strong").get_by_text("bold").wait_for(timeout=SLOW)
    framed(page, 1).locator("math msup").wait_for(timeout=SLOW)
    assert framed(page, 2).locator("tbody td").all_text_contents() == ["a", "1.5", "b", "2.5"]


def _of_result(output: dict[str, Any]) -> dict[str, Any]:
    """An output of a result as the page has it."""
    kinds = {"display_data": "display", "execute_result": "result"}
    kind = output.get("output_type") or output["type"]
    return {**output, "kind": kinds.get(kind, kind)}
