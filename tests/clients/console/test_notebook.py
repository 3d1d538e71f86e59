"""One session as a live notebook: what runs is seen as it runs, and as it ran."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.console.using import act, answer, cells, editor, ended, expect, run, show, tab, write
from tests.support.browser import link, opened
from tests.support.server import GatewayProcess, until

pytestmark = pytest.mark.usefixtures("quiet")

STEP = "import time, pathlib\nwhile not pathlib.Path({0!r}).exists(): time.sleep(0.02)\n"


def waiting(name: str, then: str) -> str:
    """Code that waits for a file before it goes on."""
    return STEP.format(name) + then + "\n"


def let_on(gateway: GatewayProcess, session: str, name: str) -> None:
    """Have code that waits for a file go on."""
    (gateway.workspace(session) / name).touch()


# ---- running ----------------------------------------------------------------------------------------------


def test_output_is_seen_as_it_comes(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "stream"})
    show(page, "stream")
    code = "print('one', flush=True)\n" + waiting("go", "print('two', flush=True)") + waiting("end", "")
    cell = run(page, code)
    expect(cell).to_contain_text("one")
    expect(cell.locator(".cell-status")).to_have_text("running")
    expect(page.locator(".session-head .state")).to_have_text("busy")
    let_on(console, "stream", "go")
    expect(cell).to_contain_text("two")
    expect(cell.locator(".cell-status")).to_have_text("running")
    let_on(console, "stream", "end")
    ended(cell)
    expect(editor(page).locator(".cm-placeholder")).to_be_visible()


def test_what_others_run_is_seen_too(page: Any, console: GatewayProcess) -> None:
    console.execute("shared", "print('before')")
    show(page, "shared")
    expect(cells(page).nth(0)).to_contain_text("before")
    console.execute("shared", "print('after')")
    expect(cells(page).nth(1)).to_contain_text("after")
    expect(cells(page).nth(1).locator(".source")).to_have_text("print('after')")


def test_a_question_is_answered_in_its_cell(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "asks"})
    show(page, "asks")
    cell = run(page, "name = input('Your name? ')\nprint('Hello', name)")
    field = cell.get_by_label("Your name?")
    expect(field).to_be_focused()
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    expect(cell).to_contain_text("Hello Ada")
    expect(cell.locator(".cell-outputs")).to_contain_text("Your name? Ada\nHello Ada\n")
    ended(cell)
    expect(field).to_have_count(0)


def test_a_password_is_not_shown(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "secretive"})
    show(page, "secretive")
    cell = run(page, "from getpass import getpass\nprint(len(getpass('Key: ')))")
    field = cell.get_by_label("Key:")
    expect(field).to_have_attribute("type", "password")
    field.fill("w0rd!")
    field.press("Enter")
    expect(cell.locator(".cell-outputs")).to_contain_text("Key: \n5\n")
    ended(cell)
    assert b"w0rd!" not in console.get("/v1/sessions/secretive/audit").body


def test_the_next_question_has_a_field_of_its_own(page: Any, console: GatewayProcess) -> None:
    """Also where it comes before the answer to the first one has arrived; and what was typed is not in it."""
    console.post("/v1/sessions", {"session": "asks-on"})
    show(page, "asks-on")
    cell = run(page, "print(input('First? '), input('Second? '))")
    held: list[Any] = []
    page.route("**/input", lambda route: held.append((route, route.fetch())), times=1)
    expect(cell.get_by_label("First?")).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Enter")
    second = cell.get_by_label("Second?")
    expect(second).to_have_value("")
    expect(second).to_be_focused()
    for route, response in held:
        route.fulfill(response=response)
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(cell).to_contain_text("one two")
    ended(cell)


def test_what_is_typed_between_questions_is_no_key_of_the_page(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "asks-slowly"})
    show(page, "asks-slowly")
    cell = run(page, "input('First? ')\nprint('between', flush=True)\n" + waiting("on", "input('Second? ')"))
    expect(cell.get_by_label("First?")).to_be_focused()
    page.keyboard.press("Enter")
    expect(cell.locator(".outputs")).to_contain_text("between")
    page.keyboard.type("pe?i")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("tab", name="Files")).to_be_visible()
    expect(cell).to_be_focused()
    let_on(console, "asks-slowly", "on")
    expect(cell.get_by_label("Second?")).to_be_focused()
    page.keyboard.press("Enter")
    ended(cell)
    page.keyboard.press("p")
    expect(page.get_by_role("tab", name="Files")).to_have_count(0)


def test_a_key_that_is_held_down_runs_a_cell_once(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "pressed"})
    show(page, "pressed")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/execute", hold)
    write(page, "print('once')")
    for _ in range(5):
        page.keyboard.press("Shift+Enter")
    expect(page.get_by_role("button", name="Run")).to_have_attribute("aria-busy", "true")
    for route in held:
        route.continue_()
    ended(cells(page).first)
    expect(editor(page)).not_to_contain_text("once")
    assert len(console.get("/v1/sessions/pressed/executions").json()["executions"]) == 1


def test_other_cells_are_sent_while_one_waits_for_its_answer(
    page: Any, console: GatewayProcess, quiet: list[str]
) -> None:
    """It may wait for a kernel, for minutes; what is sent meanwhile comes behind it."""
    console.post("/v1/sessions", {"session": "in-line"})
    show(page, "in-line")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/execute", hold, times=1)
    for word in ("one", "two", "three"):
        write(page, f"print('{word}')")
        page.keyboard.press("Shift+Enter")
    held[0].continue_()
    for place, word in enumerate(("one", "two", "three")):
        expect(cells(page).nth(place).locator(".outputs")).to_contain_text(word)
    expect(editor(page)).not_to_contain_text("three")
    # Chromium styles what replaces a selected text, and may not.
    assert all("inline style" in each for each in quiet)
    quiet.clear()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("gone", "The gateway did not answer"),
        ("broken", "The gateway did not answer"),
        (503, "The gateway refused the request"),
        (524, "The gateway refused the request"),
    ],
)
def test_a_cell_whose_answer_is_lost_runs_once(
    page: Any, console: GatewayProcess, quiet: list[str], how: str | int, words: str
) -> None:
    """It did arrive; whoever sends it again sees it, and no second one."""
    session = f"unsure-{how}"
    console.post("/v1/sessions", {"session": session})
    show(page, session)

    def lose(route: Any) -> None:
        answered = route.fetch()
        if how == "gone":
            route.abort()
        elif how == "broken":
            route.fulfill(response=answered, body=answered.body()[:10])
        else:
            route.fulfill(status=how, body="<h1>A proxy's page</h1>", content_type="text/html")

    page.route("**/execute", lose, times=1)
    write(page, "print('once')")
    page.keyboard.press("Shift+Enter")
    expect(page.get_by_text(words)).to_be_visible()
    ended(cells(page).first)
    expect(page.get_by_role("button", name="Run")).to_have_attribute("aria-busy", "false")
    editor(page).click()
    page.keyboard.press("Shift+Enter")
    expect(editor(page)).not_to_contain_text("once")
    assert len(console.get(f"/v1/sessions/{session}/executions").json()["executions"]) == 1
    quiet.clear()


def test_each_text_that_is_too_long_can_be_downloaded(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "both-long"})
    show(page, "both-long")
    code = "_ = [sys.{0}.write('x' * 99 + chr(10)) for _ in range(15_000)]\n"
    cell = run(page, "import sys\n" + "".join(map(code.format, ("stdout", "stderr", "stdout"))))
    for part in (1, 2):
        expect(
            cell.get_by_role("link", name=f"Download the whole text of stdout, part {part}")
        ).to_be_visible()
    with page.expect_download() as told:
        cell.get_by_role("link", name="Download the whole text of stderr").click()
    assert told.value.path().stat().st_size == 1_500_000


def test_a_cell_is_interrupted(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "held"})
    show(page, "held")
    cell = run(page, "import time\nprint('begun', flush=True)\ntime.sleep(600)")
    expect(cell).to_contain_text("begun")
    cell.get_by_role("button", name="Interrupt").click()
    ended(cell, "interrupted")
    expect(cell).to_contain_text("interrupted by you")
    expect(cell).to_contain_text("KeyboardInterrupt")


def test_an_error_names_the_line_of_its_own_cell(page: Any, console: GatewayProcess) -> None:
    console.execute("lines", "def divide(one, other):\n    return one / other")
    show(page, "lines")
    cell = run(page, "x = 1\n\ndivide(x, 0)")
    ended(cell, "raised")
    expect(cell.locator("summary")).to_have_text("ZeroDivisionError: division by zero line 3 of this cell")
    cell = run(page, "x = 1\nx = = 2")
    ended(cell, "raised")
    expect(cell.locator("summary")).to_contain_text("line 2 of this cell")


def test_a_waiting_cell_is_taken_out_of_the_queue(page: Any, console: GatewayProcess) -> None:
    execution = console.hold("queueing")
    show(page, "queueing")
    cell = run(page, "print('never')")
    expect(cell.locator(".cell-status")).to_have_text("waiting")
    expect(page.locator(".session-head")).to_contain_text("1 queued")
    cell.get_by_role("button", name="Cancel").click()
    ended(cell, "cancelled")
    console.answer("queueing", execution)


def test_a_deadline_counts_down(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "late", "limits": {"cell_timeout": 500}})
    show(page, "late")
    cell = run(page, "import time\ntime.sleep(600)")
    deadline = cell.locator(".deadline")
    expect(deadline).to_contain_text("8 min")
    first = deadline.inner_text()
    expect(deadline).not_to_have_text(first)
    cell.get_by_role("button", name="Interrupt").click()
    ended(cell, "interrupted")


def test_an_end_is_told_with_its_cause(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "ends"})
    show(page, "ends")
    cell = run(page, "import time\ntime.sleep(600)")
    expect(cell.locator(".cell-status")).to_have_text("running")
    act(page, "ends", "Restart")
    answer(page, "Restart")
    ended(cell, "interrupted")
    expect(cell).to_contain_text("the kernel was restarted")
    expect(run(page, "1")).to_contain_text("earlier variables are gone")


def test_an_ended_session_is_read_and_goes_on(page: Any, console: GatewayProcess) -> None:
    console.execute("former", "print('once')")
    console.delete("/v1/sessions/former")
    show(page, "former")
    expect(cells(page).first).to_contain_text("once")
    expect(page.get_by_label("New cell")).to_contain_text("This session has ended")
    cell = run(page, "print('again')")
    expect(cell).to_contain_text("again")
    expect(page.locator(".session-head .state")).to_have_text("idle")
    console.execute("former", "print('and again')")
    expect(cells(page).nth(2)).to_contain_text("and again")


# ---- writing ----------------------------------------------------------------------------------------------


def completes(console: GatewayProcess, key: str) -> None:
    """A kernel's first completion takes seconds of a processor: on a busy machine, too long for an answer."""
    path = f"/v1/sessions/{key}/complete"
    until(lambda: console.post(path, {"code": "a"}).status == 200, "the kernel completes nothing")


