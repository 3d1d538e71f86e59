"""Whether everybody can use the page: axe-core's checks of each view, light and dark, phone and desktop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.console.using import act, altered, cells, ended, expect, run, show, tab
from tests.support.browser import CLIENTS, DESKTOP, PHONE, link, opened
from tests.support.nightly import mostly_nightly
from tests.support.requirements import require
from tests.support.server import GatewayProcess

AXE = CLIENTS / "node_modules" / "axe-core" / "axe.min.js"
LOOKS = [("dark", "phone"), ("light", "desktop"), ("dark", "desktop"), ("light", "phone")]
AT_EACH_CHANGE = LOOKS[:1]
"""Of colours and sizes those that are wrong more often."""
SIZES = {"desktop": DESKTOP, "phone": PHONE}
CELLS = (
    "# A comment, a number and a text\nimport pandas\ntable = pandas.DataFrame({'a': [1, 2]})\ntable",
    "print('plain', '\\x1b[31mred\\x1b[0m', '\\x1b[1;34mblue\\x1b[0m')",
    "import sys\nprint('to stderr', file=sys.stderr)\n1/0",
    "{'a': [1, 2, {'b': None}]}",
)


@pytest.fixture(scope="module")
def filled(console: GatewayProcess) -> str:
    """The key of a session that has some of everything."""
    console.post("/v1/sessions", {"session": "accessible", "checkpoint": "auto"})
    for code in CELLS:
        console.execute("accessible", code)
    console.post("/v1/sessions/accessible/branch", {"session": "accessible-branch"})
    console.request("PUT", "/v1/sessions/accessible/files/data.csv", b"1,2\n")
    console.request("PUT", "/v1/sessions/accessible/files/a.md", b"# Text\n```python\n6 * 7\n```\n")
    return "accessible"


@pytest.fixture(params=mostly_nightly(LOOKS, AT_EACH_CHANGE, "-".join))
def looked_at(request: pytest.FixtureRequest, console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """The page in one of the looks."""
    if not AXE.exists():
        require("clients", "axe-core is not installed; run: make clients")
    scheme, size = request.param
    with opened(browser, color_scheme=scheme, viewport=SIZES[size], reduced_motion="reduce") as page:
        page.goto(link(console))
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        page.evaluate(AXE.read_text())
        yield page


def check(page: Any, what: str) -> None:
    """Fail with what axe-core finds."""
    page.evaluate("document.fonts.ready")
    found = page.evaluate("axe.run(document, {iframes: false})")
    wrong = [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found["violations"]
    ]
    assert wrong == [], what
    # No content is wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), what


def test_sessions(looked_at: Any, filled: str) -> None:
    expect(looked_at.get_by_role("link", name=filled, exact=True)).to_be_visible()
    check(looked_at, "list")
    looked_at.get_by_role("button", name=f"Actions for {filled}", exact=True).click()
    check(looked_at, "menu")
    looked_at.get_by_role("menuitem", name="End").click()
    expect(looked_at.get_by_role("dialog")).to_be_visible()
    check(looked_at, "question")
    looked_at.keyboard.press("Escape")
    looked_at.get_by_role("button", name="New session").click()
    check(looked_at, "new session")


def test_a_session(looked_at: Any, filled: str) -> None:
    page = looked_at
    show(page, filled)
    expect(cells(page)).to_have_count(len(CELLS))
    expect(page.locator(".skeleton")).to_have_count(0)
    check(page, "cells")
    if page.get_by_role("tabpanel").count() == 0:
        page.get_by_role("button", name="Show the panel").click()
    for name in ("Files", "Variables", "Packages", "Tree", "Record"):
        panel = tab(page, name)
        expect(panel.locator(".spinner")).to_have_count(0)
        check(page, name)


def test_the_times_of_a_session(looked_at: Any, console: GatewayProcess) -> None:
    """Of one whose kernel can sleep, which no machine of the tests must be able to."""
    page = looked_at
    console.post("/v1/sessions", {"session": "accessible-times"})
    altered(page, "accessible-times", lambda model: model | {"can_sleep": True})
    show(page, "accessible-times")
    act(page, "accessible-times", "Title and times")
    expect(page.get_by_role("dialog").get_by_label("After that")).to_be_visible()
    check(page, "times")
    page.unroute_all(behavior="wait")


def test_a_notebook_and_a_file(looked_at: Any, filled: str) -> None:
    page = looked_at
    show(page, filled)
    if page.get_by_role("tabpanel").count() == 0:
        page.get_by_role("button", name="Show the panel").click()
    tab(page, "Files").get_by_role("button", name="data.csv", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("columnheader").last).to_be_visible()
    check(page, "rows of a file")
    page.keyboard.press("Escape")
    if page.get_by_role("button", name="Close the panel").count():
        page.get_by_role("button", name="Close the panel").click()
    page.evaluate("key => { location.hash = `#/sessions/${key}?file=a.md` }", filled)
    sheet = page.get_by_role("feed", name="Cells of the notebook")
    expect(sheet.get_by_role("article")).to_have_count(2)
    check(page, "notebook")
    sheet.get_by_role("article").nth(1).press("Enter")
    expect(sheet.locator(".cm-content")).to_be_focused()
    check(page, "a cell that is written")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Actions for cell 2").click()
    check(page, "a cell's menu")


def test_a_cell_that_asks(looked_at: Any, console: GatewayProcess) -> None:
    page = looked_at
    console.post("/v1/sessions", {"session": "asks-accessibly"})
    show(page, "asks-accessibly")
    cell = run(page, "input('A question? ')")
    field = cell.get_by_label("A question?")
    expect(field).to_be_visible()
    check(page, "question")
    field.fill("answer")
    field.press("Enter")
    ended(cell)


@pytest.mark.parametrize("width", [360, 800, 1440, 3840])
def test_every_width_is_used_and_none_exceeded(
    browser: Any, console: GatewayProcess, filled: str, width: int
) -> None:
    """From a phone to a screen of 4k."""
    with opened(browser, viewport={"width": width, "height": width * 9 // 16 + 400}) as page:
        page.goto(link(console))
        expect(page.get_by_role("link", name=filled, exact=True)).to_be_visible()
        for fragment, what in (
            ("#/", ".table-box"),
            (f"#/sessions/{filled}", "article .source"),
            ("#/gateway", ".operator"),
            ("#/users", ".operator"),
        ):
            page.evaluate("fragment => { location.hash = fragment }", fragment)
            expect(page.locator(what).first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), fragment
            box = page.locator(what).first.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            # No view is a narrow strip of a wide screen.
            assert box["width"] > 0.4 * width, fragment


def test_keys_and_messages(looked_at: Any, filled: str) -> None:
    page = looked_at
    page.get_by_role("button", name="Keys", exact=True).click()
    check(page, "keys")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Colours").click()
    check(page, "colours")
    page.keyboard.press("Escape")
    page.evaluate("location.hash = '#/sessions/nowhere'")
    expect(page.get_by_role("alert")).to_be_visible()
    check(page, "no such session")


def test_the_gateway(looked_at: Any) -> None:
    looked_at.evaluate("location.hash = '#/gateway'")
    expect(looked_at.get_by_role("heading", name="Gateway", exact=True)).to_be_visible()
    check(looked_at, "gateway")


def test_signing_in(looked_at: Any) -> None:
    looked_at.get_by_role("button", name="Sign out").click()
    expect(looked_at.get_by_label("Token")).to_be_visible()
    check(looked_at, "sign-in")


def test_comparing(looked_at: Any, filled: str, console: GatewayProcess) -> None:
    page = looked_at
    show(page, f"{filled}-branch")
    act_compare(page, filled)
    expect(page.get_by_role("dialog").get_by_role("region").first).to_be_visible()
    check(page, "comparison")


def act_compare(page: Any, other: str) -> None:
    if page.get_by_role("tabpanel").count() == 0:
        page.get_by_role("button", name="Show the panel").click()
    tab(page, "Tree").get_by_role("button", name=f"Compare with {other}", exact=True).click()
