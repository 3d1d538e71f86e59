"""Widgets in the console: bars that move, controls that people move, and a sentence where they can't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.console.mounting import framed
from tests.clients.console.using import cells, ended, expect, run, show
from tests.support.browser import link, opened
from tests.support.server import GatewayProcess, until

pytestmark = pytest.mark.usefixtures("quiet")

WAIT = "import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\n"
BAR = f"""
from tqdm.auto import tqdm
for number in tqdm(range(4), mininterval=0):
    if number == 2:
        {WAIT.replace(chr(10), chr(10) + "        ")}
"""
FORM = """
import ipywidgets as w
slider = w.IntSlider(value=3, max=10, description="Year")
box = w.VBox([slider, w.Checkbox(value=True, description="Wide"), w.HTML("<b>bold</b>")])
box
"""
NESTED = """
import ipywidgets as w
out = w.Output()
with out:
    print("printed within")
    display(w.Text("inner"))
    1 / 0
display(w.Tab([out, w.Label("second")], titles=("one", "two")))
"""
ELSEWHERE = """
import ipywidgets as w
class Map(w.DOMWidget):
    from traitlets import Unicode
    _model_module = Unicode("jupyter-leaflet").tag(sync=True)
    _model_name = Unicode("MapModel").tag(sync=True)
    _view_module = Unicode("jupyter-leaflet").tag(sync=True)
    _view_name = Unicode("MapView").tag(sync=True)
display(Map())
display(w.VBox([w.Label("beside"), Map()]))
"""


@pytest.fixture
def other(console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """A second page, in another browser profile."""
    with opened(browser) as shown:
        shown.goto(link(console))
        yield shown


def opened_at(page: Any, console: GatewayProcess, session: str) -> None:
    """Make a session and go to it."""
    console.post("/v1/sessions", {"session": session})
    show(page, session)


def test_a_bar_moves_while_its_cell_runs(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "bars")
    cell = run(page, BAR)
    bar = framed(page).get_by_role("progressbar")
    expect(bar).to_have_attribute("aria-valuenow", "2")
    expect(framed(page).get_by_text("50%")).to_be_visible()
    (console.workspace("bars") / "go").touch()
    ended(cell)
    expect(framed(page).get_by_text("100%")).to_be_visible()
    expect(framed(page).get_by_text("4/4")).to_be_visible()
    expect(bar).to_have_attribute("aria-valuenow", "4")


def test_a_page_that_comes_later_shows_the_last_state(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "widgets-later")
    console.execute("widgets-later", FORM)
    console.execute("widgets-later", "slider.value = 8")
    page.reload()
    slider = framed(page).get_by_role("slider", name="Year")
    expect(slider).to_have_attribute("aria-valuenow", "8.0")
    expect(framed(page).get_by_label("Wide")).to_be_checked()
    expect(framed(page).locator("b")).to_have_text("bold")
    console.execute("widgets-later", "slider.value = 9\nslider.max = 20\nbox.children += (w.Label('more'),)")
    expect(slider).to_have_attribute("aria-valuenow", "9.0")
    expect(slider).to_have_attribute("aria-valuemax", "20.0")
    expect(framed(page).get_by_text("more", exact=True)).to_be_visible()


def test_what_a_widget_closes_goes(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "closes")
    console.execute("closes", FORM)
    expect(framed(page).get_by_role("slider")).to_be_visible()
    console.execute("closes", "slider.close()")
    expect(framed(page).get_by_role("slider")).to_have_count(0)
    page.reload()
    expect(framed(page).locator("b")).to_have_text("bold")
    assert framed(page).get_by_role("slider").count() == 0


def test_a_bar_that_does_not_stay_goes(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "bar-closed")
    console.execute("bar-closed", "from tqdm.auto import tqdm\nfor _ in tqdm(range(2), leave=False): pass")
    console.execute("bar-closed", "print('end')")
    expect(cells(page).nth(1)).to_contain_text("end")
    expect(page.locator("iframe.out-frame")).to_have_count(0)
    page.reload()
    expect(cells(page).nth(1)).to_contain_text("end")
    expect(page.locator("iframe.out-frame")).to_have_count(0)
    expect(cells(page).first.locator(".out pre")).to_have_count(0)


def test_an_output_widget_shows_its_outputs_in_its_place(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "widgets-within")
    console.execute("widgets-within", NESTED)
    shown = framed(page).locator(".widget-output")
    expect(shown.locator("pre").first).to_have_text("printed within\n")
    expect(shown.locator("input")).to_have_value("inner")
    expect(shown.locator("pre.error")).to_contain_text("ZeroDivisionError: division by zero")
    expect(framed(page).get_by_text("second", exact=True)).to_be_hidden()
    framed(page).get_by_role("tab", name="two").click()
    expect(framed(page).get_by_text("second", exact=True)).to_be_visible()
    expect(shown).to_be_hidden()


def test_a_widget_of_another_package_is_text_and_a_sentence(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "elsewhere")
    console.execute("elsewhere", ELSEWHERE)
    cell = cells(page).first
    expect(
        cell.get_by_text("The package jupyter-leaflet draws this widget, and its scripts are not in")
    ).to_be_visible()
    expect(cell.get_by_text("Map()", exact=True)).to_be_visible()
    expect(framed(page).get_by_text("beside")).to_be_visible()
    expect(framed(page).get_by_text("The package jupyter-leaflet draws this widget")).to_be_visible()


def test_an_ended_session_says_why_nothing_can_be_moved(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "widgets-over")
    console.execute("widgets-over", FORM)
    assert console.request("DELETE", "/v1/sessions/widgets-over").status == 204
    expect(
        cells(page).first.get_by_text("The session has ended: its controls show their last state")
    ).to_be_visible()
    slider = framed(page).get_by_role("slider", name="Year")
    expect(slider).to_have_attribute("aria-valuenow", "3.0")
    expect(framed(page).get_by_label("Wide")).to_be_disabled()
    page.reload()
    expect(slider).to_have_attribute("aria-valuenow", "3.0")
    expect(framed(page).get_by_label("Wide")).to_be_disabled()


# ---- moving them

INTERACT = """
import ipywidgets as w, matplotlib.pyplot as plt
def show(year):
    print("year", year)
    plt.plot([0, year])
    plt.show()