def test_tab_completes_what_the_kernel_knows(page: Any, console: GatewayProcess) -> None:
    console.execute("knows", "ünïque_name = 41")
    completes(console, "knows")
    show(page, "knows")
    write(page, "'𝄞' and ünïq")
    page.keyboard.press("Tab")
    expect(page.get_by_role("option", name="ünïque_name")).to_be_visible()
    page.wait_for_timeout(200)  # the editor takes no answer to what nobody can have read yet
    page.keyboard.press("Enter")
    expect(editor(page)).to_have_text("'𝄞' and ünïque_name")
    page.keyboard.insert_text(" + 1")
    page.keyboard.press("Shift+Enter")
    expect(cells(page).nth(1)).to_contain_text("42")


@pytest.mark.nightly
def test_names_are_offered_while_somebody_types(page: Any, console: GatewayProcess) -> None:
    console.execute("offers", "import math")
    completes(console, "offers")
    show(page, "offers")
    editor(page).click()
    page.keyboard.type("math.sq")
    expect(page.get_by_role("option", name="sqrt")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("option", name="sqrt")).to_have_count(0)
    expect(editor(page)).to_be_focused()


def test_kinds_of_names_that_objects_have_are_words_like_others(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "kinds"})
    show(page, "kinds")
    told = {"matches": ["one", "own"], "start": 0, "end": 1, "types": ["constructor", "__proto__"]}
    page.route("**/complete", lambda route: route.fulfill(json=told))
    write(page, "o")
    page.keyboard.press("Tab")
    expect(page.get_by_role("option", name="own")).to_be_visible()


