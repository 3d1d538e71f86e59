"""Run by the clients' interpreter: JupyterLab through Jupyter Server, used in a browser as a person does.

Arguments: the gateway's URL, its token, a folder, the browser's path. Leaves a screenshot and the notebook
as JupyterLab saved it in the folder, and prints one JSON object with what happened.
"""

import json
import shutil
import sys
from pathlib import Path

import nbformat
from playwright.sync_api import expect, sync_playwright
from proxy import OWN_TOKEN, serve

URL, TOKEN, FOLDER, BROWSER = sys.argv[1:]
NAME, SAVED = "analysis.ipynb", "saved.ipynb"
PATIENCE = 60_000
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CELLS = [
    "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9, 16])\nplt.title('Squares')\nplt.show()",
    """\
from IPython.display import HTML, JSON, clear_output, display
display(JSON({'answer': {'is': 42}}, expanded=True))""",
    """\
import time
shown = display(HTML('<b>0 of 5</b>'), display_id=True)
for n in range(1, 6):
    time.sleep(0.1)
    shown.update(HTML(f'<progress value={n} max=5></progress> <b>{n} of 5</b>'))""",
    """\
for n in range(3):
    clear_output(wait=True)
    print('step', n, flush=True)""",
    "name = input('Your name? ')\nprint('Hello', name)",
    "print('before'); 1/0",
]


def write_notebook():
    made = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# Through Cellgate"),
            *(nbformat.v4.new_code_cell(code) for code in CELLS),
        ]
    )
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, Path(FOLDER) / NAME)


def quiet_settings():
    """No news from the network, and no dialog that asks for it."""
    folder = Path(FOLDER) / "labconfig"
    folder.mkdir()
    disabled = {"@jupyterlab/apputils-extension:announcements": True}
    (folder / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))


def menu(page, name, entry):
    page.locator(".lm-MenuBar-itemLabel", has_text=name).first.click()
    page.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()


def run_notebook(page):
    """Run all cells, answer the question, and see every result on the page."""
    menu(page, "Run", "Run All Cells")
    question = page.locator("input.jp-Stdin-input")
    question.fill("Ada")
    question.press("Enter")
    cells = page.locator(".jp-CodeCell")
    expect(cells.nth(5)).to_contain_text("ZeroDivisionError")
    expect(cells.nth(4)).to_contain_text("Hello Ada")
    expect(cells.nth(3).locator(".jp-OutputArea-output")).to_have_text("step 2\n")
    expect(cells.nth(2).locator(".jp-OutputArea-output")).to_have_text("5 of 5")
    expect(cells.nth(1).locator(".jp-RenderedJSON")).to_contain_text("42")
    picture = cells.nth(0).locator(".jp-RenderedImage img")
    picture.scroll_into_view_if_needed()
    return picture.evaluate("image => image.naturalWidth")


def restart(page):
    """Restart by the menu, then run the first cell again: its count begins anew, no dialog says otherwise."""
    menu(page, "Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog button.jp-mod-accept").click()
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle")
    page.locator(".jp-CodeCell").nth(0).locator(".cm-content").click()
    menu(page, "Run", "Run Selected Cell")
    expect(page.locator(".jp-CodeCell").nth(0).locator(".jp-InputPrompt").first).to_have_text("[1]:")
    return page.locator(".jp-Dialog").count()


def session(page, proxy):
    """Jupyter Server's session of the notebook, once the page has begun one."""
    for _ in range(PATIENCE // 200):
        if found := proxy.request("GET", "/api/sessions"):
            return found[0]
        page.wait_for_timeout(200)
    raise AssertionError("the page begins no session")


def save(page):
    """Save as a person does: once more if the page still says that something is not saved."""
    dirty = page.locator(".lm-DockPanel-tabBar .jp-mod-dirty")
    for _ in range(PATIENCE // 2000):
        page.keyboard.press("Control+s")
        page.wait_for_timeout(2000)
        if not dirty.count():
            return
    expect(dirty).to_have_count(0)


def use(page, proxy):
    page.goto(f"http://{proxy.host}/lab/tree/{NAME}?token={OWN_TOKEN}")
    status = page.locator(".jp-Notebook-ExecutionIndicator")
    expect(status).to_have_attribute("data-status", "idle")
    happened = {"kernel": session(page, proxy)["kernel"]["id"]}
    happened["picture"] = run_notebook(page)
    page.screenshot(path=Path(FOLDER) / "lab.png")
    # What follows the last output, its reply and its count, changes the notebook too.
    expect(page.locator(".jp-CodeCell").nth(5).locator(".jp-InputPrompt").first).to_have_text("[6]:")
    expect(status).to_have_attribute("data-status", "idle")
    save(page)
    page.wait_for_function(
        "async path => (await (await fetch(path)).json()).content.cells[6].outputs.length > 1",
        arg=f"/api/contents/{NAME}",
    )
    shutil.copy(Path(FOLDER) / NAME, Path(FOLDER) / SAVED)
    page.reload()
    expect(status).to_have_attribute("data-status", "idle")
    expect(page.locator(".jp-CodeCell").nth(4)).to_contain_text("Hello Ada")
    happened["dialogs"] = restart(page)
    return happened


def main():
    write_notebook()
    quiet_settings()
    expect.set_options(timeout=PATIENCE)
    with (
        serve("jupyterlab", URL, TOKEN, FOLDER, "--LabApp.news_url=None") as proxy,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        page = browser.new_page(viewport={"width": 1200, "height": 1400})
        page.set_default_timeout(PATIENCE)
        try:
            happened = use(page, proxy)
        except BaseException:
            page.screenshot(path=Path(FOLDER) / "lab.png")
            raise
        finally:
            browser.close()
        proxy.request("DELETE", f"/api/kernels/{happened['kernel']}")
    print(json.dumps(happened))


main()
