"""The panel of files: by drag and drop, by its buttons, and by what cells write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.using import answer, cells, ended, expect, run, show, tab
from tests.conftest import serving
from tests.support.browser import link, opened
from tests.support.server import TOKEN, GatewayProcess
from tests.support.users import add_user, create_token

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def others(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with users."""
    with serving(tmp_path_factory.mktemp("others") / "data", "sandbox", pool_size=1) as gateway:
        yield gateway


DROP = """
(element, files) => {
  const dropped = new DataTransfer();
  for (const [name, text] of files) dropped.items.add(new File([text], name));
  for (const type of ["dragenter", "dragover", "drop"])
    element.dispatchEvent(new DragEvent(type, {dataTransfer: dropped, bubbles: true, cancelable: true}));
}
"""


def entry(page: Any, name: str) -> Any:
    return page.get_by_role("listitem").filter(has=page.locator(".name", has_text=name))


def drop(page: Any, *files: tuple[str, str]) -> None:
    page.locator(".files").evaluate(DROP, list(files))


def choose(page: Any, name: str, action: str) -> None:
    page.get_by_role("button", name=f"Actions for {name}").click()
    page.get_by_role("menuitem", name=action).click()


def test_files_are_dropped_and_read_by_a_cell(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "dropped"})
    show(page, "dropped")
    tab(page, "Files")
    expect(page.get_by_text("No files yet")).to_be_visible()
    drop(page, ("a b.csv", "x,y\n1,2\n"), ("ü#?.txt", "second"))
    expect(entry(page, "a b.csv")).to_be_visible()
    expect(entry(page, "ü#?.txt")).to_be_visible()
    cell = run(page, "print(open('a b.csv').read(), open('ü#?.txt').read())")
    ended(cell)
    expect(cell).to_contain_text("second")


MANY = """async () => {
  const { contentsOf } = await import(new URL("console/app/files.js", document.baseURI).href);
  const file = { isFile: true, name: "x", file: (done) => done(new File([], "x")) };
  const batches = [Array(1001).fill(file), []];
  const reader = { readEntries: (done) => done(batches.shift()) };
  const folder = { isDirectory: true, name: "d", createReader: () => reader };
  const dropped = { items: [{ webkitGetAsEntry: () => folder }], files: [] };
  return contentsOf(dropped).catch((error) => error.message);
}"""


def test_more_files_than_are_uploaded_are_refused_and_not_left_out(page: Any) -> None:
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    assert "More than 1,000 files at once" in page.evaluate(MANY)


def test_they_are_refused_without_a_folder_too(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "crowded"})
    show(page, "crowded")
    tab(page, "Files")
    expect(page.get_by_text("No files yet")).to_be_visible()
    drop(page, *((f"{number}.txt", "x") for number in range(1001)))
    expect(page.get_by_text("More than 1,000 files at once")).to_be_visible()
    assert console.get("/v1/sessions/crowded/files").json()["files"] == []


def test_an_upload_goes_where_it_was_begun(browser: Any, others: GatewayProcess, quiet: list[str]) -> None:
    """An administrator drops files into another's session, and goes on to their own of the same name."""
    add_user(others, "ada")
    _, token = create_token(others, "ada")
    for each in (token, TOKEN):
        assert others.post("/v1/sessions", {"session": "same"}, token=each).status == 201
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    with opened(browser) as page:
        page.goto(link(others, "#/sessions/same?principal=ada"))
        tab(page, "Files")
        expect(page.get_by_text("No files yet")).to_be_visible()
        page.route("**/files/one.txt*", hold)
        drop(page, ("one.txt", "1"), ("two.txt", "2"))
        expect(page.get_by_role("progressbar", name="Upload of one.txt")).to_be_visible()
        show(page, "same")
        expect(page.get_by_text("No files yet")).to_be_visible()
        with page.expect_response("**/files/two.txt*"):
            held[0].continue_()

    def names(query: str) -> list[str]:
        listed = others.get(f"/v1/sessions/same/files{query}").json()["files"]
        return [each["path"] for each in listed]

    assert names("?principal=ada") == ["one.txt", "two.txt"]
    assert names("") == []


def test_a_file_that_is_there_is_replaced_after_a_question(page: Any, console: GatewayProcess) -> None:
    console.request("PUT", "/v1/sessions/replaces/files/data.txt", b"old")
    show(page, "replaces")
    tab(page, "Files")
    expect(entry(page, "data.txt")).to_be_visible()
    drop(page, ("data.txt", "new"))
    expect(page.get_by_role("dialog")).to_contain_text("Replace data.txt?")
    answer(page, "Cancel")
    assert console.get("/v1/sessions/replaces/files/data.txt").body == b"old"
    drop(page, ("data.txt", "new"))
    answer(page, "Replace")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("list", name="Uploads")).to_have_count(0)
    assert console.get("/v1/sessions/replaces/files/data.txt").body == b"new"


def test_files_are_renamed_downloaded_and_deleted(page: Any, console: GatewayProcess) -> None:
    console.request("PUT", "/v1/sessions/kept/files/one.txt", b"1")
    show(page, "kept")
    tab(page, "Files")
    choose(page, "one.txt", "Rename")
    answer(page, "Rename", New_path="sub/two.txt")
    entry(page, "sub").get_by_role("button", name="sub", exact=True).click()
    with page.expect_download() as download:
        entry(page, "two.txt").get_by_role("link", name="two.txt").click()
    assert download.value.path().read_bytes() == b"1"
    choose(page, "two.txt", "Delete")
    expect(page.get_by_role("dialog")).to_contain_text("Delete two.txt?")
    answer(page, "Delete")
    expect(page.get_by_text("This folder is empty")).to_be_visible()
    assert console.get("/v1/sessions/kept/files/sub/two.txt").status == 404


def test_folders_are_made_and_uploaded_into(page: Any, console: GatewayProcess, tmp_path: Path) -> None:
    console.post("/v1/sessions", {"session": "folders"})
    show(page, "folders")
    tab(page, "Files")
    page.get_by_role("button", name="New folder").click()
    answer(page, "Make", Name="made")
    entry(page, "made").get_by_role("button", name="made", exact=True).click()
    (tmp_path / "chosen.txt").write_text("chosen")
    page.locator("input[type=file]").set_input_files(tmp_path / "chosen.txt")
    expect(entry(page, "chosen.txt")).to_be_visible()
    expect(page.get_by_role("list", name="Uploads")).to_have_count(0)
    assert console.get("/v1/sessions/folders/files/made/chosen.txt").body == b"chosen"


def test_what_a_cell_writes_is_listed(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "writes"})
    show(page, "writes")
    tab(page, "Files")
    expect(page.get_by_text("No files yet")).to_be_visible()
    cell = run(page, "open('made.txt', 'w').write('by a cell')")
    expect(entry(page, "made.txt")).to_be_visible()
    expect(cells(page).first).to_contain_text("made.txt")
    ended(cell)


def test_an_upload_that_is_too_large_is_told(page: Any, console: GatewayProcess, quiet: list[str]) -> None:
    console.post("/v1/sessions", {"session": "full", "limits": {"disk": "1m"}})
    show(page, "full")
    tab(page, "Files")
    drop(page, ("large.bin", "x" * 1_500_000))
    expect(page.get_by_role("alert")).to_be_visible()
    assert console.get("/v1/sessions/full/files/large.bin").status == 404
    assert {"413" in each for each in quiet} == {True}
    quiet.clear()