def test_documentation_comes_up(page: Any, console: GatewayProcess) -> None:
    console.execute("tells", "def area(r):\n    'The area of a circle.'\n    return r")
    show(page, "tells")
    write(page, "area")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_label("Documentation")).to_contain_text("The area of a circle.")


def test_old_code_is_put_into_the_editor(page: Any, console: GatewayProcess) -> None:
    console.execute("reuses", "print('first')")
    show(page, "reuses")
    cell = cells(page).first
    cell.hover()
    cell.get_by_role("button", name="Put the code into the editor").click()
    expect(editor(page)).to_be_focused()
    expect(editor(page)).to_have_text("print('first')")
    page.keyboard.press("Shift+Enter")
    expect(cells(page)).to_have_count(2)


def test_a_link_leads_to_an_execution(page: Any, console: GatewayProcess) -> None:
    for number in range(60):
        console.execute("long-ago", f"print('cell {number}')")
    pages = console.get("/v1/sessions/long-ago/executions?limit=100").json()["executions"]
    wanted = pages[9]["execution"]
    show(page, "long-ago", wanted)
    cell = page.locator(f"#cell-{wanted}")
    expect(cell).to_be_in_viewport()
    expect(cell).to_contain_text("cell 9")
    expect(cell).to_have_class("cell cell-ok  cell-marked")
    show(page, "long-ago", pages[40]["execution"])
    expect(page.locator(f"#cell-{pages[40]['execution']}")).to_be_in_viewport()


