"""Notebooks of a session's workspace in the console: opened, edited, put in order, run and saved."""

from __future__ import annotations

import json
from typing import Any

import nbformat
import pytest

from cellgate.record.verify.notebooks import check_notebook
from tests.clients.console.using import act, answer, expect, run, show, tab
from tests.support.server import GatewayProcess, until

pytestmark = pytest.mark.usefixtures("quiet")

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "head", "metadata": {}, "source": "# Rivers\n\nHow *long* they are."},
        {"cell_type": "code", "id": "load", "metadata": {}, "execution_count": None, "outputs": [],
         "source": ["lengths = [6650, ", "6400]\n", "len(lengths)"]},
        {"cell_type": "code", "id": "sum", "metadata": {"tags": ["kept"]}, "source": "print(sum(lengths))",
         "execution_count": 7,
         "outputs": [{"output_type": "stream", "name": "stdout", "text": ["of ", "old\n"]}]},
    ],
    "metadata": {"kernelspec": {"name": "other", "display_name": "Other"}, "own": 1},
    "nbformat": 4,
    "nbformat_minor": 5,
}  # fmt: skip
SCRIPT = "import math\n\n# %% [markdown]\n# The *area*\n#\n# of a circle.\n\n# %% area\nmath.pi * 2 ** 2\n"
TEXT = "# Title\n\n```python\na = 1\na + 1\n```\n\nThen:\n\n```sh\nls\n```\n\n~~~py\na + 2\n~~~\n"


def put(console: GatewayProcess, session: str, path: str, given: object) -> None:
    body = given if isinstance(given, str) else json.dumps(given)
    answered = console.request("PUT", f"/v1/sessions/{session}/files/{path}", body.encode())
    assert answered.status in {200, 201}


def saved(console: GatewayProcess, session: str, path: str) -> Any:
    """The notebook as it is in the workspace, valid by nbformat's own schema."""
    found = json.loads(console.get(f"/v1/sessions/{session}/files/{path}").body)
    nbformat.validate(found)
    return found


def sources(notebook: Any) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def opened(page: Any, console: GatewayProcess, session: str, path: str, given: object) -> None:
    """Put a file into a session of its own, and open it from the list."""
    put(console, session, path, given)
    show(page, session)
    tab(page, "Files").get_by_role("link", name=path).click()
    expect(page.get_by_role("heading", name=path)).to_be_visible()


def cell(page: Any, number: int) -> Any:
    return page.get_by_role("feed", name="Cells of the notebook").get_by_role("article").nth(number - 1)


def count(page: Any) -> Any:
    return page.get_by_role("feed", name="Cells of the notebook").get_by_role("article")


def is_saved(page: Any) -> None:
    expect(page.get_by_role("toolbar", name="Notebook").get_by_text("saved", exact=True)).to_be_visible()


def written(page: Any) -> Any:
    """The editor of the cell that is written."""
    return page.locator(".notebook-cell .cm-content")


def write(page: Any, code: str) -> None:
    expect(written(page)).to_be_focused()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(code)


