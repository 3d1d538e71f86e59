"""What of a session reaches beyond it: packages of an index, JupyterLab, links for other people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.using import answer, cells, ended, expect, run, show, tab
from tests.conftest import serving
from tests.support.browser import link, noticed, opened
from tests.support.server import GatewayProcess
from tests.support.users import add_user, create_token
from tests.support.wheels import Index, build_wheel


@pytest.fixture(scope="module")
def others(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that installs packages, of an index with two."""
    folder: Path = tmp_path_factory.mktemp("index")
    build_wheel(folder, "apple", "1.0")
    build_wheel(folder, "banana", requires=["apple"])
    index = Index(folder)
    data = tmp_path_factory.mktemp("panels") / "data"
    try:
        with serving(data, "sandbox", packages="*", package_index=index.url) as gateway:
            yield gateway
    finally:
        index.close()


def test_packages_are_installed_and_removed(others: GatewayProcess, browser: Any) -> None:
    others.post("/v1/sessions", {"session": "fruit"})
    with opened(browser) as page:
        page.goto(link(others, "#/sessions/fruit"))
        panel = tab(page, "Packages")
        expect(panel.get_by_text("Nothing was installed in this session")).to_be_visible()
        panel.get_by_label("Packages to install").fill("no-such-fruit")
        panel.get_by_role("button", name="Install").click()
        expect(page.get_by_role("status").filter(has_text="no-such-fruit")).to_be_visible()
        panel.get_by_label("Packages to install").fill("banana")
        panel.get_by_role("button", name="Install").click()
        installed = panel.get_by_role("list", name="Installed packages")
        expect(installed.get_by_role("listitem").filter(has_text="banana")).to_contain_text("1.0")
        apple = installed.get_by_role("listitem").filter(has_text="apple")
        expect(apple).to_contain_text("came with another")
        cell = run(page, "import banana; print('is', banana.VERSION)")
        ended(cell)
        expect(cell).to_contain_text("is 1.0")
        for name in ("banana", "apple"):
            installed.get_by_role("button", name=f"Remove {name}").click()
            expect(page.get_by_role("dialog")).to_contain_text(f"Remove {name}?")
            answer(page, "Remove")
            expect(installed.get_by_role("button", name=f"Remove {name}")).to_have_count(0)
        expect(panel.get_by_text("Nothing was installed in this session")).to_be_visible()
    assert others.get("/v1/sessions/fruit/packages").json()["packages"] == []


def test_a_session_is_exported_in_every_form(page: Any, console: GatewayProcess) -> None:
    console.post("/v1/sessions", {"session": "exported", "checkpoint": "auto"})
    for code in ("kept = 'here'", "undone = 'gone'"):
        console.execute("exported", code)
    console.post("/v1/sessions/exported/undo", {})
    show(page, "exported")
    panel = tab(page, "Record")
    texts = {}
    for name, ending in (
        ("Notebook", ".ipynb"),
        ("Notebook without undone cells", ".ipynb"),
        ("Page", ".html"),
        ("Markdown", ".md"),
        ("Script", ".py"),
    ):
        with page.expect_download() as download:
            panel.get_by_role("link", name=name, exact=True).click()
        assert download.value.suggested_filename == f"exported{ending}"
        texts[name] = Path(download.value.path()).read_text()
    assert all("here" in text for text in texts.values())
    assert "gone" in texts["Notebook"]
    assert "gone" not in texts["Notebook without undone cells"]


def test_a_page_is_shown_to_be_printed(page: Any, console: GatewayProcess) -> None:
    """In a tab of its own, in which nothing runs; a browser makes a PDF of it."""
    console.execute("printed", "import pandas as pd\npd.DataFrame({'number': range(60)})")
    console.execute("printed", "pd.set_option('display.max_rows', 99)\npd.DataFrame({'number': range(90)})")
    show(page, "printed")
    with page.context.expect_page() as told:
        tab(page, "Record").get_by_role("link", name="Page to print").click()
    with told.value as shown:
        expect(shown).to_have_title("printed")
        assert shown.evaluate("origin") == "null"
        shown.emulate_media(media="print")
        head = shown.locator("thead").last
        assert head.evaluate("head => getComputedStyle(head).display") == "table-header-group"
        assert (
            head.locator("xpath=../tbody/tr").last.evaluate("row => getComputedStyle(row).breakInside")
            == "avoid"
        )
        assert shown.pdf().startswith(b"%PDF-")


def test_what_jupyterlab_needs_is_told(page: Any, console: GatewayProcess) -> None:
    console.execute("to-jupyter", "1")
    show(page, "to-jupyter")
    tab(page, "Record").get_by_role("button", name="Open in JupyterLab").click()
    told = page.get_by_role("dialog").locator("pre")
    expect(told).to_have_count(2)
    lab, channels = told.all_text_contents()
    assert lab.startswith(f"jupyter lab --gateway-url={console.url} ")
    assert channels == f"ws://{console.host}/api/kernels/to-jupyter/channels"
    assert console.get("/api/kernels/to-jupyter").json()["execution_state"] == "idle"
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_who_interrupted_a_cell_is_told(others: GatewayProcess, browser: Any) -> None:
    add_user(others, "eve")
    _, token = create_token(others, "eve")
    code = "import time; print('begun', flush=True); time.sleep(600)"
    sent = others.post("/v1/sessions/watched/execute", {"code": code, "wait": False}, token=token)
    assert sent.status == 202
    with opened(browser) as page:
        page.goto(link(others, "#/sessions/watched", token=token))
        expect(cells(page).first).to_contain_text("begun")
        assert others.post("/v1/sessions/watched/interrupt?principal=eve").status == 204
        ended(cells(page).first, "interrupted")
        expect(cells(page).first).to_contain_text("interrupted by default")


def test_a_link_to_a_cell_leads_others_there(others: GatewayProcess, browser: Any) -> None:
    """Whoever may see the session: for an administrator its key alone names one of their own."""
    add_user(others, "ada")
    _, token = create_token(others, "ada")
    assert others.post("/v1/sessions", {"session": "hers"}, token=token).status == 201
    code = {"code": "print('hello from ada')", "wait": True}
    assert others.post("/v1/sessions/hers/execute", code, token=token).status == 200
    with opened(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(link(others, "#/sessions/hers", token=token))
        cells(page).first.hover()
        with noticed(page, "Copied"):
            cells(page).first.get_by_role("button", name="Copy a link to this cell").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        page.goto(copied)
        expect(cells(page).first).to_contain_text("hello from ada")
        expect(page.get_by_role("alert")).to_have_count(0)
    with opened(browser) as page:
        page.goto(link(others))
        expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
        page.goto(copied)
        expect(cells(page).first).to_contain_text("hello from ada")
        expect(cells(page).first).to_have_class("cell cell-ok  cell-marked")
