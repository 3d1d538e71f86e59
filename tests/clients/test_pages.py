"""A page that was exported, in a real browser: nothing in it runs, loads or sends."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat import v4

from cellgate.jobs.convert import convert
from tests.pure.pages.test_html_frame import ALIVE, UNFINISHED, exported, replayed
from tests.support.browser import PHONE, Browsers, program
from tests.support.browser import opened as page_opened
from tests.support.families import running
from tests.support.server import until

PATIENCE = 100


@pytest.fixture
def answered() -> Iterator[tuple[str, list[str]]]:
    """An address on this machine, and the paths that somebody asked it for."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<title>moved</title>moved")

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", paths
        finally:
            server.shutdown()
            thread.join()


def browser(profile: Path) -> list[str]:
    """The command of a browser without a window."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    return [program(), *options, *quiet, f"--user-data-dir={profile}"]


def opened(file: Path, profile: Path) -> str:
    """The page as a browser has it after five seconds of its own time."""
    command = [*browser(profile), "--virtual-time-budget=5000", "--dump-dom", file.as_uri()]
    output, log = file.with_suffix(".out"), file.with_suffix(".log")
    with running(command, output, log) as shown:
        assert shown.wait(PATIENCE) == 0, log.read_text()
    return output.read_text()


def test_a_saved_page_sends_nothing_runs_nothing_and_stays_where_it_is(
    tmp_path: Path, answered: tuple[str, list[str]]
) -> None:
    address, paths = answered
    pieces = [piece.replace("HOST", address) for piece in (*ALIVE, *UNFINISHED)]
    for name, text in (("exported", exported(*pieces)), ("replayed", replayed(*pieces))):
        file = tmp_path / f"{name}.html"
        file.write_text(text)
        shown = opened(file, tmp_path / name)
        assert paths == [], name
        assert "<title>ran" not in shown
        assert "<title>moved" not in shown
        assert "last" in shown


def test_the_same_mischief_works_in_a_page_without_a_policy(
    tmp_path: Path, answered: tuple[str, list[str]]
) -> None:
    """Else the test above would prove nothing."""
    address, paths = answered
    file = tmp_path / "plain.html"
    pieces = [piece for piece in ALIVE if "refresh" not in piece and "<form" not in piece]
    # The browser asks for a style's pictures when it needs the style, which may be never if nobody looks at
    # the page.
    needed = "<script>addEventListener('load', () => document.body.offsetTop)</script>"
    page = "<!doctype html><title>plain</title>" + needed + "".join(pieces)
    file.write_text(page.replace("HOST", address))
    # Not of /url, which a later style replaces: before that is read the picture is needed, or never.
    expected = {"/fetch", "/img", "/css", "/import", "/set", "/attribute", "/frame", "/srcdoc"}
    # In its own time it might be over before a busy machine has let it ask.
    command = [*browser(tmp_path / "profile"), "--remote-debugging-port=0", file.as_uri()]
    with running(command):
        until(lambda: expected <= set(paths), "the browser has not asked for all of it", PATIENCE)


COVER = "position: {}; inset: -3000px; z-index: 99; background: red"
COVERS = [
    f"<div style='{COVER.format('fixed')}'>fixed</div>",
    f"<div style='{COVER.format('absolute')}; contain: none'>absolute</div>",
    "<div style='margin: -2000px; padding: 2000px; background: red'>margins</div>",
    f"<style>.cover {{ {COVER.format('fixed')} }}</style><div class='cover'>by a rule</div>",
    f"<style>.jp-OutputArea-output {{ {COVER.format('fixed')} }}</style><p>its place</p>",
    "<style>body, .jp-Cell, .jp-InputArea { display: none !important }</style><p>all</p>",
    "<style>* { contain: none !important } .jp-Cell { position: fixed; inset: 0 }</style><p>around</p>",
    "<style>+ *, ~ *, :root + *, x::before + .jp-Cell, * { inset: 0; position: fixed }</style><p>beside</p>",
    "<style>.jp-OutputArea-output ~ *, .jp-Cell:has(p) { display: none !important }</style><p>siblings</p>",
    "<style>.mine { color: rgb(1, 2, 3) }</style><p class='mine'>its own</p>",
]
STYLED = """<style>:root, :host { --own: rgb(1, 2, 3) }
html[data-theme="dark"], body.dark { --own: rgb(9, 9, 9) }
.NAME { color: var(--own, red) } body .NAME b, .jp-RenderedHTMLCommon .NAME b { color: rgb(4, 5, 6) }
#a, #b, .NAME i { color: rgb(7, 8, 9) }</style>
<p class='NAME'>its own <b>by an ancestor</b> <i>in a list</i></p>"""
SEEN = """() => [...document.querySelectorAll(".jp-InputArea-editor")].map((code) => {
  code.scrollIntoView({ block: "center" });
  const { left, top, width, height } = code.getBoundingClientRect();
  return code.contains(document.elementFromPoint(left + Math.min(40, width / 2), top + height / 2));
})"""


def test_what_a_cell_shows_covers_no_code_and_no_other_cell(tmp_path: Path) -> None:
    file = tmp_path / "exported.html"
    file.write_text(exported(*COVERS))
    browsers = Browsers()
    try:
        with page_opened(browsers.get()) as page:
            page.goto(file.as_uri())
            seen = page.evaluate(SEEN)
            assert len(seen) > len(COVERS)
            assert set(seen) == {True}
            colour = "getComputedStyle(document.querySelector('p.mine')).color"
            assert page.evaluate(colour) == "rgb(1, 2, 3)"
    finally:
        browsers.close()


def test_styles_are_for_what_a_cell_shows(tmp_path: Path) -> None:
    """As in the notebook, with variables of the page's root; a text has none, and gets none of an output."""
    told = STYLED.replace("p.NAME", ".jp-MarkdownOutput p").replace("NAME", "told").replace("\n", " ")
    cells = [v4.new_markdown_cell(told)]
    shown = {"text/html": STYLED.replace("NAME", "shown") + told}
    cells.append(v4.new_code_cell("1", outputs=[v4.new_output("display_data", shown)]))
    file = tmp_path / "exported.html"
    file.write_text(convert(json.dumps(v4.new_notebook(cells=cells)), "html"))
    assert "@scope" not in file.read_text()
    browsers = Browsers()
    try:
        with page_opened(browsers.get()) as page:
            page.goto(file.as_uri())

            def colours(place: str) -> list[str]:
                parts = (page.locator(f"{place}{inner}") for inner in ("", " b", " i"))
                return [part.evaluate("each => getComputedStyle(each).color") for part in parts]

            assert colours("p.shown") == ["rgb(1, 2, 3)", "rgb(4, 5, 6)", "rgb(7, 8, 9)"]
            assert len(set(colours(".jp-MarkdownOutput p"))) == 1
            assert not {"rgb(1, 2, 3)", "rgb(4, 5, 6)"} & set(colours(".jp-MarkdownOutput p"))
    finally:
        browsers.close()