def test_a_notebook_opens_and_runs(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "rivers", "rivers.ipynb", NOTEBOOK)
    expect(count(page)).to_have_count(3)
    expect(page.frame_locator(".notebook-cell iframe").get_by_role("heading", name="Rivers")).to_be_visible()
    expect(cell(page, 3)).to_contain_text("of old")
    assert console.get("/v1/sessions/rivers/executions").json()["executions"] == []
    page.get_by_role("button", name="Run all").click()
    expect(cell(page, 2)).to_contain_text("done")
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("13050")
    expect(cell(page, 3).locator(".cell-gutter")).to_have_text("[2]")
    is_saved(page)
    until(lambda: saved(console, "rivers", "rivers.ipynb")["cells"][2]["outputs"], "no outputs are saved")
    kept = saved(console, "rivers", "rivers.ipynb")
    assert sources(kept) == sources(NOTEBOOK)
    assert kept["metadata"]["kernelspec"]["name"] == "other"
    assert kept["metadata"]["own"] == 1
    head, load, total = kept["cells"]
    assert (head["id"], load["id"], total["id"]) == ("head", "load", "sum")
    assert load["outputs"] == [
        {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}, "execution_count": 1}
    ]
    assert total["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "13050\n"}]
    assert total["metadata"]["tags"] == ["kept"]
    recorded = console.get("/v1/sessions/rivers/notebook").json()
    assert sources(recorded) == sources(kept)[1:]
    assert [each["metadata"]["cellgate"]["execution"] for each in recorded["cells"]] == [
        each["metadata"]["cellgate"]["execution"] for each in kept["cells"][1:]
    ]


def test_outputs_are_there_again_when_the_page_is(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "again", "a.ipynb", "")
    cell(page, 1).press("Enter")
    write(page, "print('from the record')")
    page.keyboard.press("Shift+Enter")
    expect(cell(page, 1).locator(".cell-outputs")).to_contain_text("from the record")
    is_saved(page)
    page.reload()
    expect(cell(page, 1)).to_contain_text("done")
    expect(cell(page, 1).locator(".cell-outputs")).to_contain_text("from the record")
    assert len(console.get("/v1/sessions/again/executions").json()["executions"]) == 1


def test_a_cell_is_changed_in_place_and_run_again(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "in-place", "a.ipynb", NOTEBOOK)
    page.get_by_role("button", name="Run all").click()
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("13050")
    cell(page, 3).dblclick()
    write(page, "max(lengths)")
    page.keyboard.press("Escape")
    expect(cell(page, 3)).to_be_focused()
    expect(cell(page, 3)).to_contain_text("changed since it ran")
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("13050")
    page.keyboard.press("Shift+Enter")
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("6650")
    expect(cell(page, 3).locator(".cell-gutter")).to_have_text("[3]")
    expect(cell(page, 3)).not_to_contain_text("changed since it ran")
    cell(page, 3).get_by_role("button", name="Actions for cell 3").click()
    page.get_by_role("menuitem", name="Show it in the record").click()
    expect(page.locator(".cell-marked")).to_contain_text("max(lengths)")
    expect(page.get_by_role("article")).to_have_count(3)


def test_runs_of_a_cell_lead_to_each_other(page: Any, console: GatewayProcess) -> None:
    """As they come and when the page is opened anew; a cell of the record that runs again is one, too."""
    opened(page, console, "runs", "a.ipynb", NOTEBOOK)
    page.get_by_role("button", name="Run all").click()
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("13050")
    cell(page, 3).get_by_role("button", name="Run this cell").click()
    expect(cell(page, 3).locator(".cell-gutter")).to_have_text("[3]")
    page.get_by_role("link", name="What ran").click()
    expect(run(page, "print('own')")).to_contain_text("own")
    page.get_by_role("article").nth(3).focus()
    page.keyboard.press("r")
    for _ in range(2):
        heads = page.get_by_role("article").locator(".cell-head")
        expect(heads).to_have_count(5)
        expect(heads.nth(1)).to_contain_text("ran again, see [3]")
        expect(heads.nth(2)).to_contain_text("again: [2]")
        expect(heads.nth(3)).to_contain_text("ran again, see [5]")
        expect(heads.nth(4)).to_contain_text("again: [4]")
        expect(heads.nth(0)).not_to_contain_text("again")
        page.reload()
    heads.nth(1).get_by_role("link", name="Cell 3").click()
    expect(page.locator(".cell-marked .cell-gutter")).to_have_text("[3]")


def test_a_notebook_is_exported_with_a_seal(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "sealed", "a.ipynb", NOTEBOOK)
    page.get_by_role("button", name="Run all").click()
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("13050")
    cell(page, 3).focus()
    page.keyboard.press("Alt+ArrowUp")
    is_saved(page)
    until(
        lambda: "13050" in json.dumps(saved(console, "sealed", "a.ipynb")["cells"][1]),
        "the order is not saved",
    )
    page.get_by_role("button", name="Actions for the notebook").click()
    with page.expect_download() as told:
        page.get_by_role("menuitem", name="Export with a seal").click()
    data = told.value.path().read_bytes()
    assert sources(json.loads(data)) == sources(saved(console, "sealed", "a.ipynb"))
    assert (
        check_notebook(data, "a").checked == "notebook, 3 cells as its author arranged them, of which 2 ran"
    )
    with page.expect_download() as told:
        tab(page, "Record").get_by_role("link", name="Notebook as arranged").click()
    assert check_notebook(told.value.path().read_bytes(), "a").valid


def test_the_cells_behind_one_that_fails_do_not_run(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "fails", "a.py", "# %%\nx = 1\n# %%\n1 / 0\n# %%\nx = 2\n# %%\nx = 3\n")
    page.get_by_role("button", name="Run all").click()
    expect(page.get_by_text("The 2 cells behind it were not run")).to_be_visible()
    expect(cell(page, 2)).to_contain_text("ZeroDivisionError")
    assert len(console.get("/v1/sessions/fails/executions").json()["executions"]) == 2
    cell(page, 3).get_by_role("button", name="Actions for cell 3").click()
    page.get_by_role("menuitem", name="Run from here").click()
    expect(cell(page, 4)).to_contain_text("done")
    codes = [
        "".join(each["source"])
        for each in console.get("/v1/sessions/fails/notebook?undone=true").json()["cells"]
    ]
    assert codes == ["x = 1", "1 / 0", "x = 2", "x = 3"]


def test_cells_go_on_running_while_something_else_is_looked_at(page: Any, console: GatewayProcess) -> None:
    waits = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\n"
    opened(page, console, "goes-on", "a.py", f"# %%\n{waits}# %%\nprint('after')\n")
    page.get_by_role("button", name="Run all").click()
    expect(cell(page, 1)).to_contain_text("running")
    expect(cell(page, 2)).to_contain_text("waiting")
    page.get_by_role("link", name="What ran").click()
    expect(page.locator(".cell-running")).to_have_count(1)
    put(console, "goes-on", "go", "")
    expect(page.get_by_role("article").nth(1)).to_contain_text("after")
    page.go_back()
    expect(cell(page, 2).locator(".cell-outputs")).to_contain_text("after")


def test_stop_ends_the_cell_and_those_that_wait(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "stops", "a.py", "# %%\nimport time\ntime.sleep(600)\n# %%\nx = 1\n")
    page.get_by_role("button", name="Run all").click()
    expect(cell(page, 1)).to_contain_text("running")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(cell(page, 1)).to_contain_text("interrupted by you")
    assert len(console.get("/v1/sessions/stops/executions").json()["executions"]) == 1


def test_a_question_is_answered_in_the_notebook(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "asks-there", "a.py", "name = input('Who? ')\nprint('Hello', name)")
    page.get_by_role("button", name="Run all").click()
    cell(page, 1).get_by_label("Who?").fill("Ada")
    page.keyboard.press("Enter")
    expect(cell(page, 1)).to_contain_text("Hello Ada")


def test_keys_put_cells_in_order(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "keys", "a.ipynb", NOTEBOOK)
    cell(page, 1).focus()
    for key in ("ArrowDown", "j"):
        page.keyboard.press(key)
    expect(cell(page, 3)).to_be_focused()
    page.keyboard.press("Alt+ArrowUp")
    expect(cell(page, 2)).to_contain_text("print(sum(lengths))")
    expect(cell(page, 2)).to_be_focused()
    page.keyboard.press("b")
    write(page, "new = 1")
    page.keyboard.press("Escape")
    expect(cell(page, 3)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("d")
    expect(count(page)).to_have_count(3)
    expect(cell(page, 2)).to_be_focused()
    page.keyboard.press("z")
    expect(count(page)).to_have_count(4)
    page.keyboard.press("m")
    expect(cell(page, 2)).to_have_attribute("aria-label", "Cell 2, text")
    page.keyboard.press("y")
    is_saved(page)
    head = "".join(NOTEBOOK["cells"][0]["source"])  # type: ignore[index]
    expected = [head, "print(sum(lengths))", "new = 1", "lengths = [6650, 6400]\nlen(lengths)"]
    until(lambda: sources(saved(console, "keys", "a.ipynb")) == expected, "the order is not saved")


def test_text_is_written_and_drawn(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "text", "a.ipynb", "")
    page.get_by_role("button", name="Text", exact=True).click()
    page.get_by_role("textbox", name="Text of cell 2").fill("## Why\n\n$x^2$")
    page.keyboard.press("Escape")
    expect(page.frame_locator(".notebook-cell iframe").get_by_role("heading", name="Why")).to_be_visible()
    is_saved(page)
    assert sources(saved(console, "text", "a.ipynb")) == ["", "## Why\n\n$x^2$"]


@pytest.mark.parametrize(
    ("path", "text", "cells"),
    [
        ("a.py", SCRIPT, [("code", "import math"), ("markdown", "The *area*\n\nof a circle."),
                          ("code", "math.pi * 2 ** 2")]),
        ("a.py", "# ---\n# jupyter: 1\n# ---\nx = 1\n\n\ny = 2", [("code", "x = 1\n\n\ny = 2")]),
        ("a.md", TEXT, [("markdown", "# Title"), ("code", "a = 1\na + 1"),
                        ("markdown", "Then:\n\n```sh\nls\n```"), ("code", "a + 2")]),
        ("a.md", "```{code-cell} ipython3\n1\n```", [("code", "1")]),
        ("a.md", "text\n```python\nnever closed", [("markdown", "text"), ("code", "never closed")]),
        ("a.ipynb", json.dumps({"nbformat": 4, "cells": [{"cell_type": "odd", "id": "?", "source": 5}, 7]}),
         [("raw", ""), ("raw", "")]),
        ("a.py", "\ufeffa\r\nb", [("code", "a\nb")]),
        ("a.md", "", [("code", "")]),
    ],
)  # fmt: skip
def test_files_have_cells(page: Any, path: str, text: str, cells: list[tuple[str, str]]) -> None:
    body = """async ([path, text]) => {
      const { read } = await import(new URL("console/app/notebook_file.js", document.baseURI).href);
      return read(path, text).cells.map(({ kind, source }) => [kind, source]);
    }"""
    assert [tuple(each) for each in page.evaluate(body, [path, text])] == cells


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "This is no notebook"),
        ("[]", "it has no cells of nbformat 4"),
        ('{"nbformat": 3, "worksheets": []}', "cellgate run"),
        (json.dumps({"nbformat": 4, "cells": [{}] * 2001}), "2001 cells; 2000 can be opened"),
    ],
)
def test_what_is_no_notebook_is_told(page: Any, console: GatewayProcess, text: str, said: str) -> None:
    opened(page, console, "no-notebook", "a.ipynb", text)
    expect(page.get_by_role("alert").filter(has_text=said)).to_be_visible()
    assert console.get("/v1/sessions/no-notebook/files/a.ipynb").body.decode() == text