# ---- a lost connection ------------------------------------------------------------------------------------


def test_a_lost_connection_is_caught_up_with(page: Any, console: GatewayProcess, quiet: list[str]) -> None:
    """What ran meanwhile is there once, in its order, and the running cell goes on where it was."""
    console.post("/v1/sessions", {"session": "lost"})
    show(page, "lost")
    cell = run(page, "print('before', flush=True)\n" + waiting("go", "print('after', flush=True)"))
    expect(cell).to_contain_text("before")
    page.context.set_offline(True)
    # Read aloud once, and not with each second that is counted.
    said = page.get_by_role("status").filter(has_text="The connection")
    expect(said).to_have_text("The connection to the gateway is lost.")
    let_on(console, "lost", "go")
    for number in range(5):
        console.execute("lost", f"print('missed {number}')")
    page.context.set_offline(False)
    expect(page.get_by_text("The connection to the gateway is lost")).to_have_count(0)
    expect(cells(page)).to_have_count(6)
    expect(cell).to_contain_text("after")
    assert cell.locator(".cell-outputs").inner_text().count("before") == 1
    for number in range(5):
        expect(cells(page).nth(number + 1)).to_contain_text(f"missed {number}")
    console.execute("lost", "print('live again')")
    expect(cells(page).nth(6)).to_contain_text("live again")
    assert {"net::ERR" in each for each in quiet} == {True}
    quiet.clear()


# ---- going back and branching -----------------------------------------------------------------------------


def test_a_cell_is_undone(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "undoes", "checkpoint": "auto"})
    show(page, "undoes")
    ended(run(page, "x = 1"))
    spoilt = run(page, "x = 'spoilt'")
    ended(spoilt)
    until(lambda: len(checkpoints(console, "undoes")) == 3, "there are no checkpoints")
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(spoilt.get_by_text("undone")).to_be_visible()
    expect(run(page, "x")).to_contain_text("1")
    page.reload()
    expect(cells(page).nth(1).get_by_text("undone")).to_be_visible()
    expect(cells(page).nth(2).get_by_text("undone")).to_have_count(0)


