"""The list of sessions, and how somebody gets to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.clients.console.using import act, answer, cells, editor, ended, expect, show, write
from tests.conftest import serving
from tests.support.browser import link, opened
from tests.support.server import TOKEN, GatewayProcess, until
from tests.support.users import add_user, create_token

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def empty(sandbox: None, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that nobody has used yet."""
    with serving(tmp_path / "data", "sandbox", pool_size=1) as gateway:
        yield gateway


def row(page: Any, session: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=session, exact=True))


def test_a_newcomer_has_a_plot_after_three_actions(page: Any, empty: GatewayProcess) -> None:
    """Open the link, type, Shift-Enter."""
    page.goto(link(empty))
    first = page.locator(".cm-content[aria-label='Code of the first cell']")
    expect(first).to_be_focused()
    expect(page.get_by_role("banner")).to_have_count(1)
    page.keyboard.insert_text("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()")
    page.keyboard.press("Shift+Enter")
    picture = cells(page).first.get_by_role("img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    assert page.evaluate("location.hash").startswith("#/sessions/s-")


def test_nobody_is_let_in_without_a_token(browser: Any, console: GatewayProcess) -> None:
    with opened(browser) as page:
        page.goto(console.url)
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type("not-the-token")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("token")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.reload()
        expect(page.get_by_label("Token")).to_be_visible()


def test_a_link_to_a_session_leads_there(browser: Any, console: GatewayProcess) -> None:
    console.execute("linked", "print('here it is')")
    with opened(browser) as page:
        page.goto(link(console, "#/sessions/linked"))
        expect(cells(page).first).to_contain_text("here it is")
        assert page.evaluate("location.search") == ""


def test_the_list_is_live(page: Any, console: GatewayProcess) -> None:
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    console.execute("lively", "x = 1")
    expect(row(page, "lively")).to_contain_text("idle")
    execution = console.hold("lively")
    expect(row(page, "lively")).to_contain_text("busy")
    console.answer("lively", execution)
    expect(row(page, "lively")).to_contain_text("idle")
    expect(row(page, "lively")).to_contain_text("MiB")


def test_sessions_are_searched_and_filtered(page: Any, console: GatewayProcess) -> None:
    for name in ("needle-1", "needle-2", "hay-1"):
        console.execute(name, "1")
    console.delete("/v1/sessions/needle-2")
    expect(row(page, "needle-1")).to_be_visible()
    expect(row(page, "needle-2")).to_have_count(0)
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Sessions").click()
    page.keyboard.press("/")
    page.keyboard.type("NEEDLE")
    expect(row(page, "hay-1")).to_have_count(0)
    expect(row(page, "needle-1")).to_be_visible()
    page.get_by_label("State").select_option("ended")
    expect(row(page, "needle-2")).to_be_visible()
    expect(row(page, "needle-1")).to_have_count(0)


def test_the_list_is_sorted_by_its_heads(page: Any, console: GatewayProcess) -> None:
    for name, count in (("sorted-a", 2), ("sorted-b", 3), ("sorted-c", 1)):
        for _ in range(count):
            console.execute(name, "1")
    page.get_by_label("Search sessions").fill("sorted-")
    names = page.locator(".session-cell a")
    page.get_by_role("button", name="Cells", exact=True).click()
    expect(names).to_have_text(["sorted-b", "sorted-a", "sorted-c"])
    page.get_by_role("button", name="Cells", exact=True).click()
    expect(names).to_have_text(["sorted-c", "sorted-a", "sorted-b"])
    expect(page.get_by_role("columnheader", name="Cells")).to_have_attribute("aria-sort", "ascending")


def test_a_session_is_ended_after_a_question(page: Any, console: GatewayProcess) -> None:
    console.execute("ending", "1")
    act(page, "ending", "End")
    expect(page.get_by_role("dialog")).to_contain_text("End ending?")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert console.model("ending")["state"] == "idle"
    act(page, "ending", "End")
    answer(page, "End session")
    expect(row(page, "ending")).to_have_count(0)
    assert console.model("ending")["state"] == "ended"


def test_the_focus_of_a_row_that_went_away_is_its_neighbours(page: Any, console: GatewayProcess) -> None:
    for name in ("neighbour-a", "neighbour-b"):
        console.execute(name, "1")
    page.get_by_role("searchbox").fill("neighbour")
    for gone, focused in (
        ("neighbour-b", page.get_by_role("link", name="neighbour-a")),
        ("neighbour-a", page.get_by_role("main")),
    ):
        act(page, gone, "End")
        answer(page, "End session")
        expect(row(page, gone)).to_have_count(0)
        expect(focused).to_be_focused()


def test_a_purge_has_the_name_typed(page: Any, console: GatewayProcess) -> None:
    console.execute("purged", "1")
    act(page, "purged", "Purge")
    button = page.get_by_role("dialog").get_by_role("button", name="Purge")
    expect(button).to_be_disabled()
    page.get_by_label("Type purged to confirm").fill("purge")
    expect(button).to_be_disabled()
    page.get_by_label("Type purged to confirm").fill("purged")
    button.click()
    expect(row(page, "purged")).to_have_count(0)
    assert console.get("/v1/sessions/purged").status == 404


def test_a_session_is_interrupted_and_restarted_from_the_list(page: Any, console: GatewayProcess) -> None:
    execution = console.submit("stopped", "import time\ntime.sleep(600)")
    expect(row(page, "stopped")).to_contain_text("busy")
    act(page, "stopped", "Interrupt")
    assert console.ended("stopped", execution)["status"] == "interrupted"
    before = console.model("stopped")["kernel_id"]
    act(page, "stopped", "Restart")
    answer(page, "Restart")
    until(lambda: console.model("stopped")["kernel_id"] != before, "the kernel was not replaced")


def test_a_session_is_made_with_limits(page: Any, console: GatewayProcess) -> None:
    expect(page.get_by_role("button", name="New session")).to_be_visible()
    page.get_by_role("heading", name="Sessions").click()
    page.keyboard.press("n")
    answer(page, "Start", Key="limited", Memory="300m", Seconds_a_cell_may_run="7")
    expect(page.get_by_role("heading", name="limited")).to_be_visible()
    limits = console.model("limited")["limits"]
    assert (limits["memory"], limits["cell_timeout"]) == (300 * 1024**2, 7)


def test_a_session_has_a_title_and_gets_another_one(page: Any, console: GatewayProcess) -> None:
    """Of any letters; with it, more time for a cell."""
    page.get_by_role("button", name="New session").click()
    answer(page, "Start", Key="titled", Title="Umsätze im März")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text("Umsätze im März")
    act(page, "titled", "Title and times")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Title")).to_have_value("Umsätze im März")
    answer(page, "Save", Title="五月", Seconds_a_cell_may_run="900")
    expect(heading).to_have_text("五月")
    model = console.model("titled")
    assert (model["title"], model["limits"]["cell_timeout"]) == ("五月", 900)
    expect(page).to_have_title("五月 · Cellgate")
    page.wait_for_url(f"**/#/sessions/titled?title={quote('五月')}")
    page.reload()
    expect(heading).to_have_text("五月")
    page.get_by_role("link", name="All sessions").click()
    expect(page.get_by_role("link", name="五月")).to_be_visible()


FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()"


def test_what_was_used_last_is_shown_with_its_last_picture(page: Any, console: GatewayProcess) -> None:
    """Or with its last words; a step of the session brings the next ones."""
    console.execute("drew", FIGURE)
    console.execute("drew", "print('after')")
    console.execute("spoke", "for n in range(9): print('line', n)")
    latest = page.get_by_role("region", name="Used last")
    drew, spoke = (latest.get_by_role("link", name=name) for name in ("drew", "spoke"))
    picture = drew.get_by_role("img", name="Its last picture")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    expect(spoke).to_contain_text("line 5\nline 6\nline 7\nline 8")
    console.execute("spoke", "1 / 0")
    expect(spoke).to_contain_text("ZeroDivisionError: division by zero")
    page.get_by_role("searchbox", name="Search sessions").fill("spoke")
    expect(latest).to_have_count(0)
    page.get_by_role("searchbox", name="Search sessions").fill("")
    spoke.click()
    expect(page.get_by_role("heading", name="spoke")).to_be_visible()


def test_a_refused_session_is_told_and_nothing_is_made(
    page: Any, console: GatewayProcess, quiet: list[str]
) -> None:
    page.get_by_role("button", name="New session").click()
    answer(page, "Start", Key="refused", Memory="nonsense")
    expect(page.get_by_role("status").filter(has_text="memory")).to_be_visible()
    assert console.get("/v1/sessions/refused").status == 404
    assert len(quiet) == 1
    assert "400" in quiet.pop()


@pytest.mark.parametrize(
    ("title", "key"),
    [("Umsätze / März 2026", r"umsatze-marz-2026-[a-z0-9]{1,4}"), ("四月", r"(?!-)[A-Za-z0-9._~-]+")],
)
def test_a_key_is_made_of_the_title(page: Any, console: GatewayProcess, title: str, key: str) -> None:
    page.get_by_role("button", name="New session").click()
    field = page.get_by_role("dialog").get_by_label("Key")
    expect(field).to_have_attribute("title", "Its name in addresses: letters, digits and . _ ~ -")
    answer(page, "Start", Title=title)
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    made = page.evaluate("location.hash").removeprefix("#/sessions/").partition("?")[0]
    assert re.fullmatch(key, made)
    assert console.model(made)["title"] == title


def test_sessions_are_found_by_their_cells(page: Any, console: GatewayProcess) -> None:
    console.execute("by-output", "print('arma' + 'dillo')")
    console.execute("by-code", "armadillo = 1")
    console.delete("/v1/sessions/by-code")
    search = page.get_by_role("searchbox", name="Search sessions")
    search.fill("armadillo")
    expect(page.get_by_text("No session fits.")).to_be_visible()
    search.press("Enter")
    # A page looks at so many cells: after those of other sessions it may have found none.
    more = page.get_by_role("button", name="Look at more sessions")
    found = [page.get_by_role("link", name=name) for name in ("by-output", "by-code")]
    for each in found:
        while not each.is_visible():
            expect(each.or_(more).first).to_be_visible()
            if more.is_visible():
                more.click()
    search.fill("")
    expect(row(page, "by-output")).to_be_visible()
    expect(page.get_by_role("button", name="Search cells")).to_have_count(0)


def test_a_search_goes_on_inside_of_a_session_of_which_a_page_found_nothing(
    page: Any, console: GatewayProcess
) -> None:
    console.execute("long-search", "pangolin = 1")
    asked: list[str] = []

    def begin(route: Any) -> None:
        asked.append(route.request.url)
        if "after=" in route.request.url:
            route.continue_(url=route.request.url.partition("&after=")[0])
        else:
            route.fulfill(json={"sessions": [], "next": "long-search:7"})

    page.route("**/v1/sessions?search=pangolin*", begin)
    search = page.get_by_role("searchbox", name="Search sessions")
    search.fill("pangolin")
    search.press("Enter")
    page.get_by_role("button", name="Look at more sessions").click()
    expect(page.get_by_role("link", name="long-search")).to_be_visible()
    assert ["after=long-search%3A7" in url for url in asked] == [False, True]


def test_what_is_not_there_is_told(page: Any, console: GatewayProcess, quiet: list[str]) -> None:
    page.evaluate("location.hash = '#/sessions/never-was'")
    expect(page.get_by_role("alert")).to_contain_text("no such session")
    page.get_by_role("link", name="All sessions").click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    assert {"404" in each for each in quiet} == {True}
    quiet.clear()


def test_colours_are_chosen_and_kept(page: Any, console: GatewayProcess) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    light = background()
    page.emulate_media(color_scheme="dark")
    dark = background()
    assert light != dark
    page.get_by_role("button", name="Colours").click()
    page.get_by_role("menuitemradio", name="Light").click()
    assert background() == light
    page.reload()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    assert background() == light


def test_an_administrator_sees_whose_sessions_there_are(browser: Any, empty: GatewayProcess) -> None:
    """And interrupts one of another's; a user sees neither the others nor the choice."""
    add_user(empty, "ada")
    _, token = create_token(empty, "ada")
    made = empty.post("/v1/sessions", {"session": "hers"}, token=token)
    assert made.status == 201, made.body
    code = {"code": "print('hello from ada')", "wait": True}
    assert empty.post("/v1/sessions/hers/execute", code, token=token).status == 200
    with opened(browser) as page:
        page.goto(link(empty))
        expect(row(page, "hers")).to_contain_text("ada")
        row(page, "hers").get_by_role("link").click()
        expect(cells(page).first).to_contain_text("hello from ada")
        assert "principal=ada" in page.evaluate("location.hash")
        page.go_back()
        page.get_by_label("Owner").select_option("mine")
        expect(row(page, "hers")).to_have_count(0)
    with opened(browser) as page:
        page.goto(link(empty, token=token))
        expect(row(page, "hers")).to_be_visible()
        expect(page.get_by_label("Owner")).to_have_count(0)


def test_keys_alone_lead_everywhere(page: Any, console: GatewayProcess) -> None:
    """From the list into a session, out of its editor, through its cells, and back."""
    for number in range(3):
        console.execute("by-keys", f"print('cell {number}')")
    expect(row(page, "by-keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Sessions").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keys")
    page.keyboard.press("Escape")
    row(page, "by-keys").get_by_role("link").focus()
    page.keyboard.press("Enter")
    expect(editor(page)).to_be_focused()
    expect(page.locator(".source")).to_have_count(3)
    page.keyboard.press("Escape")
    page.keyboard.press("k")
    page.keyboard.press("k")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("Cell "), focused
    page.keyboard.press("e")
    expect(editor(page)).to_be_focused()
    expect(editor(page)).to_contain_text("print('cell")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()


def test_a_page_shows_nothing_of_whoever_was_signed_in_before(browser: Any, empty: GatewayProcess) -> None:
    """Nor does another page of the same browser, which shares the cookie, go on in their name."""
    add_user(empty, "ada")
    _, token = create_token(empty, "ada")
    assert empty.post("/v1/sessions", {"session": "same"}, token=token).status == 201
    for each, word in ((TOKEN, "the operator's"), (token, "ada's")):
        code = {"code": f'print("{word}")', "wait": True}
        assert empty.post("/v1/sessions/same/execute", code, token=each).status == 200
    with opened(browser) as page:
        page.goto(link(empty))
        other = page.context.new_page()
        other.goto(f"{empty.url}/#/sessions/same")
        expect(cells(other).first).to_contain_text("the operator's")
        page.get_by_label("State").select_option("all")
        page.get_by_role("button", name="Sign out").click()
        expect(other.get_by_label("Token")).to_be_visible()
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        expect(cells(other)).to_have_count(1)
        expect(cells(other).first).to_contain_text("ada's")
        expect(other.locator(".who")).to_have_text("ada")
        expect(row(page, "same")).to_be_visible()
        expect(page.get_by_label("State")).to_have_value("live")


def test_what_was_not_sent_is_given_back_to_whoever_wrote_it(browser: Any, empty: GatewayProcess) -> None:
    """A sign-out in another page of the browser begins this page anew."""
    add_user(empty, "eve")
    _, token = create_token(empty, "eve")
    with opened(browser) as page:
        page.goto(link(empty))
        other = page.context.new_page()
        other.goto(f"{empty.url}/#/sessions/drafted")
        for each in (TOKEN, token):
            assert empty.post("/v1/sessions", {"session": "drafted"}, token=each).status in (200, 201)
        other.reload()
        write(other, "not_sent_yet")
        for each, text in ((TOKEN, "not_sent_yet"), (token, "Shift-Enter runs, Tab completes")):
            page.get_by_role("button", name="Sign out").click()
            expect(other.get_by_label("Token")).to_be_visible()
            page.get_by_label("Token").fill(each)
            page.keyboard.press("Enter")
            expect(editor(other)).to_contain_text(text)
        assert other.evaluate("sessionStorage.length") == 0


def test_a_question_is_over_when_somebody_goes_elsewhere(page: Any, console: GatewayProcess) -> None:
    """Its answer would be for what is shown then."""
    console.execute("left-alone", "1")
    show(page, "left-alone")
    act(page, "left-alone", "Checkpoint…")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(row(page, "left-alone")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_session_that_was_shown_goes_on_being_listed(page: Any, console: GatewayProcess) -> None:
    console.execute("to-and-fro", "print('seen')")
    show(page, "to-and-fro")
    ended(cells(page).first)
    page.go_back()
    expect(row(page, "to-and-fro")).to_be_visible()
    page.go_forward()
    expect(cells(page).first).to_contain_text("seen")