def test_a_file_that_is_too_large_is_not_read(page: Any, console: GatewayProcess) -> None:
    console.execute("huge", "open('a.ipynb', 'wb').truncate(33 * 1024 * 1024)")
    show(page, "huge")
    tab(page, "Files").get_by_role("link", name="a.ipynb").click()
    expect(page.get_by_role("alert").filter(has_text="too large to be opened here")).to_be_visible()


def is_refused_once(quiet: list[str]) -> None:
    """The browser complains of a file that was not written; take that out."""
    # Completions that the kernel has no time for are refused as well, by 409.
    (complaint,) = (each for each in quiet if "409" not in each)
    assert "412" in complaint
    quiet.clear()


def test_a_script_is_saved_as_a_notebook_beside_it(
    page: Any, console: GatewayProcess, quiet: list[str]
) -> None:
    put(console, "beside", "a.ipynb", NOTEBOOK)
    opened(page, console, "beside", "a.py", "x = 1")
    cell(page, 1).press("Enter")
    write(page, "x = 2")
    expect(page.get_by_text("There is a file a.ipynb already.")).to_be_visible()
    assert sources(saved(console, "beside", "a.ipynb")) == sources(NOTEBOOK)
    page.get_by_role("button", name="Replace it").click()
    is_saved(page)
    assert sources(saved(console, "beside", "a.ipynb")) == ["x = 2"]
    assert console.get("/v1/sessions/beside/files/a.py").body == b"x = 1"
    is_refused_once(quiet)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_others_wrote_is_not_written_over(
    page: Any, console: GatewayProcess, quiet: list[str], keeps: bool
) -> None:
    session = f"others-{keeps}"
    opened(page, console, session, "a.ipynb", "")
    expect(cell(page, 1)).to_contain_text("No code yet")
    other = {**NOTEBOOK, "cells": NOTEBOOK["cells"][:1]}  # type: ignore[index]
    put(console, session, "a.ipynb", other)
    cell(page, 1).press("Enter")
    write(page, "mine")
    expect(page.get_by_text("The file was changed elsewhere.")).to_be_visible()
    assert sources(saved(console, session, "a.ipynb")) == sources(other)
    page.get_by_role("button", name="Keep what is here" if keeps else "Read it again").click()
    is_saved(page)
    assert sources(saved(console, session, "a.ipynb")) == (["mine"] if keeps else sources(other))
    expect(cell(page, 1)).to_have_attribute("aria-label", "Cell 1, code" if keeps else "Cell 1, text")
    is_refused_once(quiet)