def test_the_key_that_undoes_asks_first(page: Any, console: GatewayProcess) -> None:
    """It is a letter like any other, and the field that it was meant for may have gone."""
    console.post("/v1/sessions", {"session": "asked", "checkpoint": "auto"})
    show(page, "asked")
    cell = run(page, "x = 1")
    ended(cell)
    until(lambda: len(checkpoints(console, "asked")) == 2, "there are no checkpoints")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    expect(page.get_by_role("dialog")).to_contain_text("Undo the last cell?")
    answer(page, "Undo")
    expect(cell.get_by_text("undone")).to_be_visible()


def checkpoints(gateway: GatewayProcess, session: str) -> list[str]:
    answer = gateway.get(f"/v1/sessions/{session}/checkpoints")
    assert answer.status == 200, answer.body
    return [each["name"] for each in answer.json()["checkpoints"]]


def test_a_checkpoint_is_made_and_gone_back_to(page: Any, console: GatewayProcess) -> None:
    console.execute("points", "x = 1")
    show(page, "points")
    expect(cells(page).first).to_contain_text("x = 1")
    panel = tab(page, "Tree")
    panel.get_by_role("button", name="Checkpoint").click()
    answer(page, "Make", Name="good")
    expect(panel.get_by_role("listitem").filter(has_text="good")).to_be_visible()
    ended(run(page, "x = 2"))
    panel.get_by_role("button", name="Actions for checkpoint good").click()
    page.get_by_role("menuitem", name="Go back").click()
    answer(page, "Go back")
    expect(cells(page).nth(1).get_by_text("undone")).to_be_visible()
    assert console.execute("points", "x")["text"] == "1"


def test_a_branch_is_made_and_compared(page: Any, console: GatewayProcess) -> None:
    console.execute("stem", "x = 1")
    show(page, "stem")
    act(page, "stem", "Branch")
    answer(page, "Branch", Key="twig")
    expect(page.get_by_role("heading", name="twig")).to_be_visible()
    ended(run(page, "print('of the branch', x + 1)"))
    console.execute("stem", "print('of the stem', x - 1)")
    panel = tab(page, "Tree")
    panel.get_by_role("button", name="Compare with stem").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("region", name="twig")).to_contain_text("of the branch 2")
    stem = dialog.get_by_role("region", name="stem")
    expect(stem).to_contain_text("of the stem 0")
    expect(stem).not_to_contain_text("x = 1")


def test_a_branch_begins_with_the_cells_of_its_parent(page: Any, console: GatewayProcess) -> None:
    """Open as long as the branch has run nothing; their numbers go on."""
    console.execute("root", "print('of the root')")
    console.execute("root", "x = 2")
    console.post("/v1/sessions/root/branch", {"session": "shoot"})
    console.execute("root", "print('later')")
    show(page, "shoot")
    before = page.get_by_role("region", name="Cells before this branch")
    expect(before).to_contain_text("of the root")
    expect(before.locator(".cell-gutter")).to_have_text(["[1]", "[2]"])
    expect(before).not_to_contain_text("later")
    ended(run(page, "print('own', x)"))
    expect(cells(page)).to_have_count(1)
    expect(cells(page).locator(".cell-gutter")).to_have_text("[3]")
    # What is heard is what is seen.
    expect(cells(page)).to_have_attribute("aria-label", "Cell 3, done")
    page.reload()
    expect(before).to_have_count(0)
    page.get_by_text("2 cells before this branch of root").click()
    before.get_by_role("link", name="Cell 1 of root").click()
    expect(page.locator(".cell-marked")).to_contain_text("of the root")
    expect(page.get_by_role("heading", name="root")).to_be_visible()


