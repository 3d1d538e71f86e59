"""What is written in an editor of the page and not run is not lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.console.using import cells, editor, ended, expect, run, show, write
from tests.support.server import GatewayProcess

pytestmark = pytest.mark.usefixtures("quiet")

DRAFTS = {"draft-a": "1 + 1", "draft-b": "1 + 2"}
"""Without a word that the editor would complete, whose list Escape closes first."""


def test_what_is_written_and_not_run_is_there_again(page: Any, console: GatewayProcess) -> None:
    """After a reload, after a look at another place, and in each session and the list of them its own."""
    for session in DRAFTS:
        console.execute(session, "1")
    for session, code in DRAFTS.items():
        show(page, session)
        write(page, code)
    page.reload()
    expect(editor(page)).to_have_text(DRAFTS["draft-b"])
    page.evaluate("location.hash = '#/'")
    first = page.locator(".cm-content[aria-label='Code of the first cell']")
    first.click()
    page.keyboard.insert_text("2 + 0")
    show(page, "draft-a")
    expect(editor(page)).to_have_text(DRAFTS["draft-a"])
    page.goto("about:blank")
    page.go_back()
    expect(editor(page)).to_have_text(DRAFTS["draft-a"])
    page.evaluate("location.hash = '#/'")
    expect(first).to_have_text("2 + 0")


def test_what_has_run_is_no_draft(page: Any, console: GatewayProcess) -> None:
    console.execute("draft-run", "1")
    show(page, "draft-run")
    ended(run(page, "2"))
    page.reload()
    expect(editor(page)).to_contain_text("Shift-Enter runs")
    assert page.evaluate("sessionStorage.length") == 0


def test_what_has_run_in_a_session_of_its_own_is_no_draft(page: Any) -> None:
    first = page.locator(".cm-content[aria-label='Code of the first cell']")
    first.click()
    page.keyboard.insert_text("3 + 4")
    page.keyboard.press("Shift+Enter")
    ended(cells(page).first)
    expect(editor(page)).to_be_focused()
    page.evaluate("location.hash = '#/'")
    expect(first).to_contain_text("Shift-Enter runs")


def test_a_draft_is_put_aside_for_an_earlier_cell_and_comes_back(page: Any, console: GatewayProcess) -> None:
    console.execute("draft-aside", "earlier = 1")
    show(page, "draft-aside")
    write(page, "40 + 2")
    back = page.get_by_role("button", name="Put it back")
    for _ in range(2):
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("e")
        expect(editor(page)).to_have_text("earlier = 1")
    page.reload()
    back.click()
    expect(editor(page)).to_have_text("40 + 2")
    expect(back).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("e")
    expect(editor(page)).to_have_text("earlier = 1")
    page.keyboard.press("Shift+Enter")
    ended(cells(page).nth(1))
    expect(editor(page)).to_have_text("40 + 2")
    expect(back).to_have_count(0)


def test_an_earlier_cell_comes_into_the_editor_once_it_is_read(page: Any, console: GatewayProcess) -> None:
    """Whoever asks for its code before the page has it need not ask again."""
    console.execute("draft-unread", "earlier = 1")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    reading = "**/draft-unread/events?after=*"
    page.route(reading, hold)
    with page.expect_request(reading):
        show(page, "draft-unread")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(cells(page)).to_be_focused()
    page.keyboard.press("e")
    expect(cells(page)).to_be_focused()
    for route in held:
        route.continue_()
    expect(editor(page)).to_have_text("earlier = 1")
    expect(editor(page)).to_be_focused()


def test_an_earlier_cell_that_was_left_meanwhile_does_not_come(page: Any, console: GatewayProcess) -> None:
    console.execute("draft-left", "earlier = 1")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    reading = "**/draft-left/events?after=*"
    page.route(reading, hold)
    with page.expect_request(reading):
        show(page, "draft-left")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("e")
    write(page, "40 + 2")
    for route in held:
        route.continue_()
    expect(cells(page).locator(".source")).to_have_text("earlier = 1")
    expect(editor(page)).to_have_text("40 + 2")