def test_what_others_write_while_it_is_saved_is_not_written_over(
    page: Any, console: GatewayProcess, quiet: list[str]
) -> None:
    """Another page's notebook arrives when this one's is on its way."""
    opened(page, console, "saved-at-once", "a.ipynb", "")
    expect(cell(page, 1)).to_contain_text("No code yet")

    sent: list[str] = []

    def on_its_way(route: Any) -> None:
        if route.request.method == "PUT" and not sent:
            put(console, "saved-at-once", "a.ipynb", NOTEBOOK)
            sent.append(route.request.headers["if-match"])
        route.continue_()

    page.route("**/a.ipynb*", on_its_way)
    cell(page, 1).press("Enter")
    write(page, "mine")
    expect(page.get_by_text("The file was changed elsewhere.")).to_be_visible()
    assert sources(saved(console, "saved-at-once", "a.ipynb")) == sources(NOTEBOOK)
    is_refused_once(quiet)


def test_what_ran_is_arranged_as_a_notebook(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "arranged", "metadata": {"title": "Rivers/2026"}})
    show(page, "arranged")
    expect(run(page, "a = 20")).to_contain_text("done")
    expect(run(page, "print(a + 1)")).to_contain_text("21")
    sealed = console.get("/v1/sessions/arranged/notebook").json()
    act(page, "arranged", "Arrange as a notebook")
    answer(page, "Make")
    expect(page.get_by_role("heading", name="Rivers-2026.ipynb")).to_be_visible()
    expect(cell(page, 2).locator(".cell-outputs")).to_contain_text("21")
    cell(page, 2).focus()
    page.keyboard.press("Alt+ArrowUp")
    is_saved(page)
    until(
        lambda: sources(saved(console, "arranged", "Rivers-2026.ipynb")) == ["print(a + 1)", "a = 20"],
        "the order is not saved",
    )
    assert "cellgate" not in saved(console, "arranged", "Rivers-2026.ipynb")["metadata"]
    assert sources(console.get("/v1/sessions/arranged/notebook").json()) == sources(sealed)


def test_a_notebook_begins_empty(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "empty"})
    show(page, "empty")
    tab(page, "Files").get_by_role("button", name="New notebook").click()
    answer(page, "Make", Name="analysis")
    expect(page.get_by_role("heading", name="analysis.ipynb")).to_be_visible()
    cell(page, 1).press("Enter")
    write(page, "6 * 7")
    page.keyboard.press("Shift+Enter")
    expect(cell(page, 1)).to_contain_text("42")
    expect(written(page)).to_be_focused()
    expect(count(page)).to_have_count(2)


def test_of_an_ended_session_it_is_read_only(page: Any, console: GatewayProcess) -> None:
    opened(page, console, "over", "a.ipynb", NOTEBOOK)
    page.get_by_role("button", name="Run all").click()
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("13050")
    is_saved(page)
    console.delete("/v1/sessions/over")
    expect(page.get_by_role("button", name="Run all")).to_have_count(0)
    expect(cell(page, 3).locator(".cell-outputs")).to_contain_text("13050")
    expect(cell(page, 3).get_by_role("button", name="Edit")).to_have_count(0)
    assert console.get("/v1/sessions/over").json()["state"] == "ended"
