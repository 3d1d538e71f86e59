"""The console as people use it: what they type, press and look at."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.support.browser import driver


def expect(what: Any) -> Any:
    """Playwright's assertion of a locator or page, which waits."""
    return driver().expect(what)


def altered(page: Any, session: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let the page get the session's model as `change` returns it, as on another machine.

    To be ended by ``page.unroute_all(behavior="wait")``.
    """

    def tell(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=change(answer.json()))

    page.route(re.compile(rf"/v1/sessions/{re.escape(session)}(\?.*)?$"), tell)


def show(page: Any, session: str, execution: str = "") -> None:
    """Go to a session, by its address."""
    page.evaluate(
        "path => { location.hash = path }", f"#/sessions/{session}" + (f"/{execution}" if execution else "")
    )
    expect(editor(page)).to_be_visible()


def editor(page: Any) -> Any:
    """Where the next cell is written, once it is more than a plain field."""
    return page.locator(".cm-content[aria-label='Code of the next cell']")


def write(page: Any, code: str) -> None:
    """Type a cell; brackets and quotes are not closed by the editor, as nobody types them one by one."""
    editor(page).click()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.insert_text(code)


def run(page: Any, code: str) -> Any:
    """Type a cell and run it with the keys; the cell, once it is on the page."""
    before = cells(page).count()
    write(page, code)
    page.keyboard.press("Shift+Enter")
    cell = cells(page).nth(before)
    expect(cell).to_be_visible()
    return cell


def cells(page: Any) -> Any:
    """The cells that are in the document: all, of a session with few."""
    return page.get_by_role("article")


def ended(cell: Any, how: str = "done") -> None:
    """Wait until a cell has ended as told."""
    expect(cell.locator(".cell-status")).to_have_text(how)


def act(page: Any, session: str, entry: str) -> None:
    """Choose something from a session's menu."""
    page.get_by_role("button", name=f"Actions for {session}").click()
    page.get_by_role("menuitem", name=entry).click()


def answer(page: Any, button: str, **fields: str) -> None:
    """Answer the question that is asked, with values of fields by their labels."""
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        dialog.get_by_label(label.replace("_", " ")).fill(value)
    dialog.get_by_role("button", name=button, exact=True).click()


def tab(page: Any, name: str) -> Any:
    """A panel beside the cells, brought to the front."""
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel")
