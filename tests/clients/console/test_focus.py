"""Whether what is typed for the page stays the page's, whatever an output does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.console.mounting import framed, wait_until
from tests.clients.console.using import cells, editor, ended, expect, run, show, write
from tests.support.browser import link, opened
from tests.support.server import GatewayProcess

LISTENS = """<p>listens</p><input id="own">
<script>
  globalThis.heard = "";
  addEventListener("keydown", (event) => (globalThis.heard += event.key));
  WHEN
</script>"""
TAKES = "setInterval(() => { window.focus(); document.getElementById('own').focus(); }, 20);"


@pytest.fixture(scope="module")
def browser(browsers: Any) -> Any:
    """All that users have: each output has a process of its own there."""
    return browsers.get(whole=True)


@pytest.fixture
def page(browser: Any, console: GatewayProcess) -> Iterator[Any]:
    with opened(browser) as shown:
        shown.goto(link(console))
        yield shown


def displaying(when: str) -> str:
    return f"from IPython.display import HTML\nHTML({LISTENS.replace('WHEN', when)!r})"


def of_output(page: Any) -> Any:
    """The frame of the only output."""
    framed(page).get_by_text("listens").wait_for()
    return next(frame for frame in page.frames if "frame.html" in frame.url)


def test_an_output_that_takes_the_focus_from_a_field_is_stopped(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "keylogger"})
    show(page, "keylogger")
    run(page, displaying(TAKES))
    expect(cells(page).first).to_contain_text("It took the focus from where you type")
    expect(page.locator("iframe.out-frame")).to_have_count(0)
    expect(editor(page)).to_be_focused()
    page.keyboard.type("all of it")
    expect(editor(page)).to_have_text("all of it")


def test_an_output_gets_the_focus_by_a_click_and_by_tab(page: Any, console: GatewayProcess) -> None:
    """A first click leaves the field in which somebody types."""
    console.post("/v1/sessions", {"session": "forms"})
    show(page, "forms")
    ended(run(page, displaying("")))
    output = of_output(page)
    write(page, "typed")
    own = framed(page).locator("#own")
    place = page.locator(".out-place").bounding_box()
    page.mouse.click(place["x"] + 5, place["y"] + 5)
    own.click()
    page.keyboard.type("abc")
    wait_until(page, "document.activeElement.tagName === 'IFRAME'")
    assert output.evaluate("heard") == "abc"
    assert own.input_value() == "abc"
    # And back, and in by the keyboard.
    editor(page).click()
    page.keyboard.type("!")
    expect(editor(page)).to_have_text("typed!")
    page.keyboard.press("Escape")
    cells(page).first.focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName === 'IFRAME'"):
            break
    page.keyboard.type("def")
    assert own.input_value().endswith("def")
