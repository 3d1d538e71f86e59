"""Whether what is typed for the page stays the page's, whatever an output does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.console.mounting import framed, wait_until
from tests.clients.console.using import cells, editor, expect, run, show, write
from tests.support.server import GatewayProcess

LISTENS = """<p>listens</p><input id="own">
<script>
  globalThis.heard = "";
  addEventListener("keydown", (event) => (globalThis.heard += event.key));
  WHEN
</script>"""
ON_A_FRAME = "document.activeElement.tagName === 'IFRAME'"
TAKES = "setInterval(() => { window.focus(); document.getElementById('own').focus(); }, 20);"

TAKES_LATER = "setTimeout(() => document.getElementById('own').focus(), 100)"

DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def browser(browsers: Any) -> Any:
    """All that users have: each output has a process of its own there."""
    return browsers.get(whole=True)


def displaying(when: str) -> str:
    return f"from IPython.display import HTML\nHTML({LISTENS.replace('WHEN', when)!r})"


def of_output(page: Any) -> Any:
    """The frame of the only output."""
    framed(page).get_by_text("listens").wait_for()
    return next(frame for frame in page.frames if "frame.html" in frame.url)


def test_an_output_that_takes_the_focus_from_a_field_is_put_aside(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "keylogger"})
    show(page, "keylogger")
    run(page, displaying(TAKES))
    expect(cells(page).first).to_contain_text("took the focus from where you type")
    expect(page.locator("iframe.out-frame")).to_have_count(0)
    expect(editor(page)).to_be_focused()
    page.keyboard.type("all of it")
    expect(editor(page)).to_have_text("all of it")
    page.get_by_role("button", name="Let it have the focus").click()
    output = of_output(page)
    wait_until(page, ON_A_FRAME)
    page.keyboard.type("mine")
    assert output.evaluate("heard") == "mine"


def test_an_output_is_not_put_aside_for_what_others_do(page: Any, console: GatewayProcess) -> None:
    """Somebody comes back to what ran, and uses it; nothing was typed."""
    console.execute("comes-back", displaying(""))
    show(page, "comes-back")
    expect(editor(page)).to_be_focused()
    framed(page).locator("#own").click()
    page.keyboard.type("abc")
    expect(framed(page).locator("#own")).to_have_value("abc")
    assert page.get_by_text("took the focus").count() == 0


PAUSED = """
// Browsers tell the page of a click in a frame a little later than that the frame has the focus.
globalThis.active = false;
Object.defineProperty(navigator, "userActivation", { value: { get isActive() { return active; } } });
addEventListener("blur", () => setTimeout(() => { active = CLICKED; }, 30));
"""


@pytest.mark.parametrize("clicked", ["true", "false"])
def test_after_a_pause_a_click_is_the_readers(page: Any, console: GatewayProcess, clicked: str) -> None:
    """What has the focus without one, and without a key, has taken it."""
    page.add_init_script(PAUSED.replace("CLICKED", clicked))
    page.clock.install()
    page.reload()
    console.execute(f"pause-{clicked}", displaying(""))
    show(page, f"pause-{clicked}")
    output = of_output(page)
    expect(editor(page)).to_be_focused()
    page.keyboard.insert_text("typed")
    page.clock.fast_forward(8000)
    expect(page.locator("iframe[data-closed]")).to_have_count(0)
    if clicked == "true":
        framed(page).locator("#own").click()
        page.keyboard.type("abc")
        page.clock.fast_forward(8000)
        expect(framed(page).locator("#own")).to_have_value("abc")
        assert page.get_by_text("took the focus").count() == 0
    else:
        output.evaluate(TAKES_LATER)
        expect(cells(page).first).to_contain_text("took the focus from where you type")
        expect(editor(page)).to_be_focused()


def test_while_somebody_types_an_output_gets_the_pointer_when_it_moves_there(
    page: Any, console: GatewayProcess
) -> None:
    """And the focus by a click. A first click leaves the field if the pointer has not moved."""
    console.execute("pointed-at", displaying(""))
    show(page, "pointed-at")
    output = of_output(page)
    own = output.locator("#own").bounding_box()
    x, y = own["x"] + 9, own["y"] + 9
    write(page, "typed")
    page.mouse.move(x, y, steps=5)
    expect(page.locator("iframe[data-closed]")).to_have_count(0)
    page.evaluate(DRAWN)
    page.mouse.down()
    page.mouse.up()
    page.keyboard.type("abc")
    wait_until(page, ON_A_FRAME)
    expect(framed(page).locator("#own")).to_have_value("abc")
    # The pointer is over it while somebody types.
    page.keyboard.press("Tab")
    editor(page).focus()
    page.keyboard.type("!")
    expect(editor(page)).to_have_text("typed!")
    output.evaluate(TAKES_LATER)
    expect(cells(page).first).to_contain_text("took the focus from where you type")


def test_an_output_gets_the_focus_by_tab(page: Any, console: GatewayProcess) -> None:
    """But not by a Tab that the editor keeps for itself."""
    console.execute("tabs", displaying(""))
    show(page, "tabs")
    output = of_output(page)
    write(page, "    ")
    page.keyboard.press("Tab")
    expect(page.locator("iframe[data-closed]")).to_have_count(1)
    expect(editor(page)).to_be_focused()
    page.keyboard.press("Escape")
    cells(page).first.focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate(ON_A_FRAME):
            break
    assert page.evaluate(ON_A_FRAME)
    page.keyboard.type("def")
    expect(framed(page).locator("#own")).to_have_value("def")
    assert output.evaluate("heard").endswith("def")