def test_an_author_can_draw_no_cell(tmp_path: Path) -> None:
    """Each piece that imitates one looks as it would without any markup of the page's."""
    real = convert(json.dumps(v4.new_notebook(cells=[v4.new_code_cell("p = 1", execution_count=3)])), "html")
    body = real[real.index("<main>") + len("<main>") : real.index("</main>")]
    rules = ".x { display: flex; background: rgb(1, 2, 3); border: 9px solid; font-family: monospace }"
    pieces = [
        " ".join(body.split("\n")),
        f"<style>{rules} div {{ padding: 9px }}</style><div class=x>In [3]:</div>",
        f"<div style='{rules[5:-2]}; padding: 9px'>In [3]:</div>",
        "<main class='jp-Notebook'><div id='cell-id=4f2e' role='article'>In [3]:</div></main>",
    ]
    file = tmp_path / "exported.html"
    cells = [v4.new_markdown_cell(piece) for piece in pieces]
    file.write_text(convert(json.dumps(v4.new_notebook(cells=cells)), "html"))
    browsers = Browsers()
    try:
        with page_opened(browsers.get()) as page:
            page.goto(file.as_uri())
            texts = page.locator(".jp-MarkdownOutput")
            assert texts.count() == len(pieces)
            assert texts.locator("main, [id^='cell-id'], [role=article], .jp-Cell").count() == 0
            # Code in a text has the colours of code in a cell, and neither its number nor its frame.
            looks = texts.locator("div:not(.highlight)").evaluate_all(
                """all => all.map((each) => {
                  const { display, backgroundColor, borderStyle, padding } = getComputedStyle(each);
                  return [display, backgroundColor, borderStyle, padding].join();
                })"""
            )
            assert set(looks) == {"block,rgba(0, 0, 0, 0),none,0px"}
    finally:
        browsers.close()


def test_a_replay_fits_on_a_phone(tmp_path: Path) -> None:
    """Even where it names what has no place to break, such as the moment at which it was made."""
    file = tmp_path / "replayed.html"
    file.write_text(replayed("word" * 100))
    browsers = Browsers()
    try:
        with page_opened(browsers.get(), viewport=PHONE) as page:
            page.goto(file.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    finally:
        browsers.close()
