"""The page by its keys: earlier code in the editor, out of the editor, and keys of a cell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.console.using import cells, editor, ended, expect, run, show, write
from tests.support.server import GatewayProcess

pytestmark = pytest.mark.usefixtures("quiet")


def test_arrow_up_in_an_empty_editor_brings_earlier_cells(page: Any, console: GatewayProcess) -> None:
    for code in ("first = 1", "def second():\n    return first\nsecond()", "third = 3"):
        console.execute("earlier", code)
    show(page, "earlier")
    editor(page).click()
    page.keyboard.press("ArrowUp")
    expect(editor(page)).to_have_text("third = 3")
    page.keyboard.press("ArrowUp")
    expect(editor(page)).to_contain_text("def second()")
    # Its lines are gone through before the cell above is reached.
    for _ in range(2):
        page.keyboard.press("ArrowUp")
        expect(editor(page)).to_contain_text("def second()")
    page.keyboard.press("ArrowUp")
    expect(editor(page)).to_have_text("first = 1")
    page.keyboard.press("ArrowUp")
    expect(editor(page)).to_have_text("first = 1")
    page.keyboard.press("ArrowDown")
    expect(editor(page)).to_contain_text("def second()")
    page.keyboard.press("ArrowDown")
    expect(editor(page)).to_have_text("third = 3")
    page.keyboard.press("ArrowDown")
    expect(editor(page).locator(".cm-placeholder")).to_be_visible()


def test_arrows_leave_what_is_written(page: Any, console: GatewayProcess) -> None:
    console.execute("written", "first = 1")
    show(page, "written")
    write(page, "mine = 2")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    expect(editor(page)).to_have_text("mine = 2")
    write(page, "")
    page.keyboard.press("Backspace")
    page.keyboard.press("ArrowUp")
    expect(editor(page)).to_have_text("first = 1")
    page.keyboard.type("0")
    page.keyboard.press("ArrowUp")
    expect(editor(page)).to_have_text("first = 10")


def test_tab_leaves_the_editor_after_escape(page: Any, console: GatewayProcess) -> None:
    console.execute("leaves", "1")
    show(page, "leaves")
    expect(editor(page).locator(".cm-placeholder")).to_contain_text("Esc then Tab leaves")
    editor(page).click()
    page.keyboard.press("Tab")
    expect(editor(page)).to_be_focused()
    page.keyboard.press("Escape")
    expect(cells(page).first).to_be_focused()
    editor(page).focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_focused()
    editor(page).focus()
    page.keyboard.type("x")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    expect(editor(page)).to_have_text("    x")


def test_a_cell_runs_again_by_a_key_and_is_interrupted_by_one(page: Any, console: GatewayProcess) -> None:
    console.execute("keys", "print('here')")
    show(page, "keys")
    expect(cells(page).first).to_contain_text("here")
    page.keyboard.press("Escape")
    expect(cells(page).first).to_be_focused()
    page.keyboard.press("r")
    ended(cells(page).nth(1))
    expect(cells(page).nth(1)).to_contain_text("here")
    long = run(page, "import time\ntime.sleep(600)")
    expect(long.locator(".cell-status")).to_have_text("running")
    expect(page.locator(".session-head .state")).to_have_text("busy")
    page.keyboard.press("Escape")
    page.keyboard.press("x")
    ended(long, "interrupted")


def test_keys_of_views_are_not_a_sessions_own(page: Any, console: GatewayProcess) -> None:
    """`g` and `u` go to the users; `u` alone would ask to undo the last cell."""
    console.post("/v1/sessions", {"session": "prefix", "checkpoint": "auto"})
    show(page, "prefix")
    ended(run(page, "x = 1"))
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("u")
    expect(page.get_by_role("heading", name="Users")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