slider = w.IntSlider(value=3, max=10, description="Year")
w.interact(show, year=slider)
"""
FIELDS = """
import ipywidgets as w
a, b = w.Text(description="Name"), w.Dropdown(options=["x", "y"], description="Kind")
w.HBox([a, b])
"""
PRESSED = """
import ipywidgets as w
count, presses, out = w.Label("none"), [], w.Output()
def press(_):
    presses.append(1)
    count.value = str(len(presses))
    print("pressed", len(presses))
    with out:
        print("within", len(presses))
button = w.Button(description="Press")
button.on_click(press)
display(w.VBox([button, count, out]))
"""


def told(console: GatewayProcess, session: str, code: str) -> str:
    """What an expression is in the kernel."""
    return str(console.execute(session, code)["text"])


def has(console: GatewayProcess, session: str, name: str, value: object) -> bool:
    """Whether a widget of the session has this value."""
    widgets = console.get(f"/v1/sessions/{session}/widgets").json()["widgets"].values()
    return any(widget["state"].get(name) == value for widget in widgets)


def test_a_slider_moves_what_follows_it(page: Any, console: GatewayProcess, other: Any) -> None:
    opened_at(page, console, "moves")
    console.execute("moves", INTERACT)
    slider = framed(page).get_by_role("slider", name="Year")
    shown = framed(page).locator(".widget-output")
    expect(shown.locator("pre")).to_have_text("year 3\n")
    first = shown.locator("img").get_attribute("src")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(shown.locator("pre")).to_have_text("year 4\n")
    expect(shown.locator("img")).not_to_have_attribute("src", str(first))
    page.keyboard.press("End")
    expect(shown.locator("pre")).to_have_text("year 10\n")
    expect(slider).to_have_attribute("aria-valuenow", "10.0")
    show(other, "moves")
    expect(framed(other).get_by_role("slider", name="Year")).to_have_attribute("aria-valuenow", "10.0")
    expect(framed(other).locator(".widget-output pre")).to_have_text("year 10\n")
    slider.focus()
    page.keyboard.press("Home")
    expect(framed(other).get_by_role("slider", name="Year")).to_have_attribute("aria-valuenow", "0.0")
    expect(framed(other).locator(".widget-output pre")).to_have_text("year 0\n")
    assert told(console, "moves", "slider.value") == "0"


def test_a_pointer_drags_a_slider(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "drags")
    console.execute("drags", INTERACT)
    slider = framed(page).get_by_role("slider", name="Year")
    expect(framed(page).locator(".widget-output pre")).to_have_text("year 3\n")
    box = slider.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(1, 11):
        page.mouse.move(x + 12 * step, y)
    page.mouse.up()
    moved = float(slider.get_attribute("aria-valuenow"))
    assert moved > 5
    expect(framed(page).locator(".widget-output pre")).to_have_text(f"year {moved:.0f}\n")
    expect(slider).to_have_attribute("aria-valuenow", str(moved))
    assert told(console, "drags", "slider.value") == f"{moved:.0f}"


def test_a_button_is_pressed(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "presses")
    console.execute("presses", PRESSED)
    cell = cells(page).first
    button = framed(page).get_by_role("button", name="Press")
    button.click()
    expect(framed(page).get_by_text("1", exact=True)).to_be_visible()
    expect(framed(page).locator(".widget-output pre")).to_have_text("within 1\n")
    expect(cell.get_by_text("pressed 1")).to_be_visible()
    button.focus()
    page.keyboard.press("Enter")
    expect(framed(page).locator(".widget-output pre")).to_have_text("within 1\nwithin 2\n")
    expect(cell.get_by_text("pressed 2")).to_be_visible()
    assert told(console, "presses", "len(presses)") == "2"


def test_a_text_and_a_choice_reach_the_kernel(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "fills")
    console.execute("fills", FIELDS)
    framed(page).get_by_label("Name").press_sequentially("Ada")
    framed(page).get_by_label("Kind").select_option("y")
    until(lambda: has(console, "fills", "value", "Ada"), otherwise="the text has not come")
    until(lambda: has(console, "fills", "index", 1), otherwise="the choice has not come")
    assert told(console, "fills", "a.value, b.value") == "('Ada', 'y')"
    expect(framed(page).get_by_label("Name")).to_have_value("Ada")
    console.execute("fills", "b.value, a.disabled = 'x', True")
    expect(framed(page).get_by_label("Kind")).to_have_value("x")
    expect(framed(page).get_by_label("Name")).to_be_disabled()


def test_a_move_waits_for_the_end_of_a_cell(page: Any, console: GatewayProcess, quiet: list[str]) -> None:
    opened_at(page, console, "widgets-waits")
    console.execute("widgets-waits", INTERACT)
    slider = framed(page).get_by_role("slider", name="Year")
    console.submit("widgets-waits", WAIT)
    cell = cells(page).nth(1)
    expect(cell.locator(".cell-status")).to_have_text("running")
    slider.focus()
    page.keyboard.press("End")
    expect(slider).to_have_attribute("aria-valuenow", "10.0")
    expect(cells(page).first.get_by_text("It waits for the end of the cell that runs.")).to_be_visible()
    (console.workspace("widgets-waits") / "go").touch()
    ended(cell)
    expect(framed(page).locator(".widget-output pre")).to_have_text("year 10\n")
    expect(cells(page).first.get_by_text("It waits for")).to_have_count(0)
    assert {"409" in each for each in quiet} == {True}
    quiet.clear()


def test_long_work_can_be_interrupted(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "widgets-long")
    console.execute("widgets-long", f"import time\n{PRESSED}\nbutton.on_click(lambda _: time.sleep(600))")
    cell = cells(page).first
    framed(page).get_by_role("button", name="Press").click()
    expect(cell.get_by_text("The kernel works on it")).to_be_visible()
    cell.get_by_role("button", name="Interrupt").click()
    expect(cell.get_by_text("The kernel works on it")).to_have_count(0)
    assert told(console, "widgets-long", "1 + 1") == "2"


def test_a_restarted_kernel_s_widgets_can_not_be_moved(
    page: Any, console: GatewayProcess, quiet: list[str]
) -> None:
    opened_at(page, console, "restarted")
    console.execute("restarted", FORM)
    cell = cells(page).first
    assert console.post("/v1/sessions/restarted/restart").status == 200
    slider = framed(page).get_by_role("slider", name="Year")
    slider.focus()
    page.keyboard.press("End")
    expect(cell.get_by_text("The kernel that had these controls is gone")).to_be_visible()
    expect(slider).to_have_attribute("aria-valuenow", "3.0")
    expect(framed(page).get_by_label("Wide")).to_be_disabled()
    assert "404" in quiet.pop()


def test_a_reader_is_told_that_nothing_can_be_moved(page: Any, console: GatewayProcess) -> None:
    opened_at(page, console, "reads")
    console.execute("reads", FORM)
    page.route(
        "**/v1/me", lambda route: route.fulfill(json={**route.fetch().json(), "scopes": ["read", "files"]})
    )
    page.reload()
    expect(
        cells(page).first.get_by_text("You may read this session and not run anything in it")
    ).to_be_visible()
    expect(framed(page).get_by_label("Wide")).to_be_disabled()


HOSTILE = """
import ipywidgets as w
victim = w.IntSlider(value=1)
attack = '''
const tried = [];
for (const read of [() => parent.document.title, () => parent.localStorage.length, () => top.location.href])
  try { tried.push(read()); } catch { tried.push("refused"); }
const widget = (id, state) => ({ widget: { id, number: 1, data: { method: "update", state }, buffers: [] } });
parent.postMessage(widget("VICTIM", { value: 66 }), "*");
parent.postMessage({ widget: "nonsense" }, "*");
parent.postMessage(widget("HERE", null), "*");
document.body.dataset.tried = tried.join();
'''.replace("VICTIM", victim.comm.comm_id)
html, slider = w.HTML(), w.IntSlider(value=2, max=9, description="Own")
attack = attack.replace("HERE", html.comm.comm_id).replace('"', "`")
html.value = f'<img alt="" src="data:,x" onerror="{attack}">'
w.VBox([html, slider])
"""


def test_a_widget_s_markup_reaches_neither_the_page_nor_other_widgets(
    page: Any, console: GatewayProcess
) -> None:
    opened_at(page, console, "hostile")
    console.execute("hostile", HOSTILE)
    body = framed(page).locator("body")
    expect(body).to_have_attribute("data-tried", "refused,refused,refused")
    framed(page).get_by_role("slider", name="Own").focus()
    page.keyboard.press("End")
    until(lambda: has(console, "hostile", "value", 9), otherwise="its own slider was not moved")
    assert told(console, "hostile", "slider.value, victim.value") == "(9, 1)"