def test_cells_are_counted_by_one_number(page: Any, console: GatewayProcess) -> None:
    """In the list, in the head and for programs: undone ones too, without those before a branch."""
    console.post("/v1/sessions", {"session": "bole", "checkpoint": "auto"})
    for code in ("x = 1", "x = 2", "x = 3"):
        console.execute("bole", code)
    console.post("/v1/sessions/bole/undo")
    console.post("/v1/sessions/bole/branch", {"session": "bough"})
    console.execute("bough", "x")
    page.reload()
    for session, count, words in (("bole", 3, "3 cells"), ("bough", 1, "1 cell")):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=session, exact=True))
        expect(row.locator("td.number.small").last).to_have_text(str(count))
        assert console.get(f"/v1/sessions/{session}?usage=true").json()["executions"] == count
        show(page, session)
        expect(cells(page)).to_have_count(count)
        expect(page.locator(".facts").get_by_text(words, exact=True)).to_be_visible()
        page.get_by_role("link", name="All sessions").click()


def test_what_differs_between_branches_is_marked_and_one_is_kept(page: Any, console: GatewayProcess) -> None:
    console.execute("trunk", "x = 1")
    console.post("/v1/sessions/trunk/branch", {"session": "sprig"})
    for session, code in (("trunk", "x = 2"), ("sprig", "x = 3")):
        console.execute(session, code)
        console.execute(session, "print('x is', x)")
        console.execute(session, "print('as ever')")
    show(page, "sprig")
    tab(page, "Tree").get_by_role("button", name="Compare with trunk").click()
    dialog = page.get_by_role("dialog")
    for session in ("sprig", "trunk"):
        marks = dialog.get_by_role("region", name=session).locator(".compared .tag")
        expect(marks).to_have_text(["only here", "same code, another output", "the same"])
    dialog.get_by_role("region", name="trunk").get_by_role("button", name="Keep this one").click()
    answer(page, "End session")
    expect(page.get_by_role("heading", level=1, name="trunk")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert console.model("sprig")["state"] == "ended"
    assert console.model("trunk")["state"] == "idle"


# ---- panels -----------------------------------------------------------------------------------------------


def test_variables_follow_the_cells(page: Any, console: GatewayProcess) -> None:
    console.execute("holds", "prices = [1, 2, 3]")
    show(page, "holds")
    panel = tab(page, "Variables")
    variable = panel.get_by_role("listitem").filter(has_text="prices")
    expect(variable).to_contain_text("list")
    ended(run(page, "second = 2"))
    expect(panel.get_by_role("listitem").filter(has_text="second")).to_be_visible()
    variable.get_by_role("button", name="prices").click()
    expect(panel.get_by_label("About prices")).to_contain_text("list")


def test_the_record_is_verified_in_the_browser(page: Any, console: GatewayProcess) -> None:
    console.execute("proves", "print('a fact')")
    show(page, "proves")
    panel = tab(page, "Record")
    panel.get_by_role("button", name="Verify").click()
    expect(panel).to_contain_text("Valid")
    with page.expect_download() as download:
        panel.get_by_role("link", name="Notebook", exact=True).click()
    assert b"a fact" in download.value.path().read_bytes()


def test_markup_of_code_and_outputs_stays_text(page: Any, console: GatewayProcess) -> None:
    hostile = "<img src=x onerror=document.title='taken'>"
    console.execute("hostile", f"print({hostile!r}) # {hostile}")
    console.execute(
        "hostile", f"open({('n' + hostile.replace('/', ''))!r}, 'w').close()\nraise ValueError({hostile!r})"
    )
    show(page, "hostile")
    expect(cells(page).first.locator(".source")).to_contain_text(hostile)
    expect(cells(page).nth(1)).to_contain_text(hostile)
    tab(page, "Files")
    expect(page.get_by_role("tabpanel")).to_contain_text(hostile)
    expect(page.locator("img[src=x]")).to_have_count(0)
    assert "taken" not in page.title()


def test_two_pages_of_one_session_show_the_same(page: Any, browser: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "both"})
    show(page, "both")
    with opened(browser) as other:
        other.goto(link(console, "#/sessions/both"))
        ended(run(page, "print('from the first')"))
        expect(cells(other).first).to_contain_text("from the first")
        ended(run(other, "print('from the second')"))
        expect(cells(page).nth(1)).to_contain_text("from the second")
